"""What is doubted of a captured update: a contradiction alone where there is one, else the options that exist."""

import torch

from seepage import Architecture, Batch, FedAvg, FedSGD, GaussianNoise, build, record
from seepage.audit.caveats import assumed_update, caveats, compared_to_sent
from seepage.audit.row import Row
from seepage.federation.types import Transcript

INPUTS = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


FAR = Row.model_validate({"case": "a", "attack": "x", "outcome": "not_scored", "returned": 2, "misfit": 0.2})


def seen(use: str, client: FedSGD | FedAvg) -> Transcript:
    return record(build(Architecture(use), (3, 16, 16), 10), Batch(INPUTS, torch.tensor([1, 4])), client=client)


def test_a_batch_size_that_cannot_be_is_not_followed_by_what_else_may_be_wrong() -> None:
    transcript = seen("fc2", FedSGD())
    (wrong,) = caveats(transcript, [], at_least=4)
    assert wrong.startswith("Questioned")  # the two classes that are named are no second way
    assert "rank 4, which one step of SGD on 2 examples cannot give" in wrong
    (general,) = caveats(transcript, [FAR], at_least=2)
    assert general.startswith("No attack here explains the update with the client settings that were stated.")


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
