"""The first-order step against exact double backward, on every family of networks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks.search import first_order
from seepage.attacks.search.distance_gradients import Products, combination, value_and_gradients
from seepage.attacks.search.distances import L1, L2, Cosine, Distance, GaussianKernel, PerTensor
from seepage.attacks.search.first_order import FirstOrderProblem, Move, with_first_order_step
from seepage.attacks.search.frozen_pattern import FrozenPattern, RecordedPattern
from seepage.attacks.search.partial import TopMagnitude
from seepage.attacks.search.problem import Evaluation, Problem
from seepage.federation.types import LocalProblem, Update

CLASSES, N = 4, 5
FEDLEAK = TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5)
FEDLEAK_PER_TENSOR = PerTensor(TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5))
DISTANCES = [L2(), L2(root=True), L1(), L1("mean"), Cosine(), L2() + 0.1 * Cosine(), FEDLEAK, FEDLEAK_PER_TENSOR]
DISTANCES += [replace(FEDLEAK, by="tensor", sample=20), replace(FEDLEAK, inner=PerTensor(L1("mean")))]
DISTANCES += [
    GaussianKernel(),
    PerTensor(GaussianKernel()),
    2.0 * GaussianKernel(),
    TopMagnitude(inner=GaussianKernel(), ratio=0.3),
]
IMAGE = (3, 16, 16)
NETWORKS = {
    "mlp": (Architecture("mlp3"), (1, 6, 6)),
    "relu": (Architecture("convnet", {"width": 4}), IMAGE),
    "sigmoid": (Architecture("convnet", {"width": 4, "activation": "sigmoid"}), IMAGE),
    "gelu": (Architecture("convnet", {"width": 4, "activation": "gelu"}), IMAGE),
    "leaky relu": (Architecture("convnet", {"width": 4, "activation": "leaky_relu"}), IMAGE),
    "batch norm": (Architecture("convnet", {"width": 4, "batch_norm": True}), IMAGE),
    "resnet": (Architecture("resnet", {"width": 4}), IMAGE),
    "resnet18": (Architecture("torchvision:resnet18"), (3, 32, 32)),
    "relu6": (Architecture("torchvision:mobilenet_v2", {"width_mult": 0.1}), (3, 32, 32)),
    "timm ViT": (Architecture("timm:vit_tiny_patch16_224", {"img_size": 16, "patch_size": 8, "depth": 2}), IMAGE),
}


def pooled() -> nn.Module:
    """As VGG begins: convolutions with overlapping and plain max pooling between them."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Hardtanh(-0.7, 0.9),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def problem(
    model: nn.Module,
    shape: tuple[int, ...],
    *,
    mode: str = "eval",
    distance: Distance | None = None,
    dtype: torch.dtype = torch.float32,
    microbatch: int | None = None,
) -> Problem:
    draw = torch.Generator().manual_seed(1)
    batch = Batch(torch.rand((N, *shape), generator=draw).to(dtype), torch.arange(N) % CLASSES)
    transcript = record(model.to(dtype), batch, client=FedSGD(mode=mode))  # type: ignore[arg-type]
    return Problem.of(transcript[0], transcript.knowledge, distance or Cosine(), microbatch)


def candidate(it: Problem, shape: tuple[int, ...], *, soft: bool = False) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    dtype = next(iter(it.params.values())).dtype
    inputs = torch.rand((N, *shape), generator=draw).to(dtype)
    if not soft:
        return inputs, torch.arange(N) % CLASSES
    return inputs, torch.randn((N, CLASSES), generator=draw).softmax(-1).to(dtype)


def exactly(it: Problem, inputs: Tensor, labels: Tensor, extra: Callable[[], Tensor] | None = None) -> Evaluation:
    with sdpa_kernel(SDPBackend.MATH):
        return it.evaluate(inputs, labels, extra)


def fitted(it: Problem, inputs: Tensor, labels: Tensor) -> FirstOrderProblem:
    """The problem with a first-order step that has learned how far to move here."""
    step = FirstOrderProblem(**vars(it))
    step.evaluate(inputs, labels)
    return step


def assert_close(found: Evaluation, exact: Evaluation, rel: float) -> None:
    # One minus a cosine near 1 has few digits in single precision, whichever way it is taken.
    assert found.value == pytest.approx(exact.value, rel=1e-5, abs=5e-7)
    for a, b in ((found.by_inputs, exact.by_inputs), (found.by_labels, exact.by_labels)):
        if b is None:
            assert a is None
        else:
            assert a is not None
            assert float((a - b).norm() / b.norm()) < rel


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    # In train mode ResNet-18 has one pixel per channel left to normalise by, and no digits of single precision.
    [(name, mode) for name in NETWORKS for mode in ("train", "eval") if (name, mode) != ("resnet18", "train")],
)
def test_every_family_of_networks_agrees_with_double_backward(name: str, mode: str) -> None:
    architecture, shape = NETWORKS[name]
    # MobileNet's input gradient is so small here that its square is lost in single precision.
    dtype = torch.float64 if name == "relu6" else torch.float32
    it = problem(build(architecture, shape, CLASSES), shape, mode=mode, dtype=dtype)
    inputs, labels = candidate(it, shape)
    step = fitted(it, inputs, labels)
    assert_close(step.evaluate(inputs, labels), exactly(it, inputs, labels), 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "chances"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_pooling_and_clamps_take_the_same_sides_again(mode: str, soft: bool, dtype: torch.dtype) -> None:
    it = problem(pooled(), IMAGE, mode=mode, dtype=dtype)
    inputs, labels = candidate(it, IMAGE, soft=soft)
    found = FirstOrderProblem(**vars(it)).evaluate(inputs, labels)
    assert_close(found, it.evaluate(inputs, labels), 1e-2 if dtype == torch.float32 else 1e-5)


def test_without_the_recorded_choices_it_is_wrong() -> None:
    """The tests above would be idle if a plain finite difference passed them."""
    it = problem(pooled(), IMAGE)
    inputs, labels = candidate(it, IMAGE)
    gradient = {
        name: tensor.requires_grad_() for name, tensor in it._gradient(inputs, labels, create_graph=False).items()
    }
    v = torch.autograd.grad(Cosine()(gradient, it.target), list(gradient.values()))
    step = 3e-3 / float(torch.stack([t.norm() for t in v]).norm())
    gradients = []
    for sign in (-step, step):
        leaf = inputs.clone().requires_grad_()
        moved = {name: p + sign * t for (name, p), t in zip(it.params.items(), v, strict=True)}
        loss = F.cross_entropy(torch.func.functional_call(it.model.eval(), {**moved, **it.buffers}, (leaf,)), labels)
        gradients.append(torch.autograd.grad(loss, leaf)[0])
    naive = (gradients[1] - gradients[0]) / (2 * step)
    exact = it.evaluate(inputs, labels).by_inputs
    assert float((naive - exact).norm() / exact.norm()) > 0.05


@pytest.mark.parametrize("distance", DISTANCES, ids=repr)
def test_every_distance(distance: Distance) -> None:
    it = problem(build(Architecture("convnet", {"width": 4}), IMAGE, CLASSES), IMAGE, distance=distance)
    inputs, labels = candidate(it, IMAGE)
    step = fitted(it, inputs, labels)
    assert_close(step.evaluate(inputs, labels), it.evaluate(inputs, labels), 1e-2)


@pytest.mark.parametrize("distance", [Cosine(), 3.0 * Cosine(), -2.0 * Cosine()], ids=repr)
def test_slopes_by_products_are_those_of_autograd(distance: Distance) -> None:
    draw = torch.Generator().manual_seed(5)
    dummy, target = ({name: torch.randn(n, generator=draw).double() for name, n in (("a", 30), ("b", 7))} for _ in "12")
    own, theirs = list(dummy.values()), list(target.values())
    found = combination(distance, Products.of(own, theirs))
    value, gradients = value_and_gradients(distance, dummy, target)
    assert found.value == pytest.approx(value, rel=1e-12)
    made = [found.a * a + found.b * b for a, b in zip(own, theirs, strict=True)]
    for mine, wanted in zip(made, gradients.values(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-14)
    assert found.length == pytest.approx(float(torch.cat(made).norm()), rel=1e-10)


def test_slopes_by_products_are_left_out_where_they_would_be_rounding() -> None:
    draw = torch.Generator().manual_seed(5)
    own = [torch.randn(1000, generator=draw)]
    near = [own[0] * 3 + 1e-3 * torch.randn(1000, generator=draw)]
    assert combination(Cosine(), Products.of(own, near)) is None
    assert combination(Cosine(), Products.of(own, [0 * own[0]])) is None
    assert combination(L2(), Products.of(own, near)) is None


def test_a_move_goes_along_the_slope_and_into_the_same_tensors() -> None:
    """By entries and by products, against autograd's slope."""
    for distance in (L2(), Cosine(), FEDLEAK):
        it = problem(build(Architecture("convnet", {"width": 4}), IMAGE, CLASSES), IMAGE, distance=distance)
        draw = torch.Generator().manual_seed(6)
        dummy = [torch.randn(tensor.shape, generator=draw) for tensor in it.params.values()]
        value, v = value_and_gradients(distance, dict(zip(it.params, dummy, strict=True)), it.target)
        mover = FirstOrderProblem(**vars(it), reach=1e-2)
        _, short, before = mover._moved(dummy)
        mover.reach = 2e-2
        own_value, step, weights = mover._moved(dummy)
        assert all(a is b for a, b in zip(before.values(), weights.values(), strict=True))
        assert own_value == pytest.approx(value, rel=1e-5)
        assert step == pytest.approx(2 * short)
        for (name, moved), slope in zip(weights.items(), v.values(), strict=True):
            torch.testing.assert_close(moved, it.params[name] + step * slope, rtol=1e-5, atol=1e-7)


def test_a_tensor_without_chosen_entries_has_no_slope() -> None:
    dummy = {"a": torch.tensor([3.0, -2.0]), "b": torch.tensor([0.1, 0.2])}
    target = {name: torch.ones(2) for name in dummy}
    distance = TopMagnitude(inner=PerTensor(Cosine() + L1("mean")), ratio=0.5)
    value, gradients = value_and_gradients(distance, dummy, target)
    assert value == pytest.approx(float(distance(dummy, target)))
    assert not gradients["b"].any()


@pytest.mark.parametrize("microbatch", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "chances"])
def test_micro_batches_give_the_numbers_of_one_shot(microbatch: int, soft: bool) -> None:
    whole = problem(build(Architecture("convnet", {"width": 4}), IMAGE, CLASSES), IMAGE, dtype=torch.float64)
    inputs, labels = candidate(whole, IMAGE, soft=soft)
    found = FirstOrderProblem(**{**vars(whole), "microbatch": microbatch}).evaluate(inputs, labels)
    assert_close(found, whole.evaluate(inputs, labels), 1e-5)


def test_batch_norm_in_train_mode_is_not_cut_into_micro_batches() -> None:
    model = build(Architecture("convnet", {"width": 4, "batch_norm": True}), IMAGE, CLASSES)
    whole = problem(model, IMAGE, mode="train", dtype=torch.float64)
    inputs, labels = candidate(whole, IMAGE)
    found = FirstOrderProblem(**{**vars(whole), "microbatch": 2}).evaluate(inputs, labels)
    assert_close(found, whole.evaluate(inputs, labels), 1e-5)


@pytest.mark.parametrize("microbatch", [None, 2])
def test_a_penalty_on_what_hooks_see(microbatch: int | None) -> None:
    model = build(Architecture("convnet", {"width": 4}), IMAGE, CLASSES)
    it = problem(model, IMAGE, dtype=torch.float64, microbatch=microbatch)
    seen: list[Tensor] = []
    handle = model[3].register_forward_hook(lambda module, args, output: seen.append(output))  # type: ignore[index]

    def extra() -> Tensor:
        return 0.3 * seen[-1].abs().mean()

    inputs, labels = candidate(it, IMAGE)
    found = FirstOrderProblem(**vars(it)).evaluate(inputs, labels, extra)
    exact = it.evaluate(inputs, labels, extra)
    handle.remove()
    assert_close(found, exact, 1e-5)
    alone = it.evaluate(inputs, labels)
    assert float((exact.by_inputs - alone.by_inputs).norm() / exact.by_inputs.norm()) > 0.01


def test_the_model_is_left_as_found() -> None:
    model = pooled().train()
    it = problem(model, IMAGE, mode="train")
    model[4].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    inputs, labels = candidate(it, IMAGE)
    kept = inputs.clone()
    first = FirstOrderProblem(**vars(it)).evaluate(inputs, labels)
    assert torch.equal(first.by_inputs, FirstOrderProblem(**vars(it)).evaluate(inputs, labels).by_inputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(inputs, kept)
    assert not inputs.requires_grad


class Sawtooth(nn.Module):
    """A network with jumps everywhere that are not replayed; its derivatives know nothing of them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(108, 40), nn.Linear(40, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last((1e5 * self.first(inputs.flatten(1))).frac())  # type: ignore[no-any-return]


def test_the_trial_keeps_the_exact_step_where_the_cheap_one_is_wrong() -> None:
    shape = (3, 6, 6)
    it = problem(Sawtooth(), shape)
    inputs, labels = candidate(it, shape)
    assert FirstOrderProblem(**vars(it)).agreement(inputs, labels) < 0.99
    chosen, note = with_first_order_step(it, inputs, labels)
    assert chosen is it
    assert note.startswith("The exact step was used")


def test_the_trial_takes_the_cheap_step_where_it_holds() -> None:
    it = problem(pooled(), IMAGE)
    chosen, note = with_first_order_step(it, *candidate(it, IMAGE))
    assert isinstance(chosen, FirstOrderProblem)
    assert note is None


def passes_made(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The reach of each move that is made from here on."""
    made: list[float] = []
    moved = FirstOrderProblem._moved

    def counted(it: FirstOrderProblem, dummy: Sequence[Tensor]) -> Move:
        made.append(it.reach)
        return moved(it, dummy)

    monkeypatch.setattr(FirstOrderProblem, "_moved", counted)
    return made


def descent(it: Problem, inputs: Tensor, labels: Tensor, steps: int) -> list[Tensor]:
    """Points on the way down, by signs of exact gradients: the slopes change by far on it."""
    points = [inputs]
    for _ in range(steps - 1):
        points.append((points[-1] - 0.02 * it.evaluate(points[-1], labels).by_inputs.sign()).clamp(0, 1))
    return points


def test_what_was_learned_of_a_good_move_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One second pass per evaluation on a way along which the best move grows out of any fixed window."""
    monkeypatch.setattr(first_order, "REACH_WINDOW", 2.0)
    it = problem(build(Architecture("convnet", {"width": 4}), IMAGE, CLASSES), IMAGE)
    inputs, labels = candidate(it, IMAGE)
    way = descent(it, inputs, labels, 40)
    step = fitted(it, inputs, labels)
    start = step.reach
    made = passes_made(monkeypatch)
    for point in way:
        assert_close(step.evaluate(point, labels), it.evaluate(point, labels), 1e-2)
    kept = len(made)
    for point in way:  # the same way with what was right at its start
        replace(step, reach=start).evaluate(point, labels)
    assert kept <= len(way) + 2
    assert len(made) - kept > 1.3 * len(way)


def test_a_move_that_changes_nothing_does_not_stick() -> None:
    it = problem(pooled(), IMAGE)
    inputs, labels = candidate(it, IMAGE)
    step = FirstOrderProblem(**vars(it), reach=1e-12)  # far below rounding
    for _ in range(3):
        found = step.evaluate(inputs, labels)
    assert_close(found, it.evaluate(inputs, labels), 1e-2)


class Twice(FedSGD):
    """A client that is not plain FedSGD."""

    def compute(self, problem: LocalProblem) -> Update:
        once = super().compute(problem)
        return Update({name: 2 * tensor for name, tensor in once.tensors.items()})


def test_other_clients_keep_the_exact_step() -> None:
    it = replace(problem(pooled(), IMAGE), client=Twice())
    assert with_first_order_step(it, *candidate(it, IMAGE)) == (it, None)


def test_at_the_truth_the_slopes_vanish() -> None:
    it = problem(pooled(), IMAGE, distance=L2())
    truth = torch.rand((N, *IMAGE), generator=torch.Generator().manual_seed(1))
    found = FirstOrderProblem(**vars(it)).evaluate(truth, torch.arange(N) % CLASSES)
    assert found.value == 0
    assert not found.by_inputs.any()


@pytest.mark.parametrize(
    "function",
    [
        F.relu,
        torch.relu,
        Tensor.relu,
        F.relu6,
        lambda x: F.leaky_relu(x, 0.2),
        lambda x: F.hardtanh(x, -0.5, 0.4),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool1d(x[0], 3, 2, 1),
        lambda x: F.max_pool3d(x, (1, 2, 2)),
        lambda x: F.adaptive_max_pool2d(x, 3),
        nn.ReLU(inplace=True),
        nn.LeakyReLU(inplace=True),
    ],
)
def test_a_replay_is_the_tangent_of_the_recorded_point(function: Callable[[Tensor], Tensor]) -> None:
    draw = torch.Generator().manual_seed(3)
    at, move = (3 * torch.randn((2, 3, 8, 8), generator=draw).double() for _ in range(2))
    with RecordedPattern() as taken:
        here = function(at.clone())
    with FrozenPattern(taken.patterns):
        there = function(at + move)
    _, tangent = torch.autograd.functional.jvp(lambda x: function(x.clone()), at, move)
    torch.testing.assert_close(there, here + tangent)
