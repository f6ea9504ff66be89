"""sentence-transformers: the losses of its encoders, of pairs and of rankings, and a run of its trainer."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import words
from datasets import Dataset
from seeded import gradients, seed, state
from sentence_transformers import (
    CrossEncoder,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.cross_encoder import losses as of_pairs
from sentence_transformers.sentence_transformer import losses
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedModel

WIDTH, CLASSES, ROWS = 16, 3, 8
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
BERT = {
    "vocab_size": words.VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "pad_token_id": 0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.5,  # with the usual one all texts are alike to a model that nobody has trained
}  # fmt: skip


def _loaded(kind: Any, model: PreTrainedModel) -> Any:
    """From a folder, because both kinds only load: a model that nobody has trained."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        words.tokenizer().save_pretrained(folder)
        return kind(folder, device="cpu").double()


def _encoder() -> SentenceTransformer:
    return _loaded(SentenceTransformer, BertModel(BertConfig(**BERT)))


def _cross_encoder(labels: int) -> CrossEncoder:
    return _loaded(CrossEncoder, BertForSequenceClassification(BertConfig(num_labels=labels, **BERT)))


def _numbers(*shape: int) -> Tensor:
    return torch.rand(shape, **DOUBLE)


def _classes() -> Tensor:
    return torch.randint(CLASSES, (ROWS,))


# loss, columns of text, labels
ENCODERS: dict[str, tuple[Any, int, Any]] = {
    "CosineSimilarity": (losses.CosineSimilarityLoss, 2, lambda: _numbers(ROWS)),
    "Softmax": (lambda model: losses.SoftmaxLoss(model, WIDTH, CLASSES).double(), 2, _classes),
    "MarginMSE": (losses.MarginMSELoss, 4, lambda: _numbers(ROWS, 2)),
    "MSE": (losses.MSELoss, 2, lambda: _numbers(ROWS, WIDTH)),
    "DistillKLDiv": (lambda model: losses.DistillKLDivLoss(model, temperature=2.0), 4, lambda: _numbers(ROWS, 3)),
    "GISTEmbed": (lambda model: losses.GISTEmbedLoss(model, _encoder()), 3, lambda: None),
    "ContrastiveTension": (losses.ContrastiveTensionLoss, 2, lambda: torch.randint(2, (ROWS,))),
    "ContrastiveTensionInBatchNegatives": (losses.ContrastiveTensionLossInBatchNegatives, 1, lambda: None),
}
# loss, labels of the model, columns, labels
PAIRS: dict[str, tuple[Any, int, int, Any]] = {
    "BinaryCrossEntropy": (of_pairs.BinaryCrossEntropyLoss, 1, 2, lambda: torch.randint(2, (ROWS,))),
    "CrossEntropy": (of_pairs.CrossEntropyLoss, CLASSES, 2, _classes),
    "MSE": (of_pairs.MSELoss, 1, 2, lambda: _numbers(ROWS)),
    "MarginMSE": (of_pairs.MarginMSELoss, 1, 3, lambda: _numbers(ROWS)),
    "MultipleNegativesRanking": (of_pairs.MultipleNegativesRankingLoss, 1, 3, lambda: None),
}


def _of_encoder(name: str) -> dict[str, Tensor]:
    loss, columns, labels = ENCODERS[name]
    seed()
    model = _encoder()
    features = [model.preprocess(words.sentences(ROWS)) for _ in range(columns)]
    criterion: nn.Module = loss(model)
    return gradients(f"encoder, {name}", criterion, criterion(features, labels()))


def _of_pairs(name: str) -> dict[str, Tensor]:
    loss, count, columns, labels = PAIRS[name]
    seed()
    model = _cross_encoder(count)
    criterion: nn.Module = loss(model)
    value = criterion([words.sentences(ROWS) for _ in range(columns)], labels())
    return gradients(f"pairs, {name}", model, value.double())  # PyTorch's of logits and float32 labels is float32


def _of_lists() -> dict[str, Tensor]:
    """A ranking of several texts for each query."""
    seed()
    model = _cross_encoder(1)
    queries, texts = words.sentences(4), [words.sentences(n) for n in (2, 3, 4, 3)]
    value = of_pairs.ListNetLoss(model)([queries, texts], [_numbers(len(x)).float() for x in texts])
    return gradients("pairs, ListNet", model, value)


def _of_trainer() -> dict[str, Tensor]:
    seed()
    model = _encoder()
    rows = {"first": words.sentences(32), "second": words.sentences(32), "label": _numbers(32).tolist()}
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=6, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
            report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, optim="sgd", learning_rate=0.5,
        )  # fmt: skip
        loss = losses.CosineSimilarityLoss(model)
        trainer = SentenceTransformerTrainer(model, arguments, train_dataset=Dataset.from_dict(rows), loss=loss)
        trainer.train()
    lost = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"Trainer: losses": torch.tensor(lost, **DOUBLE), **state("Trainer", model)}


def results() -> dict[str, Tensor]:
    found = {}
    for name in ENCODERS:
        found |= _of_encoder(name)
    for name in PAIRS:
        found |= _of_pairs(name)
    return found | _of_lists() | _of_trainer()
