"""FedLeak's readings of its own algorithm, inside the engine, against plain PyTorch and central differences."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from scripts import script
from torch import Tensor

from seepage import Architecture, Batch, GradientMatching, build, record
from seepage.attacks.search import fedleak
from seepage.attacks.search.directions import Blended, Direction, Gradients, SearchPoint
from seepage.attacks.search.distances import L1, L2, Cosine, Distance, PerTensor
from seepage.attacks.search.labels import Auto, Joint
from seepage.attacks.search.objective import MatchingObjective
from seepage.attacks.search.optimizers import Adam
from seepage.attacks.search.parameters import Pixels
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.priors import TotalVariation
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator
from seepage.errors import SeepageError
from seepage.federation.types import Transcript
from seepage.testing import planted_inputs

ablations = script("fedleak_ablations")
LABELS = torch.tensor([0, 1])
QUARTER = TopMagnitude(inner=L1(), ratio=0.25)
HALF = TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5)


@dataclass(frozen=True)
class Noted(Direction):
    """Another direction, and what it said."""

    inner: Direction
    said: list[Gradients] = field(default_factory=list)

    @property
    def turns_labels(self) -> bool:  # type: ignore[override]
        return self.inner.turns_labels

    def __call__(self, gradients: Gradients, place: SearchPoint) -> Gradients:
        self.said.append(self.inner(gradients, place))
        return self.said[-1]


def victim(*, known: bool = True) -> Transcript:
    """Two examples behind a network that can be differentiated three times, in float64."""
    model = build(Architecture("convnet", {"width": 2, "activation": "gelu"}), (1, 6, 6), 4).double()
    batch = Batch(planted_inputs(2, (1, 6, 6)).double(), LABELS)
    return record(model, batch, known=["labels"] if known else ())


def first_direction(
    transcript: Transcript, direction: Direction, distance: Distance, *priors: TotalVariation
) -> Gradients:
    """What a direction makes of the gradients at the start."""
    noted = Noted(direction)
    GradientMatching(
        distance=distance,
        optimizer=Adam(lr=0.02),
        steps=1,
        priors=priors,
        labels=Auto() if transcript[0].labels is not None else Joint(),
        parameters=Pixels(start_from="uniform"),
        direction=noted,
        gradients="exact",
    )(transcript, seed=0)
    return noted.said[0]


def start(transcript: Transcript) -> Tensor:
    draw = generator(0, "start", 0)
    like = torch.ones(1, dtype=torch.float64)
    return Pixels(start_from="uniform").start(2, transcript.knowledge, like, draw).unknowns[0]


def target_of(transcript: Transcript) -> Tensor:
    gradient = transcript[0].gradient(transcript.knowledge.client)
    return torch.cat([tensor.flatten() for tensor in gradient.values()])


def dummy(transcript: Transcript, inputs: Tensor, labels: Tensor = LABELS) -> Tensor:
    """The gradient of the mean cross-entropy as one vector, by PyTorch alone."""
    model = transcript.knowledge.model
    parameters = list(model.parameters())
    loss = F.cross_entropy(model(inputs), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])


def test_half_of_the_pixels_move_where_line_5_is_taken_at_its_word() -> None:
    """Those whose slope of the whole distance is largest, by plain autograd."""
    transcript = victim()
    given = start(transcript).requires_grad_()
    gap = dummy(transcript, given) - target_of(transcript).detach()
    (slope,) = torch.autograd.grad(gap.square().sum(), given)
    found = first_direction(transcript, ablations.PixelsMasked(weight=0.0), L2())[0]
    largest = slope.abs().flatten().argsort(descending=True)[: slope.numel() // 2]
    assert set(found.flatten().nonzero()[:, 0].tolist()) == set(largest.tolist())
    assert torch.allclose(found.flatten()[largest], slope.flatten()[largest], rtol=1e-6)


def test_total_variation_as_a_sum_is_that_of_an_image() -> None:
    batch = torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(0)).tolist()
    each = [
        sum(
            abs(plane[i][j] - plane[i + di][j + dj])
            for plane in image
            for i in range(5)
            for j in range(4)
            for di, dj in ((1, 0), (0, 1))
            if i + di < 5 and j + dj < 4
        )
        for image in batch
    ]
    found = TotalVariation(0.1, unit=0.5, reduce="sum")(torch.tensor(batch)[None])
    assert found.tolist() == pytest.approx([0.1 / 0.5 * sum(each) / 2], rel=1e-5)
    assert fedleak(variation="sum").priors[0] == TotalVariation(1e-5, reduce="sum")


def test_the_hessian_times_a_vector_is_the_difference_of_slopes() -> None:
    """By central differences, of the distance over held entries and of a prior, through a change of scale."""
    transcript = victim()
    x = start(victim())
    problem = ablations.held_problem(Problem.of(transcript[0], transcript.knowledge, HALF, None), x, LABELS)
    along = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ahead, behind = (problem.evaluate(x + sign * 1e-6 * along, LABELS).by_inputs for sign in (1, -1))
    leaf = (x / 2).requires_grad_()
    objective = MatchingObjective(problem, transcript.knowledge, transcript[0], (), ())
    search = SimpleNamespace(decode=lambda: ([leaf], 2 * leaf), evaluations=0)
    run = SimpleNamespace(labels_of=lambda search: LABELS)
    place = SimpleNamespace(search=search, run=run, objective=objective, others=(), share=0.0)
    (found,) = ablations.bent(place, [along])
    # x = 2 u: the Hessian by u is four times that by x.
    assert torch.allclose(found, 4 * (ahead - behind) / 2e-6, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("priors", [(), (TotalVariation(0.1),)])
def test_the_blend_is_the_exact_penalty_where_the_step_is_small(priors: Sequence[TotalVariation]) -> None:
    transcript = victim()
    (exact,) = first_direction(transcript, ablations.Regularized(strength=0.7e-4), HALF, *priors)
    (blend,) = first_direction(transcript, ablations.EntriesKept(weight=0.7, k=1e-4), HALF, *priors)
    (plain,) = first_direction(transcript, Blended(weight=0.0), HALF, *priors)
    bent = exact - plain
    assert float((blend - exact).norm()) < 1e-2 * float(bent.norm())


def test_entries_are_kept_at_the_look_ahead() -> None:
    transcript, k = victim(), 0.3
    x, target = start(transcript).requires_grad_(), target_of(transcript)
    here = dummy(transcript, x)
    largest = here.detach().abs().argsort(descending=True)[: round(0.25 * len(here))]
    (gradient,) = torch.autograd.grad((here - target)[largest].abs().sum(), x)
    moved = (x + k * gradient / gradient.norm()).detach().requires_grad_()
    # Line 8 of Algorithm 1: D(x + phi)[Lambda] with the Lambda of x.
    (ahead,) = torch.autograd.grad((dummy(transcript, moved) - target)[largest].abs().sum(), moved)
    kept, anew = (
        first_direction(transcript, kind(weight=0.7, k=k), QUARTER)[0] for kind in (ablations.EntriesKept, Blended)
    )
    assert torch.allclose(kept, 0.3 * gradient + 0.7 * ahead, rtol=1e-9)
    assert not torch.allclose(anew, kept, rtol=1e-3)


def test_labels_are_blended_where_the_inputs_are_looked_ahead() -> None:
    transcript, k = victim(known=False), 0.3
    x, target = start(transcript).requires_grad_(), target_of(transcript)
    draw = generator(0, "start", 0)
    torch.rand(x.shape, generator=draw)
    logits = Joint().first_logits(transcript[0], transcript.knowledge, draw).double().requires_grad_()
    here = (dummy(transcript, x, logits.softmax(-1)) - target).square().sum()
    by_inputs, by_logits = torch.autograd.grad(here, (x, logits))
    moved = (x + k * by_inputs / by_inputs.norm()).detach().requires_grad_()
    there = (dummy(transcript, moved, logits.softmax(-1)) - target).square().sum()
    ahead = torch.autograd.grad(there, (moved, logits))
    found = first_direction(transcript, Blended(weight=0.7, k=k, turns_labels=True), L2())
    assert torch.allclose(found[0], 0.3 * by_inputs + 0.7 * ahead[0], rtol=1e-6)
    assert torch.allclose(found[1], 0.3 * by_logits + 0.7 * ahead[1], rtol=1e-6)
    assert len(first_direction(transcript, Blended(weight=0.7, k=k), L2())) == 1


def test_a_composed_distance_holds_what_its_parts_choose() -> None:
    """Entries chosen per tensor at one dummy, against sorting, for another dummy."""
    draw = torch.Generator().manual_seed(0)
    first, second, observed = ({n: torch.randn(s, generator=draw) for n, s in (("w", 9), ("b", 5))} for _ in range(3))
    held = ablations.held(2.0 * PerTensor(TopMagnitude(inner=L1(), ratio=0.4)) + L2(), first, observed)
    expected = sum(float((second[n] - observed[n]).square().sum()) for n in first)
    for name, count in (("w", 4), ("b", 2)):
        places = first[name].abs().argsort(descending=True)[:count]
        expected += 2 * float((second[name] - observed[name])[places].abs().sum())
    assert float(held(second, observed)) == pytest.approx(expected, rel=1e-5)


def test_the_preset_takes_each_reading() -> None:
    assert fedleak().direction == Blended(weight=0.7, k=1e-3)
    letter = ablations.fedleak_read(entries="kept", blend_labels=True)
    assert letter.direction == ablations.EntriesKept(weight=0.7, k=1e-3, turns_labels=True)
    exact = ablations.fedleak_read(penalty="exact", k=0.01).direction
    assert exact == ablations.Regularized(strength=0.01 * 0.7)
    with pytest.raises(SeepageError, match="strength"):
        ablations.Regularized(strength=-1.0)
