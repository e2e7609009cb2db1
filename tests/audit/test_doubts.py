"""What is doubted of a captured update: a contradiction alone where there is one, else the options that exist."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from seepage import Architecture, Batch, FedAvg, FedSGD, GaussianNoise, build, open_transcript, record
from seepage.audit.capture import Capture
from seepage.audit.caveats import (
    assumed_update,
    caveats,
    compared_to_sent,
    contradiction_flags,
    contradicts,
    normalization_of_truth,
)
from seepage.audit.observe import observe_files
from seepage.audit.row import Row
from seepage.base.registry import Spec
from seepage.federation.types import Transcript

INPUTS = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


FAR = Row.model_validate({"case": "a", "attack": "x", "outcome": "not_scored", "returned": 2, "misfit": 0.2})


def seen(use: str, client: FedSGD | FedAvg) -> Transcript:
    return record(build(Architecture(use), (3, 16, 16), 10), Batch(INPUTS, torch.tensor([1, 4])), client=client)


def test_a_batch_size_that_cannot_be_is_not_followed_by_what_else_may_be_wrong() -> None:
    transcript = seen("fc2", FedSGD())
    (wrong,) = caveats(transcript, [], at_once=4)
    assert wrong.startswith("Questioned")  # the two classes that are named are no second way
    assert "rank 4, which one step of SGD on 2 examples cannot give" in wrong
    (general,) = caveats(transcript, [FAR], at_once=2)
    assert general.startswith("No attack here explains the update with the client settings that were stated.")


@pytest.mark.slow
def test_only_options_that_fit_the_update_are_named() -> None:
    (gradient,) = caveats(seen("fc2", FedSGD(loss="mse")), [FAR], None)
    assert "mse (--loss), 2 examples (--batch-size)" in gradient
    assert "--lr" not in gradient, "a gradient has no learning rate"
    assert gradient.count(". ") == 1
    (steps,) = caveats(seen("resnet", FedAvg(lr=0.1, steps=3)), [FAR], None)
    assert "3 steps of SGD at a learning rate of 0.1 (--lr, --steps, --client)" in steps
    assert "batch norm in train mode (--set client.mode=…)" in steps


def test_nothing_is_doubted_where_guesses_give_the_update() -> None:
    transcript = seen("fc2", FedSGD())
    assert caveats(transcript, [FAR.model_copy(update={"misfit": 1e-6})], None) == []
    assert len(caveats(transcript, [FAR], None)) == 1


def test_no_attack_is_called_weak_where_none_ran() -> None:
    away = Row.model_validate({"case": "a", "attack": "x", "outcome": "not_tried"})
    transcript = seen("fc2", FedSGD())
    assert caveats(transcript, [away], None) == []
    (only,) = caveats(transcript, [away], None, {"another rate": "moved as at 0.2"})
    assert only.startswith("No attack ran. What the files show may be why: another learning rate")


def test_smoothed_labels_and_class_weights_belong_to_the_loss() -> None:
    assert assumed_update(seen("fc2", FedSGD(label_smoothing=0.1))).endswith(
        "cross_entropy with labels smoothed by 0.1"
    )
    assert assumed_update(seen("fc2", FedSGD(class_weights=(1.0,) * 10))).endswith("cross_entropy with class weights")


def test_a_truth_that_gives_another_update_contradicts_what_was_told() -> None:
    """The guesses of an attack were blamed, or its objective, though the rule that was stated was not the client's."""
    batch = Batch(INPUTS, torch.tensor([1, 4]))
    clipped = record(build(Architecture("fc2"), (3, 16, 16), 10), batch, defense=GaussianNoise(sigma=0.0, clip=0.01))
    (short,) = caveats(clipped, [FAR], None, off=compared_to_sent(clipped, batch))
    assert short.startswith("Contradicted by the truth: the update that was sent is 0.0")
    assert "client.clip_norm" in short
    off = compared_to_sent(clipped, Batch(INPUTS / 2, batch.labels))
    (other,) = caveats(clipped, [FAR.model_copy(update={"misfit": 1e-6})], None, off=off)
    assert other.startswith("Contradicted by the truth: the update of the true examples is off by")
    assert "(--loss)" in other
    plain = seen("fc2", FedSGD())
    near = FAR.model_copy(update={"misfit": 1e-6})
    assert caveats(plain, [near], None, off=compared_to_sent(plain, batch)) == []


@pytest.mark.parametrize(("optimizer", "options"), [
    (torch.optim.Adam, {"weight_decay": 1e-3}), (torch.optim.Adam, {}), (torch.optim.AdamW, {}),
    (torch.optim.RMSprop, {"weight_decay": 1e-2}),
])  # fmt: skip
@pytest.mark.full
def test_a_decay_inside_of_an_optimizer_that_was_stated_contradicts_nothing(
    tmp_path: Path, optimizer: Any, options: dict[str, float]
) -> None:
    model, inputs = build(Architecture("fc2"), (3, 16, 16), 10), INPUTS
    torch.save(model.state_dict(), tmp_path / "before.pt")
    batch = Batch(inputs, torch.tensor([1, 4]))
    F.cross_entropy(model(inputs), batch.labels).backward()
    optimizer(model.parameters(), 1e-3, **options).step()
    torch.save(model.state_dict(), tmp_path / "after.pt")
    own = {"lr": 1e-3, "steps": 1, "optimizer": optimizer.__name__.lower(), **options}
    capture = Capture(
        before=tmp_path / "before.pt", after=tmp_path / "after.pt", architecture=Architecture("fc2"), batch_size=2,
        input_shape=(3, 16, 16), client=Spec("fedavg", own),
    )  # fmt: skip
    observe_files(capture, tmp_path / "observed")
    seen = open_transcript(tmp_path / "observed")
    off, other = compared_to_sent(seen, batch), compared_to_sent(seen, Batch(inputs / 2, batch.labels))
    assert not contradicts(off)
    assert off is not None
    assert off[0] < 1e-3
    assert contradicts(other)


def test_a_truth_says_how_it_was_normalized() -> None:
    """Where no attack recovered anything, the verdict said so of pictures that the network had read normalized."""
    batch = Batch(INPUTS, torch.tensor([1, 4]))
    model = build(Architecture("convnet"), (3, 16, 16), 10)
    sent = record(model, replace(batch, inputs=(INPUTS - 0.5) / 0.5))
    off = compared_to_sent(sent, batch)
    assert normalization_of_truth(sent, batch) == "0.5"
    (flag,) = contradiction_flags(sent, off, {})
    assert flag.name == "contradicted-by-truth"
    (words,) = caveats(sent, [FAR], None, off=off, under="0.5")
    assert "--normalize 0.5 " in words
    odd = record(model, replace(batch, inputs=(INPUTS - 0.37) / 0.21))
    assert normalization_of_truth(odd, batch) is None
    assert contradiction_flags(record(model, batch), compared_to_sent(record(model, batch), batch), {}) == []
