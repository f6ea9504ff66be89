"""What the recipes put into models of transformers, where that is installed: their own loss and gradients."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

PAGES = Path(__file__).resolve().parents[2] / "docs" / "recipes"


def defined(page: str, name: str) -> Any:
    """The function, as the page defines it."""
    (found,) = re.findall(rf"^def {name}\(.*?(?=^\S)", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec("import torch\nimport torch.nn.functional as F\nimport cudaloss\n" + found, names)
    return names[name]


def with_loss_function(model: Any) -> Any:
    model.loss_function = defined("language-models.md", "loss_function")
    return model


def without_logits(model: Any) -> Any:
    return defined("language-model-head.md", "without_logits")(model)


def small_model(kind: str) -> Any:
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "gpt2":  # its head has the embedding's weight
        config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    elif kind == "gemma2":  # with a softcap, so low that it matters
        more = {"num_key_value_heads": 2, "head_dim": 16, "final_logit_softcapping": 0.5}
        config = transformers.Gemma2Config(**sizes, **more, intermediate_size=48, max_position_embeddings=32)
    else:
        config = transformers.LlamaConfig(**sizes, intermediate_size=48, max_position_embeddings=32)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("items", [None, 50], ids=["mean", "of the whole batch"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("patched", [with_loss_function, without_logits])
def test_loss_and_gradients_are_the_models_own(patched: Any, kind: str, items: int | None) -> None:
    theirs = small_model(kind)
    ours = patched(copy.deepcopy(theirs))
    tokens = torch.randint(97, (3, 17))
    labels = tokens.clone()
    labels[0, 9:] = labels[2, :4] = -100
    found = []
    for model in (ours, theirs):
        loss = model(input_ids=tokens, labels=labels, num_items_in_batch=items and torch.tensor(items))["loss"]
        loss.backward()
        found.append((loss.detach(), [x.grad for x in model.parameters() if x.grad is not None]))
    torch.testing.assert_close(*found)


def test_a_patched_model_never_calls_its_head_for_a_loss() -> None:
    model, tokens, seen = without_logits(small_model("llama")), torch.randint(97, (2, 9)), []
    model.get_output_embeddings().register_forward_hook(lambda *_: seen.append(1))
    model(input_ids=tokens, labels=tokens)["loss"].backward()
    assert not seen
    assert model(input_ids=tokens).logits.shape == (2, 9, 97)
    assert model.generate(tokens, max_new_tokens=3, do_sample=False).shape == (2, 12)


def test_a_patched_model_is_trained_by_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    tokens = torch.randint(97, (8, 12))
    labels = tokens.masked_fill(torch.arange(12) >= torch.randint(4, 13, (8, 1)), -100)
    dataset = [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels, strict=True)]
    start, lost = small_model("llama"), []
    for model in (without_logits(copy.deepcopy(start)), start):
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, prediction_loss_only=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=dataset, eval_dataset=dataset)
        lost.append((trainer.train().training_loss, trainer.evaluate()["eval_loss"]))
    assert lost[0] == pytest.approx(lost[1], rel=1e-5)
