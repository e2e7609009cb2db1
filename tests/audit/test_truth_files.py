"""Truths as strangers have them: autoencoders with class numbers beside, pictures in the range of bytes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seepage import Batch, FedSGD, SeepageError, record
from seepage.attacks import LinearLeak
from seepage.audit.caveats import compared_to_sent
from seepage.audit.summary import _of_own_loss, _opened
from seepage.federation.clients.losses import check_target, loss_of
from seepage.measure.metrics.score import score


def test_an_autoencoders_truth_needs_no_labels(tmp_path: Path) -> None:
    """Its own numbers are what it is trained towards; class numbers in the file were refused."""
    x = torch.rand(2, 12, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 12))
    seen = record(model, Batch(x, x), client=FedSGD(loss="mse", target="input"))
    np.savez(tmp_path / "truth.npz", x=x.numpy(), y=np.array([3, 1]))
    (batch,) = _opened(tmp_path / "truth.npz", seen.knowledge).batches
    assert torch.equal(batch.labels, x)
    x = x.reshape(2, 1, 3, 4)
    pictures = nn.Sequential(nn.Flatten(), *model, nn.Unflatten(1, (1, 3, 4)))
    seen = record(pictures, Batch(x, x), client=FedSGD(loss="mse", target="input"))
    np.savez(tmp_path / "pictures.npz", x=x.numpy(), y=x.numpy())
    (batch,) = _opened(tmp_path / "pictures.npz", seen.knowledge).batches
    assert torch.equal(batch.labels, x)


def test_pictures_of_bytes_are_scored_after_values_is_stated(tmp_path: Path) -> None:
    """The advice was `--normalize`, which `report` does not take."""
    x = 255 * torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    seen = record(model, Batch(x / 255, torch.tensor([1])))
    np.savez(tmp_path / "truth.npz", x=x.numpy(), y=np.array([1]))
    (batch,) = _opened(tmp_path / "truth.npz", seen.knowledge).batches
    assert torch.equal(batch.inputs, x)
    with pytest.raises(SeepageError, match="--values="):
        score(LinearLeak()(seen, seed=0), batch)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def test_a_loss_of_ones_own_compares_each_picture_with_its_own() -> None:
    """Maps `[n, h, w]` beside outputs `[n, 1, h, w]` were spread over one another, with a warning."""
    outputs, targets = torch.rand(2, 1, 3, 3), torch.rand(2, 3, 3)
    own = loss_of(f"tests.audit.{Path(__file__).stem}:squares", outputs, targets)
    assert float(own) == pytest.approx(float(F.mse_loss(outputs[:, 0], targets)))


@pytest.mark.parametrize(("loss", "classes"), [("mse", 3), ("cross_entropy", 1)])
def test_numbers_at_each_place_are_stated_by_target_value(loss: str, classes: int) -> None:
    with pytest.raises(SeepageError, match="--target value"):
        check_target(loss, "map", classes)
    check_target("mse", "value", classes)


class Towers(nn.Module):
    """Users and items, each with a table of its own, and one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item, self.head = nn.Embedding(8, 4), nn.Embedding(20, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(torch.cat([self.user(x[:, 0]), self.item(x[:, 1])], 1))
        return made


def test_codes_of_unlike_tables_have_labels_of_one_logit(tmp_path: Path) -> None:
    """Clicks of 0. and 1. were refused, and items beyond the number of users."""
    x, y = torch.tensor([[3, 17], [3, 5]]), torch.tensor([1, 0])
    seen = record(Towers(), Batch(x, y), client=FedSGD(loss="binary"))
    np.savez(tmp_path / "truth.npz", x=x.numpy(), y=y.float().numpy())
    (batch,) = _opened(tmp_path / "truth.npz", seen.knowledge).batches
    assert torch.equal(batch.inputs, x)
    assert torch.equal(batch.labels, y)


def of_three(outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
    return sum((F.cross_entropy(one, targets[:, k]) for k, one in enumerate(outputs)), torch.zeros(()))


def test_labels_of_several_heads_are_taken_as_they_are(tmp_path: Path) -> None:
    """They were refused as class numbers; and a loss of all outputs ended the scoring of examples."""
    x, y = torch.rand(2, 12), torch.tensor([[0, 2], [1, 2]])
    own = f"tests.audit.{Path(__file__).stem}:of_three"
    seen = record(nn.Linear(12, 3), Batch(x, y[:, 0]), client=FedSGD())
    seen = replace(seen, knowledge=replace(seen.knowledge, client=FedSGD(loss=own)))
    np.savez(tmp_path / "truth.npz", x=x.numpy(), y=y.numpy())
    (batch,) = _opened(tmp_path / "truth.npz", seen.knowledge).batches
    assert torch.equal(batch.labels, y)
    assert _of_own_loss(compared_to_sent, seen, batch) is None


def test_a_class_at_one_place_is_a_class(tmp_path: Path) -> None:
    """Logits `[n, classes, 1]` refused a class for each example."""
    x, y = torch.rand(2, 12), torch.tensor([0, 2])
    model = nn.Sequential(nn.Linear(12, 3), nn.Unflatten(1, (3, 1)))
    seen = record(model, Batch(x, y[:, None]))
    seen = replace(seen, knowledge=replace(seen.knowledge, target="map"))
    np.savez(tmp_path / "truth.npz", x=x.numpy(), y=y.numpy())
    (batch,) = _opened(tmp_path / "truth.npz", seen.knowledge).batches
    assert torch.equal(batch.labels, y[:, None])
