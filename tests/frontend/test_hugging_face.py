"""What a recipe puts into models of transformers, where that is installed: their own loss and gradients."""

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
def test_loss_and_gradients_are_the_models_own(kind: str, items: int | None) -> None:
    theirs = small_model(kind)
    ours = with_loss_function(copy.deepcopy(theirs))
    tokens = torch.randint(97, (3, 17))
    labels = tokens.clone()
    labels[0, 9:] = labels[2, :4] = -100
    found = []
    for model in (ours, theirs):
        loss = model(input_ids=tokens, labels=labels, num_items_in_batch=items and torch.tensor(items))["loss"]
        loss.backward()
        found.append((loss.detach(), [x.grad for x in model.parameters() if x.grad is not None]))
    torch.testing.assert_close(*found)
