"""What the attacks share: cuts of a network, certificates, and rows that agree."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from seepage import Architecture, Batch, build, record
from seepage.attacks.base import Checkpoint, Silent, run_resumable
from seepage.attacks.cpa.ica import zero_share
from seepage.attacks.network import AttackedRound, NetworkCut, best_labels, vouch
from seepage.attacks.reading.equations import Known
from seepage.attacks.rgap.chain import Chain, activation_of
from seepage.base.algebra.rows import first_of_each, groups, same_rows
from seepage.base.checkpoint import Resumable
from seepage.base.nn import state_of
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.federation.types import Round, Update


def attacked(images: torch.Tensor, labels: torch.Tensor, *, scale: float = 1.0) -> AttackedRound:
    """A round whose update is so many times the client's own."""
    seen = record(build(Architecture("fc2", {"hidden": 24}), (1, 4, 4), 5), Batch(images, labels))
    sent = {name: scale * tensor for name, tensor in seen[0].update.tensors.items()}
    return AttackedRound(seen.knowledge, Round(0, seen[0].params, Update(sent), batch_size=len(images)))


@pytest.mark.parametrize("scale", [0.25, 1.0, 3.0])
def test_the_own_update_vouches_for_the_truth_and_for_its_multiple_if_asked(scale: float) -> None:
    images, labels = torch.rand(2, 1, 4, 4), torch.tensor([1, 3])
    seen = attacked(images, labels, scale=scale)
    off, multiple = vouch(seen, images, labels, multiple=None)
    assert off < 1e-6
    assert multiple == pytest.approx(scale, rel=1e-6)
    # |u - s u| / |s u|
    assert vouch(seen, images, labels)[0] == pytest.approx(abs(1 - scale) / scale, abs=1e-6)
    assert vouch(seen, images.flip(0), labels, multiple=None)[0] > 0.1


def test_an_update_that_points_away_is_no_multiple() -> None:
    images, labels = torch.rand(1, 1, 4, 4), torch.tensor([2])
    assert vouch(attacked(images, labels, scale=-1.0), images, labels, multiple=None) == (pytest.approx(2.0), 1.0)


def test_a_cut_names_the_label_whose_slopes_were_sent() -> None:
    images, labels = torch.rand(6, 1, 4, 4), torch.tensor([0, 4, 2, 2, 1, 3])
    seen = attacked(images, labels)
    names = [name for name, module in seen.model.named_modules() if isinstance(module, nn.Linear)]
    _, calls = seen.forward(images.double().requires_grad_(), names[:1], exact=True)
    outputs = calls[names[0]][0].output.detach()
    cut = NetworkCut.at(seen, names[0])
    leaf = outputs.clone().requires_grad_()
    (sent,) = torch.autograd.grad(F.cross_entropy(cut.logits(leaf), labels, reduction="sum"), leaf)
    found, mismatch = cut.nearest_labels(outputs, sent)
    assert found.tolist() == labels.tolist()
    assert float(mismatch.max()) < 1e-12


def test_no_finite_mismatch_names_the_first_label_and_says_so() -> None:
    labels, mismatch = best_labels(torch.tensor([torch.nan, float(label)]) for label in (3, 1, 2))
    assert labels.tolist() == [0, 1]
    assert mismatch.tolist() == [torch.inf, 1.0]


def test_a_chain_takes_slopes_back_as_its_matrices_do() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(27, 4))
    chain = Chain.of(net, state_of(net)[0], (2, 6, 6))
    images, labels = torch.rand(3, 72).double(), torch.tensor([0, 3, 1])
    passed = chain.run(0, images)
    assert torch.allclose(passed.outputs[-1], net(images.float().view(3, 2, 6, 6)).double(), atol=1e-5)
    for layer, made in zip(chain.maps, passed.outputs, strict=True):
        assert torch.allclose(layer.pulled_back(made), made @ layer.matrix())
    leaf = passed.reading(1).clone().requires_grad_()
    (own,) = torch.autograd.grad(F.cross_entropy(chain.run(1, leaf).outputs[-1], labels, reduction="sum"), leaf)
    assert torch.allclose(chain.slopes(passed, labels)[0], own * (1 - passed.reading(1).square()))


def test_groups_take_the_first_first() -> None:
    # 0-1, 1-2-3 with 1 in both; 4 alone.
    near = torch.eye(5, dtype=torch.bool)
    for one, other in ((0, 1), (1, 2), (1, 3), (2, 3)):
        near[one, other] = near[other, one] = True
    assert [own.nonzero()[:, 0].tolist() for _, own in groups(near, least=1)] == [[0, 1], [2, 3], [4]]
    assert [own.nonzero()[:, 0].tolist() for _, own in groups(near, least=2)] == [[0, 1], [2, 3]]
    # 2 is near 1 alone, which is left out for 0: so 2 stays, and 3 is near it.
    assert first_of_each(near).tolist() == [True, False, True, False, True]


def test_rows_are_found_again_each_once() -> None:
    rows = torch.rand(5, 3) + 0.1
    found = same_rows(rows[[4, 0]], rows)
    assert found.tolist() == [4, 0]
    assert same_rows(rows[[1, 1]], rows) is None
    assert same_rows(torch.zeros(1, 3), torch.zeros(2, 3)) is None
    assert same_rows(1.00001 * rows[[2]], rows) is not None
    assert same_rows(1.01 * rows[[2]], rows) is None  # no rounding of a network is so large


def test_a_case_runs_at_weights_of_its_own_in_float64() -> None:
    images, labels = torch.rand(2, 1, 4, 4), torch.tensor([1, 0])
    seen = attacked(images, labels)
    params, _ = seen.exact
    assert {tensor.dtype for tensor in params.values()} == {torch.float64}
    logits, calls = seen.forward(images.double(), exact=True)
    assert not calls
    assert torch.allclose(logits, seen.forward(images)[0].double(), atol=1e-5)


@pytest.mark.parametrize(("share", "zero"), [(0.5, True), (2.0, False)])
def test_one_threshold_says_what_is_zero_behind_a_relu(share: float, zero: bool) -> None:
    values = torch.tensor([1.0, share * FLOAT32_NETWORK], dtype=torch.float64)
    assert float(zero_share(values[None])) == (0.5 if zero else 0.0)
    relu = activation_of(nn.ReLU())
    assert relu.known(values).tolist() == [True, not zero]
    read = Known.of_reading(values.view(1, 1, 1, 2), torch.ones(1, dtype=torch.bool))
    assert read.on.flatten().tolist() == [True, not zero]


class Counting(Resumable):
    """A search whose objective is the sum of the numbers of its steps."""

    kept = ("total", "history")

    def __init__(self) -> None:
        self.total = 0.0
        self.history: list[tuple[int, float]] = []

    def note(self, step: int, value: float) -> None:
        self.history.append((step, value))


class OneCheckpoint(Silent):
    kept: Checkpoint | None = None
    reported = 0

    def load(self) -> Checkpoint | None:
        return self.kept

    def save(self, checkpoint: Checkpoint) -> None:
        self.kept = checkpoint

    def report(self, done: int, total: int, objective: float) -> None:
        self.reported += 1


def test_a_resumed_search_ends_where_a_whole_one_does() -> None:
    def run(search: Counting, progress: Silent, stop: int | None = None) -> tuple[int, bool]:
        def advance(step: int) -> float:
            if step == stop:
                raise KeyboardInterrupt
            search.total += step
            return search.total

        return run_resumable(search, 10, advance, progress, note=search.note, every=3)

    whole, progress = Counting(), OneCheckpoint()
    assert run(whole, Silent()) == (10, False)
    assert whole.history == [(3, 3.0), (6, 15.0), (9, 36.0), (10, 45.0)]
    assert run(Counting(), progress, stop=8) == (8, True)
    assert progress.kept.facts["step"] == 6
    resumed = Counting()
    assert run(resumed, progress) == (10, False)
    assert (resumed.total, resumed.history) == (whole.total, whole.history)
    assert progress.reported == 4
    ended = run_resumable(Counting(), 10, lambda step: 0.0, Silent(), ended=lambda: True)
    assert ended == (0, False)
