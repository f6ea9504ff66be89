"""transformers: tiny models of its architectures with their own heads and losses, and a run of its Trainer."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers as tf
from seeded import gradients, seed, state
from torch import Tensor

VOCABULARY, CLASSES = 64, 5
BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "pad_token_id": 0,
}  # fmt: skip
LLAMA = BERT | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0}
T5 = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
VIT = {
    "image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32,
}  # fmt: skip
SEGFORMER = {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16], "patch_sizes": [3, 3],
    "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 16,
}  # fmt: skip
PATCH_TST = {
    "num_input_channels": 2, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32, "prediction_length": 4,
}  # fmt: skip
REGRESSION, SEVERAL = {"num_labels": 1}, {"problem_type": "multi_label_classification"}


def _ids(*shape: int) -> Tensor:
    return torch.randint(3, VOCABULARY, shape)


def _text(labels: Tensor) -> dict[str, Tensor]:
    return {"input_ids": _ids(2, 8), "labels": labels}


def _classes() -> dict[str, Tensor]:
    return _text(torch.randint(CLASSES, (2,)))


def _tokens() -> dict[str, Tensor]:
    labels = torch.randint(CLASSES, (2, 8))
    labels[:, -2:] = -100
    return _text(labels)


def _language() -> dict[str, Tensor]:
    labels = _ids(2, 8)
    labels[0, :3] = -100
    return _text(labels)


def _regression() -> dict[str, Tensor]:
    return _text(torch.randn(2, dtype=torch.float64))


def _several() -> dict[str, Tensor]:
    return _text(torch.rand(2, CLASSES, dtype=torch.float64).round())


def _spans() -> dict[str, Tensor]:
    return {"input_ids": _ids(2, 8), "start_positions": torch.tensor([1, 9]), "end_positions": torch.tensor([3, 9])}


def _image(labels: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64), "labels": labels}


def _series(future: str, shape: tuple[int, ...]) -> dict[str, Tensor]:
    past = torch.randn(2, 16, 2, dtype=torch.float64)
    return {"past_values": past, future: torch.randn(shape, dtype=torch.float64)}


# model, its configuration, what it is called with
MODELS: tuple[tuple[str, dict[str, Any], Any], ...] = (
    ("BertForSequenceClassification", BERT, _classes),
    ("BertForSequenceClassification", BERT | REGRESSION, _regression),
    ("BertForSequenceClassification", BERT | SEVERAL, _several),
    ("BertForTokenClassification", BERT, _tokens),
    ("BertForQuestionAnswering", BERT | {"num_labels": 2}, _spans),
    ("BertForMaskedLM", BERT, _language),
    ("RobertaForSequenceClassification", BERT, _classes),
    ("RobertaForMaskedLM", BERT, _language),
    ("ElectraForSequenceClassification", BERT | REGRESSION, _regression),
    ("AlbertForSequenceClassification", BERT | {"embedding_size": 16}, _classes),
    ("GPT2LMHeadModel", GPT2, _language),
    ("GPT2ForSequenceClassification", GPT2 | REGRESSION, _regression),
    ("LlamaForCausalLM", LLAMA, _language),
    ("MistralForCausalLM", LLAMA, _language),
    ("Qwen2ForCausalLM", LLAMA, _language),
    ("T5ForConditionalGeneration", T5, _language),
    ("BartForConditionalGeneration", BART, _language),
    ("ViTForImageClassification", VIT, lambda: _image(torch.randint(CLASSES, (2,)))),
    ("DeiTForImageClassification", VIT | REGRESSION, lambda: _image(torch.randn(2, dtype=torch.float64))),
    ("SegformerForSemanticSegmentation", SEGFORMER, lambda: _image(torch.randint(CLASSES, (2, 16, 16)))),
    ("PatchTSTForPrediction", PATCH_TST | {"loss": "mse"}, lambda: _series("future_values", (2, 4, 2))),
    ("PatchTSTForRegression", PATCH_TST | {"loss": "mse", "num_targets": 3}, lambda: _series("target_values", (2, 3))),
)


def _model(name: str, numbers: dict[str, Any]) -> Any:
    kind = getattr(tf, name)
    return kind(kind.config_class(**({"num_labels": CLASSES} | numbers))).double().eval()  # no dropout


def results() -> dict[str, Tensor]:
    found = {}
    for place, (name, numbers, inputs) in enumerate(MODELS):
        seed()
        model = _model(name, numbers)
        found |= gradients(f"{place} {name}", model, model(**inputs()).loss)
    return found | _of_trainer()


def _of_trainer() -> dict[str, Tensor]:
    """A language model, with labels that are left out and gradients accumulated over two batches."""
    seed()
    model = _model("GPT2LMHeadModel", GPT2)
    rows = [{key: x[0] for key, x in _language().items()} for _ in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = tf.TrainingArguments(
            folder, max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True, seed=0,
            report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, optim="sgd", learning_rate=0.05,
        )  # fmt: skip
        trainer = tf.Trainer(model, arguments, train_dataset=rows)
        trainer.remove_callback(tf.PrinterCallback)
        trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"Trainer: losses": torch.tensor(losses, dtype=torch.float64), **state("Trainer", model)}
