"""cudaloss.patch_transformers: a model's loss replaced, with and without its logits, and put back."""

from __future__ import annotations

import copy
import doctest
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cudaloss
from processes import found_by_all

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 32,
}  # fmt: skip
# The configuration of each model, and what is its own.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),  # its head is the embedding's
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "final_logit_softcapping": 0.5}),  # so low that it matters
    "mixtral": ("MixtralConfig", {"num_local_experts": 2, "output_router_logits": True}),  # a loss beside ours
}
HEADS = [None, "fast", "least"]


def small_model(kind: str, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    name, own = MODELS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**SIZES, **own, **more)
    return transformers.AutoModelForCausalLM.from_config(config).train()


def batch() -> dict[str, Any]:
    tokens = torch.randint(VOCABULARY, (4, 17))
    labels = tokens.clone()
    labels[0, 9:] = labels[2, :4] = -100
    return {"input_ids": tokens, "labels": labels}


def step(model: Any, **inputs: Any) -> tuple[Any, list[Any]]:
    model.zero_grad()
    outputs = model(**inputs)
    outputs["loss"].backward()
    return outputs, [outputs["loss"].detach(), *(x.grad for x in model.parameters() if x.grad is not None)]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("kind", MODELS)
def test_loss_and_gradients_are_the_models_own(kind: str, head: str | None) -> None:
    theirs = small_model(kind)
    ours = copy.deepcopy(theirs)
    shifted = torch.randint(VOCABULARY, (4, 17))
    calls = [
        {},
        {"num_items_in_batch": torch.tensor(50)},
        {"num_items_in_batch": 50},
        {"ignore_index": 5, "shift_labels": shifted},
    ]
    with cudaloss.patch_transformers(ours, head=head):
        for call in calls:
            inputs = batch() | call
            outputs, found = step(ours, **inputs)
            torch.testing.assert_close(found, step(theirs, **inputs)[1])
            assert (outputs.logits is None) == (head is not None) and type(outputs) is type(theirs(**inputs))
            assert outputs.loss.dtype == torch.float32


@pytest.mark.parametrize("head", HEADS)
def test_halves_are_read_as_they_are(head: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = small_model("llama").bfloat16(), batch()
    expected = model(**inputs).loss
    seen = []
    name = "cross_entropy" if head is None else "linear_cross_entropy"
    ours = getattr(cudaloss.functional, name)
    monkeypatch.setattr(cudaloss.functional, name, lambda *x, **y: seen.append(x[0]) or ours(*x, **y))
    with cudaloss.patch_transformers(model, head=head):
        found = model(**inputs).loss
    (read,) = seen
    assert read.dtype == torch.bfloat16 and found.dtype == torch.float32
    assert read.shape[-1] == (VOCABULARY if head is None else SIZES["hidden_size"])
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)


def test_logits_are_there_where_they_are_asked_for() -> None:
    model, inputs = small_model("llama"), batch()
    plain = model(**inputs)
    with cudaloss.patch_transformers(model, head="least"):
        assert model(**inputs).logits is None
        torch.testing.assert_close(model(input_ids=inputs["input_ids"]).logits, plain.logits)
        loss, *rest = model(**inputs, return_dict=False)
        assert loss.dim() == 0 and all(not isinstance(x, torch.Tensor) for x in rest)
        model.eval()
        evaluated = model(**inputs)
        torch.testing.assert_close((evaluated.loss, evaluated.logits), (plain.loss, plain.logits))
        assert model.generate(inputs["input_ids"], max_new_tokens=3, do_sample=False).shape == (4, 20)


@pytest.mark.parametrize("head", HEADS)
def test_a_model_is_its_own_again(head: str | None) -> None:
    model, inputs = small_model("llama"), batch()
    kind, loss, before = type(model), model.loss_function, step(model, **inputs)[1]
    patched = cudaloss.patch_transformers(model, head=head)
    assert patched.model is model and type(model).__name__ == kind.__name__
    assert inspect.signature(model.forward) == inspect.signature(kind.forward.__get__(model))
    with pytest.raises(RuntimeError, match="patched already"):
        cudaloss.patch_transformers(model)
    patched.restore()
    patched.restore()  # does nothing
    assert type(model) is kind and type(model.lm_head) is torch.nn.Linear and model.loss_function is loss
    assert not {"forward", "_loss_function", "_memory_of_head"} & {*vars(model)}
    assert all(torch.equal(x, y) for x, y in zip(step(model, **inputs)[1], before, strict=True))
    with pytest.raises(ZeroDivisionError), cudaloss.patch_transformers(model, head=head):
        raise ZeroDivisionError
    assert type(model) is kind and model.loss_function is loss
    model.loss_function = loss  # as an attribute of its own
    cudaloss.patch_transformers(model, head=head).restore()
    assert vars(model)["_loss_function"] is loss


def test_a_model_whose_class_has_changed_since() -> None:
    """As fully_shard changes it."""
    model, inputs = small_model("llama"), batch()
    loss = model.loss_function
    patched = cudaloss.patch_transformers(model, head="least")
    kind = type(model)
    model.__class__ = type("Sharded", (kind,), {})
    patched.restore()
    assert type(model).__name__ == "Sharded" and model.loss_function is loss
    assert model(**inputs).logits is not None


def test_a_copy_computes_with_its_own_head() -> None:
    model, inputs = small_model("llama"), batch()
    with cudaloss.patch_transformers(model, head="least"):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.lm_head.weight.zero_()
        torch.testing.assert_close(other(**inputs).loss, torch.tensor(float(VOCABULARY)).log())
    assert other(**inputs).logits is None


def of_a_shard(head: str | None) -> list[torch.Tensor]:
    """The gradients of a model whose last layer is sharded by itself, from half of a batch."""
    from torch.distributed.fsdp import fully_shard

    model, inputs = small_model("llama"), batch()
    cudaloss.patch_transformers(model, head=head)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    for module in (*model.model.layers, model.lm_head, model):
        fully_shard(module, mesh=mesh)
    own = {name: x.chunk(2)[torch.distributed.get_rank()] for name, x in inputs.items()}
    (2 * model(**own, num_items_in_batch=torch.tensor(50)).loss).backward()  # the mean over two processes
    return [x.grad.full_tensor() for x in model.parameters()]


@pytest.mark.parametrize("head", HEADS)
def test_sharded_weights(head: str | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    model, inputs = small_model("llama"), batch()
    expected = step(model, **inputs, num_items_in_batch=50)[1][1:]
    for found in found_by_all(tmp_path_factory, 2, of_a_shard, head):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("head", HEADS)
def test_compiled(head: str | None) -> None:
    model, inputs = small_model("llama"), batch()
    expected = step(model, **inputs)[1]
    torch._dynamo.reset()
    with cudaloss.patch_transformers(model, head=head):
        torch.testing.assert_close(step(torch.compile(model, backend="aot_eager"), **inputs)[1], expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("head", [None, "least"])
def test_trained_by_trainer(head: str | None, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    tokens = torch.randint(VOCABULARY, (16, 12))
    labels = tokens.masked_fill(torch.arange(12) >= torch.randint(4, 13, (16, 1)), -100)
    dataset = [{"input_ids": x, "labels": y} for x, y in zip(tokens, labels, strict=True)]
    start, found = small_model("llama"), []
    for is_patched in (True, False):
        model = copy.deepcopy(start)
        if is_patched:
            cudaloss.patch_transformers(model, head=head)
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True,
            report_to=[], save_strategy="no", disable_tqdm=True, optim="sgd", learning_rate=0.5,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model, arguments, train_dataset=dataset, eval_dataset=dataset,
            compute_metrics=lambda seen: {"right": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
        )  # fmt: skip
        lost, metrics = trainer.train().training_loss, trainer.evaluate()
        found.append([lost, metrics["eval_loss"], metrics["eval_right"], [x.detach() for x in model.parameters()]])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_what_is_not_served() -> None:
    linear = torch.nn.Linear(2, 3)
    with pytest.raises(TypeError, match=r"model must be a transformers.PreTrainedModel, got Linear"):
        cudaloss.patch_transformers(linear)
    transformers = pytest.importorskip("transformers")
    linear.get_base_model = lambda: None  # as a model of PEFT
    with pytest.raises(TypeError, match=r"got Linear; its get_base_model\(\) is one"):
        cudaloss.patch_transformers(linear)
    model, inputs = small_model("llama"), batch()
    for head in (True, "most"):
        with pytest.raises(ValueError, match=f"head must be None, 'fast' or 'least', got {head!r}"):
            cudaloss.patch_transformers(model, head=head)
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    masked = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=VOCABULARY, **layers))
    with pytest.raises(ValueError, match="got BertForMaskedLM with ForMaskedLMLoss"):
        cudaloss.patch_transformers(masked)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    with pytest.raises(ValueError, match="got T5ForConditionalGeneration with a loss of its own"):
        cudaloss.patch_transformers(transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)))
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(ValueError, match=r"with head='fast' model's last layer must be a torch.nn.Linear, got .*Seq"):
        cudaloss.patch_transformers(model, head="fast")
    with cudaloss.patch_transformers(model):
        model(**inputs)


def test_a_call_that_is_not_served() -> None:
    """An error, never the loss of wrong logits; and the model computes as before afterwards."""
    transformers = pytest.importorskip("transformers")
    inputs = batch()
    scaled = transformers.GraniteForCausalLM(transformers.GraniteConfig(**SIZES, logits_scaling=2.0)).train()
    plain = scaled(**inputs)
    with cudaloss.patch_transformers(scaled, head="least"):
        with pytest.raises(RuntimeError, match="GraniteForCausalLM changes its logits between its head and its loss"):
            scaled(**inputs)
        torch.testing.assert_close(scaled.eval()(**inputs).loss, plain.loss)
    with cudaloss.patch_transformers(scaled.train()):
        torch.testing.assert_close(scaled(**inputs).loss, plain.loss)

    model = small_model("llama")
    with cudaloss.patch_transformers(model, head="least"):
        model.loss_function = lambda logits, *_, **__: logits.sum()
        with pytest.raises(RuntimeError, match="has not called its loss_function"):
            model(**inputs)
    with cudaloss.patch_transformers(model, head="least"):
        own, model.lm_head = model.lm_head, torch.nn.Sequential(model.lm_head)  # as an adapter wraps it
        with pytest.raises(RuntimeError, match=r"has got another head, torch\.nn\..*\.Sequential"):
            model(**inputs)
        model.lm_head = own


def test_the_example_runs() -> None:
    pytest.importorskip("transformers")
    test = doctest.DocTestParser().get_doctest(cudaloss.patch_transformers.__doc__ or "", {}, "", None, None)
    assert len(test.examples) >= 5 and doctest.DocTestRunner().run(test).failed == 0


def test_transformers_is_not_imported() -> None:
    code = (
        "import sys, torch, cudaloss\ntry: cudaloss.patch_transformers(torch.nn.Linear(1, 1))\nexcept TypeError: pass"
    )
    subprocess.run([sys.executable, "-c", f"{code}\nassert 'transformers' not in sys.modules"], check=True)
