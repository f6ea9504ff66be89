"""Teaches small language models from a large one: from its stored likeliest words, and from its hidden states.

The teacher and its language are made up: a word follows a pair of words, by random weights. No text is read. One
student learns from the teacher's 24 likeliest words of 512, which were stored as int16 indices and float16
probabilities, for three pairs in four. Another learns from the teacher's hidden states and its head's weight, without
the logits of either. A third learns from the words alone. The claims, each checked, with a raised error where it fails:

* value and gradients (of the states and of the head's weight) of ``cudaloss.linear_sparse_cross_entropy`` and of
  ``cudaloss.linear_jsd_with_logits`` are those of ``log_softmax`` of the logits in float64, to 1e-4, at every step;
* what is stored takes less than a tenth of the teacher's logits in float16;
* both students' answers to new pairs are nearer to the teacher's than those of the third.

Needs scikit-learn, matplotlib and rich; ``--quick`` takes fewer steps::

    python examples/head_distillation.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

WORDS, TEACHER, STUDENT = 512, 64, 32  # the last two: features
KEPT, ANSWERED, TEMPERATURE = 24, 0.75, 1.5
PAIRS, BATCH = 20_000, 200


class Model(nn.Module):
    """Its forward ends before the head: the losses take the head's weight."""

    def __init__(self, width: int, sharpness: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * WORDS, width)
        self.head = nn.Linear(width, WORDS, bias=False)
        nn.init.normal_(self.head.weight, std=sharpness / width**0.5)

    def forward(self, pairs: Tensor) -> Tensor:
        return torch.tanh(self.embed(pairs + torch.tensor([0, WORDS])).sum(1))


def of_stored(hidden: Tensor, weight: Tensor, indices: Tensor, probabilities: Tensor, answered: Tensor) -> Tensor:
    """The recipe: the stored dtypes as they are, and only the pairs that have an answer."""
    of = hidden, weight, indices, probabilities
    return cudaloss.linear_sparse_cross_entropy(*of, temperature=TEMPERATURE, mask=answered, memory="least")


def of_states(hidden: Tensor, weight: Tensor, states: Tensor, of_teacher: Tensor) -> Tensor:
    """The recipe: the teacher's last hidden states, and its head's weight."""
    return cudaloss.linear_jsd_with_logits(hidden, weight, states, of_teacher, beta=0.5, temperature=TEMPERATURE)


def logs_of(hidden: Tensor, weight: Tensor) -> Tensor:
    return (F.linear(hidden.double(), weight.double()) / TEMPERATURE).log_softmax(1)


def plain_stored(hidden: Tensor, weight: Tensor, indices: Tensor, probabilities: Tensor, answered: Tensor) -> Tensor:
    logs = logs_of(hidden, weight).gather(1, indices.long())
    return -(probabilities.double() * logs).sum(1)[answered].mean()


def plain_states(hidden: Tensor, weight: Tensor, states: Tensor, of_teacher: Tensor) -> Tensor:
    both = torch.stack([logs_of(hidden, weight), logs_of(states, of_teacher)])
    apart = both.exp() * (both - both.exp().mean(0).log())
    return apart.sum(2).mean() * TEMPERATURE**2


def main() -> None:
    arguments = scaffold.options(__file__, "Teach language models from a large one.", 800, quick=80)
    generator = torch.Generator().manual_seed(arguments.seed)
    teacher = scaffold.seeded(lambda: Model(TEACHER, 3.0), arguments.seed)
    pairs, new = (torch.randint(WORDS, (count, 2), generator=generator) for count in (PAIRS, 500))
    with torch.no_grad():  # the teacher is frozen
        states, of_teacher, logits = teacher(pairs), teacher.head.weight.detach(), teacher.head(teacher(pairs))
        top = (logits / TEMPERATURE).softmax(1).topk(KEPT)
        truth = teacher.head(teacher(new))
    stored = top.indices.short(), top.values.half()
    answered = torch.rand(PAIRS, generator=generator) < ANSWERED
    words = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    share = sum(x.numel() * x.element_size() for x in stored) / (2 * logits.numel())
    say(f"{KEPT} of {WORDS} words have {top.values.sum(1).mean():.0%} of the probability, in {share:.3f} of the memory")

    stored_words, hidden_states = (of_stored, plain_stored, 0.0, 2), (of_states, plain_states, 1e-3, 2)
    losses = {"stored words": scaffold.Compared(*stored_words), "hidden states": scaffold.Compared(*hidden_states)}
    data = {"stored words": (*stored, answered), "hidden states": (states,), "words alone": (words,)}
    of_all = {
        "stored words": losses["stored words"],
        "hidden states": lambda hidden, weight, own: losses["hidden states"](hidden, weight, own, of_teacher),
        "words alone": cudaloss.linear_cross_entropy,
    }
    curves, apart = {}, {}
    for name, loss in of_all.items():
        student = scaffold.seeded(lambda: Model(STUDENT, 1.0), arguments.seed)
        batches = scaffold.batches((pairs, *data[name]), BATCH, arguments.seed)

        def batch_loss(student=student, batches=batches, loss=loss) -> Tensor:
            seen, *target = next(batches)
            return loss(student(seen), student.head.weight, *target)

        schedule = scaffold.one_cycle(student, 2e-2, arguments.steps)
        curves[name] = scaffold.fit(schedule, batch_loss, arguments.steps, name)
        with torch.no_grad():
            apart[name] = cudaloss.kl_div_with_logits(student.head(student(new)), truth).item()
        say(f"{name}: {apart[name]:.3f} nats from the teacher, on new pairs")
    figure = Figure((6, 4), layout="constrained")
    scaffold.show_curves(figure.subplots(), curves, "loss of a batch")
    scaffold.save(figure, arguments.output)

    for name, loss in losses.items():
        loss.require_within(1e-4, f"log_softmax in float64 ({name})")
    require(share < 0.1, "what is stored takes less than a tenth of the logits")
    require(max(apart["stored words"], apart["hidden states"]) < apart["words alone"], "the teacher helps")


if __name__ == "__main__":
    main()
