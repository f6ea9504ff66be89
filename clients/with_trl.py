"""trl: runs of its trainers of language models, for demonstrations, preferences and rewards."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import words
from datasets import Dataset
from seeded import seed, state
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

LLAMA = {
    "vocab_size": words.VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "initializer_range": 0.5,
}  # fmt: skip
ROWS = 16


def _options(folder: str, **more: Any) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": [], "save_strategy": "no",
        "logging_steps": 1, "disable_tqdm": True, "optim": "sgd", "learning_rate": 0.05,
    } | more  # fmt: skip


def _columns(*names: str) -> Dataset:
    return Dataset.from_dict({name: words.sentences(ROWS) for name in names})


def _demonstrations(model: PreTrainedModel, folder: str, loss: str) -> Any:
    arguments = SFTConfig(**_options(folder), loss_type=loss, max_length=16)
    return SFTTrainer(model, arguments, train_dataset=_columns("text"), processing_class=words.tokenizer())


def _preferences(model: PreTrainedModel, folder: str, loss: str) -> Any:
    arguments = DPOConfig(**_options(folder), loss_type=[loss], max_length=16)
    pairs = _columns("prompt", "chosen", "rejected")
    options = {"ref_model": copy.deepcopy(model), "train_dataset": pairs, "processing_class": words.tokenizer()}
    return DPOTrainer(model, args=arguments, **options)


def _rewards(model: PreTrainedModel, folder: str, loss: str) -> Any:
    """Of answers that the model samples: how often a word of an even number comes."""

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [sum(token % 2 == 0 for token in answer) / len(answer) for answer in completion_ids]

    sampled = {"num_generations": 4, "max_completion_length": 6, "temperature": 0.8}
    arguments = GRPOConfig(**_options(folder), **sampled, loss_type=loss)
    options = {"train_dataset": _columns("prompt"), "processing_class": words.tokenizer()}
    return GRPOTrainer(model, reward, arguments, **options)


TRAINERS: dict[str, tuple[Callable[..., Any], str]] = {
    "SFT": (_demonstrations, "nll"),
    "SFT, DFT": (_demonstrations, "dft"),
    "DPO": (_preferences, "sigmoid"),
    "DPO, IPO": (_preferences, "ipo"),
    "DPO, SFT": (_preferences, "sft"),
    "GRPO": (_rewards, "grpo"),
    "GRPO, DAPO": (_rewards, "dapo"),
}


def _trained(name: str) -> dict[str, Tensor]:
    trainer_of, loss = TRAINERS[name]
    seed()
    model = LlamaForCausalLM(LlamaConfig(**LLAMA)).double()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, folder, loss)
        trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    logged = {key: [row[key] for row in rows] for key in ("loss", "entropy", "grad_norm") if key in rows[0]}
    found = {f"{name}: {key}": torch.tensor(x, dtype=torch.float64) for key, x in logged.items()}
    return found | state(name, model)


def results() -> dict[str, Tensor]:
    found = {}
    for name in TRAINERS:
        found |= _trained(name)
    return found
