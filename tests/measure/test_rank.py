"""The account of what was sent, and of what nobody sees, against the Jacobian as a plain matrix."""

import pytest
import torch
from torch import Tensor, nn

from seepage.base.nn import state_of
from seepage.federation.clients import FedSGD
from seepage.federation.defenses import Sparsify
from seepage.federation.defenses.partial import Withhold
from seepage.federation.types import Batch, Defense
from seepage.measure.bounds import BoundOptions, upper_bounds
from seepage.measure.bounds.bound import Bound
from seepage.measure.bounds.van_trees import decibels


def matrix_of(model: nn.Module, batch: Batch, names: list[str]) -> Tensor:
    """`[numbers, values]` by PyTorch's own function, with nothing of this package but the gradient."""
    model = model.double()
    params, _ = state_of(model)

    def update(x: Tensor) -> Tensor:
        made = FedSGD()(model, params, Batch(x, batch.labels), create_graph=True).tensors
        return torch.cat([made[name].flatten() for name in names])

    found: Tensor = torch.autograd.functional.jacobian(update, batch.inputs.double())
    return found.flatten(1)


def account(model: nn.Module, batch: Batch, defense: Defense | None = None) -> tuple[Bound, Bound]:
    found = upper_bounds(model, batch, defense=defense)
    rank, hidden = found.of("rank"), found.of("unseen_share")
    assert rank is not None
    assert hidden is not None
    return rank, hidden


def dead_unit_case() -> tuple[nn.Module, Batch]:
    """Three ReLU units, of which one is dead on both examples and one on the second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 4))
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor([5.0, -50.0, 5.0]))
    return model, Batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 3]))


@pytest.mark.parametrize("withheld", [[], ["1.*"], ["1.*", "3.weight"]])
def test_rank_and_hidden_share_are_those_of_the_matrix(withheld: list[str]) -> None:
    model, batch = dead_unit_case()
    names = [n for n, _ in model.named_parameters() if not any(n.startswith(w.rstrip("*")) for w in withheld)]
    matrix = matrix_of(model, batch, names)
    rank, hidden = account(model, batch, Withhold(tensors=withheld) if withheld else None)
    assert rank.value == int(torch.linalg.matrix_rank(matrix, rtol=1e-6))
    null = torch.eye(32, dtype=torch.float64) - torch.linalg.pinv(matrix, rtol=1e-6) @ matrix
    for number, share in enumerate(hidden.examples):
        alone = torch.zeros(2, 16, dtype=torch.float64)
        alone[number] = batch.inputs[number].double().flatten()
        left = (null @ alone.flatten()).square().sum() / alone.square().sum()
        assert share == pytest.approx(float(left), abs=1e-6)
    torch.testing.assert_close(hidden.pixels.flatten(), null.diagonal(), atol=1e-6, rtol=0)


def test_pixels_between_the_strides_are_hidden() -> None:
    """A convolution of one pixel and stride two reads a quarter of the picture; whoever sees the update sees that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 1, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(6 * 9, 10))
    batch = Batch(torch.rand(1, 1, 6, 6), torch.tensor([1]))
    for size in (2048, 10):  # the whole matrix, and counts alone
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("seepage.measure.bounds.upper.DENSE", size)
            rank, hidden = account(model, batch)
        assert rank.value == 9
        seen = torch.zeros(1, 1, 6, 6, dtype=torch.bool)
        seen[..., ::2, ::2] = True
        torch.testing.assert_close(hidden.pixels[~seen], torch.ones(27, dtype=torch.float64))
        torch.testing.assert_close(hidden.pixels[seen], torch.zeros(9, dtype=torch.float64), atol=1e-6, rtol=0)
        share = batch.inputs[~seen].square().sum() / batch.inputs.square().sum()
        assert hidden.value == pytest.approx(float(share), rel=1e-5)


def test_only_entries_that_were_sent_count() -> None:
    model, batch = dead_unit_case()
    whole, sparse = (account(model, batch, defense)[0] for defense in (None, Sparsify(keep=0.05)))
    assert sparse.value < whole.value
    assert "67 numbers were sent of 32" in whole.assumption
    assert "5 numbers were sent of 32" in sparse.assumption  # at least one of each tensor


def test_numbers_limit_the_picture_where_nothing_else_does() -> None:
    """Ten numbers about 784: an attacker who reads the ten best directions of the public pictures is left the rest."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    draw = torch.Generator().manual_seed(0)
    patterns = torch.randn(30, 784, generator=draw) * torch.linspace(1, 0.1, 30)[:, None]
    pictures = 0.5 + 0.02 * torch.randn(301, 30, generator=draw) @ patterns
    pictures = pictures.reshape(-1, 1, 28, 28)
    batch, public = Batch(pictures[:1], torch.tensor([3])), Batch(pictures[1:], torch.zeros(300).long())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seepage.measure.bounds.upper.DENSE", 10)
        found = upper_bounds(model, batch, sent=["1.bias"], options=BoundOptions(public=public))
    bound = found.of("psnr_db")
    assert bound is not None
    # The oracle: the best ten directions of other pictures of the kind, chosen on themselves.
    rows = pictures[1:].flatten(1) - pictures[1:].flatten(1).mean(1, keepdim=True)
    basis = torch.linalg.svd(rows, full_matrices=False).Vh[:10]
    own = (pictures[:1] - pictures[:1].mean()).flatten()
    left = (rows - rows @ basis.T @ basis).square().sum() / rows.square().sum() * own.square().sum() / 784
    assert bound.value == pytest.approx(decibels(float(left)), abs=1.0)
    assert any("only limited by counts" in reason for reason in found.reasons)


def test_words_of_a_bound() -> None:
    hidden = Bound("unseen_share", "rank", 0.25, (0.25, 0.25), "so.", "all")
    assert hidden.line == "energy that no attacker sees: at least 25 %"
    assert Bound("unseen_share", "rank", 0.0, (0.0, 0.0), "so.", "all").vacuous
    assert Bound("tpr", "membership", 1.0, (1.0, 1.0), "so.", "all", at=0.01).line == "members identified: not bounded"
    assert "pixels" not in hidden.table()


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        (nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), torch.tensor([[1, 2, 3]]), "whole numbers"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 5_000_001)), torch.rand(1, 1, 2, 2), "25,000,005 parameters"),
    ],
)
def test_what_is_not_differentiated_says_so(model: nn.Module, inputs: Tensor, words: str) -> None:
    found = upper_bounds(model, Batch(inputs, torch.tensor([0])))
    assert not found.bounds
    assert any(words in reason for reason in found.reasons)
