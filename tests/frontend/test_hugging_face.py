"""The recipe's loss function in models of transformers, where that is installed: their own loss and gradients."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes" / "language-models.md"


@pytest.fixture(scope="module")
def loss_function() -> Any:
    """As the page defines it."""
    (found,) = re.findall(r"^def loss_function\(.*?(?=^\S)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec("import torch\nimport torch.nn.functional as F\nimport cudaloss\n" + found, names)
    return names["loss_function"]


def small_model(kind: str) -> Any:
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    else:
        config = transformers.LlamaConfig(**sizes, intermediate_size=48, max_position_embeddings=32)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("items", [None, 50], ids=["mean", "of the whole batch"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_loss_and_gradients_are_the_models_own(kind: str, items: int | None, loss_function: Any) -> None:
    theirs = small_model(kind)
    ours = copy.deepcopy(theirs)
    ours.loss_function = loss_function
    tokens = torch.randint(97, (3, 17))
    labels = tokens.clone()
    labels[0, 9:] = labels[2, :4] = -100
    found = []
    for model in (ours, theirs):
        loss = model(input_ids=tokens, labels=labels, num_items_in_batch=items and torch.tensor(items)).loss
        loss.backward()
        found.append((loss.detach(), [x.grad for x in model.parameters() if x.grad is not None]))
    torch.testing.assert_close(*found)
