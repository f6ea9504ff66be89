"""Distils a network for scikit-learn's digits into one with 70 times fewer parameters, by the teacher's stored answers.

The teacher (Hinton et al. 2015, Distilling the Knowledge in a Neural Network) is trained on all 1,500 images with their
labels. Its logits are stored in float16, for three images in four: the others have none, and their rows hold NaN. The
student gets 50 labels, and the answers at a temperature of 4. Most rows have an answer and no label, some have a
label alone, some neither; the two losses leave out what is missing. The claims, each checked, with a raised error where
it fails:

* value and gradient of ``cudaloss.kl_div_with_logits(student, teacher, temperature=4.0, mask=answered)`` are those of
  PyTorch's ``F.kl_div(log_softmax(student / 4), log_softmax(teacher / 4), log_target=True, reduction="batchmean") *
  4**2`` on the answered rows in float64, to 1e-6, at every training step;
* a student with the teacher is right more often on held-out digits than one of the same first weights and batches
  without, and its answers are nearer to the teacher's.

Needs scikit-learn, matplotlib and rich::

    python examples/distillation.py
    python examples/distillation.py --quick
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

TEMPERATURE = 4.0
TEACHER, STUDENT = 256, 16  # units of a hidden layer
LABELS = 5  # of each digit, for the students
ANSWERED = 0.75  # share of the images that the teacher has answered
BATCH = 100
NO_LABEL = -100  # cross_entropy's ignore_index, as it is


def teacher() -> nn.Module:
    hidden = nn.Linear(64, TEACHER), nn.ReLU(), nn.Linear(TEACHER, TEACHER), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(TEACHER, 10))


def student() -> nn.Module:
    return nn.Sequential(nn.Linear(64, STUDENT), nn.ReLU(), nn.Linear(STUDENT, 10))


def parameters(model: nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


def few(labels: Tensor, generator: torch.Generator) -> Tensor:
    """The labels of LABELS random images of each digit, NO_LABEL in the place of all others."""
    order = torch.randperm(len(labels), generator=generator)
    chosen = torch.cat([order[labels[order] == digit][:LABELS] for digit in range(10)])
    return torch.full_like(labels, NO_LABEL).index_copy(0, chosen, labels[chosen])


def of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the rows that have a label; 0, and not NaN, of a batch in which none has one."""
    return cudaloss.cross_entropy(logits, labels, normalizer=(labels != NO_LABEL).sum().clamp(min=1))


def of_answers(logits: Tensor, answers: Tensor, answered: Tensor) -> Tensor:
    """The recipe: the mean over the rows that have an answer. What the other rows hold does not matter."""
    return cudaloss.kl_div_with_logits(logits, answers, temperature=TEMPERATURE, mask=answered)


def composed(logits: Tensor, answers: Tensor, answered: Tensor) -> Tensor:
    """The usual composition, in float64: in float32 it loses digits where both answers are nearly alike."""
    log_q, log_p = (F.log_softmax(x[answered].double() / TEMPERATURE, 1) for x in (logits, answers))
    return F.kl_div(log_q, log_p, log_target=True, reduction="batchmean") * TEMPERATURE**2


Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def with_teacher(compared: scaffold.Compared) -> Loss:
    def loss(logits: Tensor, labels: Tensor, answers: Tensor, answered: Tensor) -> Tensor:
        return of_labels(logits, labels) + compared(logits, answers, answered)

    return loss


def alone(logits: Tensor, labels: Tensor, answers: Tensor, answered: Tensor) -> Tensor:
    return of_labels(logits, labels)


def draw(right: dict[str, Tensor], labels: Tensor, losses: dict[str, list[float]], path: Path) -> None:
    figure = Figure((11, 4), layout="constrained")
    left, curves = figure.subplots(1, 2)
    for name, is_right in right.items():
        left.plot([is_right[labels == digit].float().mean().item() for digit in range(10)], "o-", label=name)
    left.set(xlabel="digit", ylabel="share of the held-out digits that are right", ylim=(0, 1), xticks=range(10))
    left.legend()
    scaffold.show_curves(curves, losses, "loss")
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Distil a classifier of digits.", 1500, quick=250)
    seed, real, generator = arguments.seed, scaffold.digits(), torch.Generator().manual_seed(arguments.seed)
    large = scaffold.seeded(teacher, seed)
    taught = scaffold.batches((real.images, real.labels), BATCH, seed)
    scaffold.train(large, taught, cudaloss.cross_entropy, arguments.steps, "teacher", 1e-3)
    with torch.no_grad():  # the teacher is not trained any more: its logits are data
        answers, truth = large(real.images).half(), large(real.held_out)
    answered = torch.rand(len(answers), generator=generator) < ANSWERED
    answers[~answered] = torch.nan
    labels = few(real.labels, generator)

    compared = scaffold.Compared(of_answers, composed)
    models, curves = {"teacher": large}, {}
    for name, loss in {"student with the teacher": with_teacher(compared), "student alone": alone}.items():
        models[name] = scaffold.seeded(student, seed)
        data = scaffold.batches((real.images, labels, answers, answered), BATCH, seed)
        curves[name] = scaffold.train(models[name], data, loss, arguments.steps, name)

    right, apart, rows = {}, {}, []
    for name, model in models.items():
        with torch.no_grad():
            logits = model(real.held_out)
        right[name] = logits.argmax(1) == real.held_out_labels
        apart[name] = cudaloss.kl_div_with_logits(logits, truth).item()
        rows.append((name, f"{parameters(model):,}", f"{right[name].float().mean():.1%}", f"{apart[name]:.3f}"))
    columns = "network", "parameters", "right", "KL from the teacher"
    scaffold.show_table(f"{scaffold.HELD_OUT} held-out digits", columns, rows)
    _, ours, without = models
    say(f"{int(answered.sum())} of {len(answered)} images have an answer, {int((labels != NO_LABEL).sum())} a label")
    draw(right, real.held_out_labels, curves, arguments.output)

    compared.require_within(1e-6, "PyTorch's composition in float64")
    require(int(right[ours].sum()) > int(right[without].sum()), "with the teacher more digits are right")
    require(apart[ours] < apart[without], "the student with the teacher is nearer to the teacher")


if __name__ == "__main__":
    main()
