"""Directions at a place whose objective is known in closed form, and inside the engine against loops written out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor
from victims import victim

from seepage import GradientMatching, SeepageError
from seepage.attacks.base import Checkpoint, Silent
from seepage.attacks.search.directions import (
    Blended,
    Direction,
    Gradients,
    Langevin,
    LookAhead,
    Plain,
    Sign,
)
from seepage.attacks.search.distances import L2
from seepage.attacks.search.optimizers import LBFGS, Adam
from seepage.attacks.search.parameters import Pixels
from seepage.attacks.search.problem import Problem
from seepage.base.nn import generator
from seepage.federation.types import Transcript

POINT = [torch.tensor([1.0, -2.0], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)]
CURVATURES = [torch.tensor([2.0, 0.5], dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)]


@dataclass
class Bowl:
    """Half the sum of c x^2, whose gradient is c x everywhere; the optimiser is gradient descent."""

    share: float = 0.25
    lr: float = 0.1
    asked: list[list[Tensor]] = field(default_factory=list)

    @property
    def moved(self) -> int:
        return len(POINT)

    def gradients_at(self, moves: Sequence[Tensor]) -> Gradients:
        self.asked.append(list(moves))
        return [c * (x + move) for c, x, move in zip(CURVATURES, POINT, moves, strict=True)]

    def step_along(self, gradients: Sequence[Tensor]) -> Gradients:
        return [-self.lr * gradient for gradient in gradients]


def here() -> Gradients:
    return [c * x for c, x in zip(CURVATURES, POINT, strict=True)]


def test_plain_and_signs() -> None:
    gradients = [torch.tensor([-3.0, 0.0, 1e-9])]
    assert torch.equal(Plain()(gradients, Bowl())[0], gradients[0])
    assert Sign()(gradients, Bowl())[0].tolist() == [-1, 0, 1]


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.7, 1.0])
def test_blended_mixes_with_the_gradient_a_fixed_length_up_the_slope(weight: float) -> None:
    place, gradients = Bowl(), here()
    found = Blended(weight=weight, k=0.2)(gradients, place)
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    for gradient, c, x, blend in zip(gradients, CURVATURES, POINT, found, strict=True):
        ahead = c * (x + 0.2 * gradient / length)
        assert torch.allclose(blend, (1 - weight) * gradient + weight * ahead)
    moved = torch.cat([move.flatten() for move in place.asked[0]])
    assert float(moved.norm()) == pytest.approx(0.2)


def test_blended_stays_put_where_there_is_no_slope() -> None:
    place, zeros = Bowl(), [torch.zeros(2)]
    assert torch.equal(Blended(weight=0.7)(zeros, place)[0], zeros[0])
    assert not place.asked


def test_look_ahead_blends_with_the_gradient_after_a_full_step() -> None:
    place = Bowl()
    for signed in (False, True):
        turn = torch.sign if signed else torch.clone
        found = LookAhead(weight=0.3, signed=signed)(here(), place)
        for gradient, c, x, blend in zip(here(), CURVATURES, POINT, found, strict=True):
            ahead = turn(c * (x - 0.1 * turn(gradient)))
            assert torch.allclose(blend, 0.7 * turn(gradient) + 0.3 * ahead)


def test_langevin_noise_on_the_step_does_not_depend_on_the_gradients_length() -> None:
    """One step of Adam moves each unknown by the rate, whatever its gradient; the noise comes on top, written out."""
    transcript = victim(2, known=["labels"])[0]
    for factor in (1.0, 1e-6):
        quiet, noisy = (descended(transcript, direction, factor) for direction in (Plain(), Langevin(0.2)))
        expected = torch.randn(quiet.shape, generator=generator(0, "noise/0", 0))
        assert torch.allclose(noisy - quiet, 0.2 * 0.02 * expected, atol=1e-6)


def descended(transcript: Transcript, direction: Direction, factor: float) -> Tensor:
    """Where the first step of the engine leads: the point at which the second evaluation is made."""
    points: list[Tensor] = []

    class Kept(Silent):
        def save(self, checkpoint: Checkpoint) -> None:
            points.append(checkpoint.tensors["searches/0/free/0"])

    GradientMatching(
        distance=factor * L2(),
        optimizer=Adam(lr=0.02),
        steps=1,
        parameters=Pixels(start_from="uniform"),
        direction=direction,
        gradients="exact",
    )(transcript, seed=0, progress=Kept())
    return points[0]


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan")])
def test_weights_outside_0_to_1_are_refused(weight: float) -> None:
    for make in (Blended, LookAhead):
        with pytest.raises(SeepageError, match="weight from"):
            make(weight=weight)
    with pytest.raises(SeepageError, match="length above"):
        Blended(weight=0.5, k=0.0)


def test_looking_ahead_needs_an_optimizer_with_steps() -> None:
    with pytest.raises(SeepageError, match="use Adam"):
        GradientMatching(distance=L2(), optimizer=LBFGS(), steps=3, direction=LookAhead())


def run(transcript: Transcript, direction: Direction, steps: int = 6) -> Tensor:
    """The engine's last point: with a tolerance of 0 and a falling objective that is the best, one step early."""
    it = GradientMatching(
        distance=L2(),
        optimizer=Adam(lr=0.02),
        steps=steps,
        parameters=Pixels(start_from="uniform"),
        direction=direction,
        tolerance=0.0,
    )
    return it(transcript, seed=0).inputs


def written_out(transcript: Transcript, *, blended: bool) -> list[Tensor]:
    """Plain Adam with FedLeak's blend, or with the released step ahead, from the same start."""
    problem, labels = Problem.of(transcript[0], transcript.knowledge, L2(), None), torch.tensor([0, 1])
    start = Pixels(start_from="uniform").start(2, transcript.knowledge, torch.ones(1), generator(0, "start"))
    x = start.unknowns[0].clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.02)
    path, moments = [], (torch.zeros_like(x), torch.zeros_like(x))
    for t in range(1, 7):
        path.append(x.detach().clone())
        gradient = problem.evaluate(x.detach(), labels).by_inputs
        if blended:
            ahead = problem.evaluate(x.detach() + 1e-3 * gradient / gradient.norm(), labels).by_inputs
            x.grad = 0.3 * gradient + 0.7 * ahead
        else:
            first, second = 0.9 * moments[0] + 0.1 * gradient.sign(), 0.999 * moments[1] + 0.001 * gradient.sign() ** 2
            step = 0.02 * (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
            ahead = problem.evaluate((x - step).detach(), labels).by_inputs.sign()
            x.grad = 0.7 * gradient.sign() + 0.3 * ahead
            moments = 0.9 * moments[0] + 0.1 * x.grad, 0.999 * moments[1] + 0.001 * x.grad**2
        optimizer.step()
    return path


def test_the_engine_follows_fedleaks_blend() -> None:
    transcript = victim(2, known=["labels"])[0]
    expected = written_out(transcript, blended=True)[-1]
    assert torch.allclose(run(transcript, Blended(weight=0.7, k=1e-3)), expected, atol=1e-5)
    assert not torch.allclose(run(transcript, Plain()), expected, atol=1e-5)


def test_the_engine_looks_one_adam_step_ahead_without_a_trace_in_adams_memory() -> None:
    transcript = victim(2, known=["labels"])[0]
    expected = written_out(transcript, blended=False)[-1]
    assert torch.allclose(run(transcript, LookAhead(weight=0.3)), expected, atol=1e-5)


def test_langevin_noise_is_the_same_bits_for_the_same_seed() -> None:
    transcript = victim(2, known=["labels"])[0]
    assert torch.equal(run(transcript, Langevin(0.2)), run(transcript, Langevin(0.2)))
    assert not torch.equal(run(transcript, Langevin(0.2)), run(transcript, Plain()))
