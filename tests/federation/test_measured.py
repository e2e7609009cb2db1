"""Updates as measurements: PyTorch's own optimizers make them, and stated errors must be those that are made."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seepage import SeepageError
from seepage.base.number_formats import format_of
from seepage.federation.measured import Formats, Measured, Step, read_update, spread_of, straight
from seepage.federation.types import Tensors

NETWORKS = 20
Optimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
CLIENTS: dict[str, tuple[Optimizer, Step, float]] = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.01), Step.sgd(0.01), 0.0),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), Step.sgd(0.01, 0.9), 0.0),
    "nesterov": (
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True), Step.sgd(0.01, 0.9, nesterov=True), 0.0,
    ),
    "sgd with decay": (
        lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.01), replace(Step.sgd(0.01), coupled=0.01), 0.0,
    ),
    "adam": (lambda p: torch.optim.Adam(p, lr=1e-3), Step.adam(1e-3), 0.0),
    "adam, eps 1e-3": (lambda p: torch.optim.Adam(p, lr=1e-4, eps=1e-3), Step.adam(1e-4, 1e-3), 0.0),
    "adam with decay": (
        lambda p: torch.optim.Adam(p, lr=1e-3, eps=1e-4, weight_decay=0.01), Step.adam(1e-3, 1e-4, coupled=0.01), 0.0,
    ),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01), Step.adam(1e-3), 1e-5),
    "radam": (lambda p: torch.optim.RAdam(p, lr=1e-2), Step.sgd(1e-2), 0.0),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=1e-3), Step.rmsprop(1e-3), 0.0),
    "adagrad, eps 1e-6": (lambda p: torch.optim.Adagrad(p, lr=1e-2, eps=1e-6), Step.adagrad(1e-2, 1e-6), 0.0),
    "adadelta": (lambda p: torch.optim.Adadelta(p, lr=1.0), Step.adadelta(1.0), 0.0),
}  # fmt: skip


def stepped(make: Optimizer, seed: int, *, clip: float | None = None) -> tuple[Tensors, Tensors, Tensors]:
    """Weights before, their difference, and the gradient that the optimizer was given, of a network from a seed."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(60, 40), nn.Tanh(), nn.Linear(40, 7))
    before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    optimizer = make(model.parameters())
    F.cross_entropy(model(torch.rand(3, 60)), torch.randint(7, (3,))).backward()
    if clip is not None:
        nn.utils.clip_grad_value_(model.parameters(), clip)
    own = {name: tensor.grad.clone() for name, tensor in model.named_parameters() if tensor.grad is not None}
    optimizer.step()
    return before, {name: tensor.detach() - before[name] for name, tensor in model.named_parameters()}, own


def misses(found: Measured, truth: Tensors, worst: float = 0.1) -> Tensor:
    """`[k]` errors of the entries that are known to a share of themselves, in units of what is said of them."""
    parts = []
    for name, value in found.value.items():
        known = found.error[name] <= worst * value.abs()
        parts.append(((value - truth[name].double()) / found.error[name])[known])
    return torch.cat(parts)


def squares(name: str, worst: float) -> tuple[float, float]:
    """Mean square of the misses over the networks, and its standard error."""
    make, step, share = CLIENTS[name]
    means = []
    for seed in range(NETWORKS):
        before, moved, own = stepped(make, seed)
        found = read_update(before, moved, step, shares=dict.fromkeys(before, share))
        means.append(misses(found, own, worst).square().mean())
    each = torch.stack(means)
    return float(each.mean()), float(each.std() / NETWORKS**0.5)


@pytest.mark.parametrize("name", CLIENTS)
def test_errors_are_those_that_are_stated(name: str) -> None:
    """Chi-square over its degrees of freedom is 1: in its 95 % band over 20 networks.

    A fixed number of roundings stands for arithmetic that differs by a tenth from one rule to the other, and from one
    processor to the other: RMSprop has 0.88 on one whose kernels round less often. Errors may be stated too large by
    more than too small. Within some errors of the ceiling the slope bends within an error, and what is kept is what
    fell short of it.
    """
    mean, error = squares(name, worst=0.05)
    above, below = (0.02, 0.02) if CLIENTS[name][1].linear else (0.1, 0.15)
    assert 1 - 2 * error - below < mean < 1 + 2 * error + above
    assert squares(name, worst=math.inf)[0] < 1.3


@pytest.mark.parametrize("cast", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("name", ["sgd", "adadelta"])
def test_weights_in_coarse_formats_have_errors_of_those(name: str, cast: str) -> None:
    make, step, _ = CLIENTS[name]
    means = []
    for seed in range(NETWORKS):
        before, moved, own = stepped(make, seed)
        after = {key: before[key] + change for key, change in moved.items()}
        if cast == "int8":
            rounded = {k: t if t.ndim < 2 else (t / (s := t.abs().amax(1, keepdim=True) / 127)).round() * s
                       for k, t in after.items()}  # fmt: skip
        else:
            rounded = {key: t.to(getattr(torch, cast)).float() for key, t in after.items()}
        names = [key for key in before if before[key].ndim > 1]
        sent = {key: rounded[key] - before[key] for key in names}
        found = read_update(before, sent, step, Formats(stored=cast))
        means.append(misses(found, own, 1e300).square().mean())
    # Most weights do not move at all in so coarse a format, and are off by less than an even error then.
    assert 0.3 < float(torch.stack(means).mean()) < 1.1


def test_a_gradient_of_a_coarse_format_has_its_error() -> None:
    before, moved, own = stepped(lambda p: torch.optim.SGD(p, lr=1.0), 0)
    coarse = {name: -tensor.bfloat16().float() for name, tensor in own.items()}
    found = read_update(before, coarse, Step.sgd(1.0), Formats(stored="difference", gradient="bfloat16"))
    assert 0.9 < float(misses(found, own).square().mean()) < 1.1
    lost = read_update(before, moved, Step.sgd(1.0))
    kept = read_update(before, {name: -t for name, t in own.items()}, Step.sgd(1.0), Formats(stored="difference"))
    assert float(kept.accuracy() or 1) < 1e-7 < float(lost.accuracy() or 0)


def test_of_saturated_entries_the_least_size_and_the_sign_are_known() -> None:
    before, moved, own = stepped(*CLIENTS["adam"][:1], 1)
    found = read_update(before, moved, CLIENTS["adam"][1])
    for name, value in found.value.items():
        lost = found.error[name].isinf()
        assert bool(lost.any())
        assert torch.equal(value[lost].sign(), own[name][lost].sign().double())
        assert bool((own[name][lost].abs() >= 0.1 * value[lost].abs()).all())


def test_entries_at_a_clip_are_unknown_and_others_are_read() -> None:
    before, moved, own = stepped(lambda p: torch.optim.SGD(p, lr=0.1), 3, clip=1e-3)
    found = read_update(before, moved, replace(Step.sgd(0.1), limit=1e-3))
    for name in before:
        at = own[name].abs() == 1e-3
        lost = found.error[name].isinf()
        assert bool(lost[at].all())
        assert int((lost & ~at).sum()) <= 0.01 * lost.numel()
    assert float(misses(found, own).abs().max()) < 4


STEPS = st.builds(
    Step,
    name=st.just("any"),
    floor=st.sampled_from([0.0, 1e-3, 1.0]),
    gain=st.sampled_from([0.0, 0.1, 1.0]),
    eps=st.sampled_from([1e-8, 1e-3]),
)


@given(step=STEPS, size=st.floats(-6, 1), share=st.floats(0.01, 100))
@settings(deadline=None)
def test_the_inverse_and_the_slope_are_those_of_psi(step: Step, size: float, share: float) -> None:
    if not step.floor and not step.gain:
        step = replace(step, floor=1.0)
    x = torch.tensor([10.0**size, -(10.0**size)], dtype=torch.float64)
    u = step.psi(x)
    room = 1 - step.gain * u.abs()
    tight = 1e-12 / room.clamp(min=1e-300)
    assert bool(((step.inverted(u) - x).abs() <= (1e-9 + tight) * x.abs()).all()) or float(room.min()) < 1e-12
    h = 1e-6 * x.abs()
    numeric = (step.psi(x + h) - step.psi(x - h)) / (2 * h)
    assert torch.allclose(numeric, step.slope(x), rtol=1e-3, atol=1e-8)
    # A gradient that is `share` times as small makes the same step.
    assert torch.allclose(step.over(share).rate * step.over(share).psi(x / share), step.rate * u, rtol=1e-9)


@given(value=st.floats(-1e4, 1e4, width=32), form=st.sampled_from(["float32", "float16", "bfloat16"]))
def test_rounding_moves_no_number_by_more_than_an_even_error_can(value: float, form: str) -> None:
    exact = torch.tensor([value * 1.0000001], dtype=torch.float64)
    rounded = exact.to(getattr(torch, form)).double()
    assert float((rounded - exact).abs()) <= 3**0.5 * float(spread_of(exact, form)) * (1 + 1e-9)


def test_errors_at_a_fit_do_not_lean_towards_small_entries() -> None:
    """A mean that is weighted by errors at the measured values is too small; at the truth it is not."""
    draw = torch.Generator().manual_seed(0)
    before = {"w": torch.rand(20_000, generator=draw).mul(0.002).add(0.005)}
    weight = before["w"].clone().requires_grad_()
    weight.grad = truth = 3e-5 + 3e-5 * torch.rand(20_000, generator=draw)
    torch.optim.Adam([weight], lr=1e-5).step()
    found = read_update(before, {"w": weight.detach() - before["w"]}, Step.adam(1e-5))
    off = []
    for value, error in (
        (found.value["w"], found.error["w"]),
        straight(Step.adam(1e-5), *found.moved["w"], truth.double()),
    ):
        # The factor that fits all entries best, in units of its own standard error.
        off.append(float(((value - truth) * truth / error.square()).sum() / (truth / error).square().sum().sqrt()))
    assert off[0] < -10 < off[1] < 6, off


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"eps": -1.0}, {"limit": 0.0}, {"floor": 0.0}, {"rate": math.inf}])
def test_a_step_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SeepageError, match="local step"):
        Step(name="any", **wrong)  # type: ignore[arg-type]


def test_a_measurement_is_whole_and_its_errors_are_errors() -> None:
    value = {"w": torch.ones(2)}
    for error in ({}, {"w": torch.ones(3)}, {"w": torch.tensor([1.0, -1.0])}, {"w": torch.tensor([1.0, math.nan])}):
        with pytest.raises(SeepageError, match="measurement"):
            Measured(value, error)
    with pytest.raises(SeepageError, match="finite"):
        Measured({"w": torch.tensor([math.inf])}, {"w": torch.ones(1)})
    assert Measured(value, {"w": torch.tensor([0.5, math.inf])}).known() == 0.5
    with pytest.raises(SeepageError, match="format"):
        Formats(stored="int4")
    with pytest.raises(SeepageError, match="no weights"):
        read_update({}, value, Step.sgd(1.0))


@pytest.mark.parametrize("levels", [16, 128, 255])
def test_rows_that_one_picture_makes_are_no_rounded_ones(levels: int) -> None:
    """A gradient of a picture of 8 bits, alone at its neurons, was called made of int8 numbers."""
    draw = torch.Generator().manual_seed(0)
    picture = torch.randint(levels + 1, (300,), generator=draw) / levels
    slopes = torch.randn(40, 2, generator=draw)
    alone = slopes[:, :1] * picture
    assert format_of(alone, 1e-7 * alone.abs()) is None
    both = alone + slopes[:, 1:] * torch.rand(300, generator=draw)
    step = both.abs().amax(1, keepdim=True) / 127
    assert format_of(step * (both / step).round(), torch.zeros_like(both)) == "int8"
