"""Gauss-Newton through convolutions: its linear algebra against dense matrices, its certificates on wrong updates."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from refusals import refusal
from sklearn.datasets import load_digits
from torch import Tensor, nn

import seepage.federation.data
from seepage import (
    Architecture,
    Batch,
    FedSGD,
    GaussianNoise,
    Inapplicable,
    Transcript,
    Update,
    build,
    observe,
    record,
)
from seepage.attacks.base import Checkpoint, Silent
from seepage.attacks.gauss_newton import GaussNewton
from seepage.attacks.gauss_newton.levels import FIRST_NEARNESS, LAST_NEARNESS, sure_values, to_levels
from seepage.attacks.gauss_newton.preconditioner import BlockCirculant
from seepage.attacks.gauss_newton.search import Search
from seepage.attacks.network.linearize import LayerUse, VictimNetwork
from seepage.attacks.reading.decoding import NaturalSpectrum
from seepage.attacks.reading.equations import (
    Equations,
    EquationsAt,
    EquationWhitening,
    Known,
    Structure,
    slope_matrix,
)
from seepage.attacks.reading.head import head_features
from seepage.attacks.reading.readings import NEWTON_SOLVED
from seepage.base.algebra.derivative import Derivative
from seepage.base.nn import frozen_randomness, state_of
from seepage.base.rounding import FLOAT32_NETWORK
from seepage.base.solvers import conjugate_gradients
from seepage.federation.defenses.quantize import Quantize
from seepage.measure.metrics.image import psnr
from seepage.testing import planted_inputs
from seepage.testing.attack import recovered_db
from seepage.testing.watch import Changed

WIDE = Architecture("convnet", {"width": 16})


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny(last: str = "conv") -> nn.Sequential:
    """Two layers with weights on 1 x 4 x 4 and a head, in float64."""
    with frozen_randomness(0):
        second: list[nn.Module] = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)]
        if last == "linear":
            second = [nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5)]
        return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), *second).double()


def equations(last: str, opened: bool, n: int = 2) -> tuple[Equations, Tensor]:
    """Equations of two images, taken from the model itself, and the images; some units open where asked."""
    model = tiny(last)
    params, buffers = state_of(model)
    network = VictimNetwork(model, params, buffers, 0.0, 1.0)
    x = torch.rand(n, 1, 4, 4, generator=draws(), dtype=torch.float64)
    head = "5.weight"
    structure = Structure.of(network, head, x[:1], 1)
    assert structure is not None
    seen = network.run(x)
    z = structure.known(seen).detach()
    on = z > 0
    open_ = torch.zeros_like(on)
    if opened:
        open_.view(-1)[on.view(-1).nonzero()[:3, 0]] = True
        on = on & ~open_
    signal = torch.randn(z.shape, generator=draws(1), dtype=torch.float64) * on
    weight = torch.ones(n, *(1,) * (z.ndim - 1), dtype=torch.float64)
    known = Known(z, on, open_, torch.zeros_like(on), signal, weight, one_sided=True)
    layer = seen.layers[structure.matched[0]]
    wanted = layer.weight_gradient(layer.input, signal).detach()
    return Equations(network, structure, known, [wanted]), x


def test_the_derivative_is_that_of_autograd_and_of_finite_differences() -> None:
    model = tiny()
    x = torch.rand(2, 1, 4, 4, generator=draws(), dtype=torch.float64).requires_grad_(True)
    params, buffers = state_of(model)
    network = VictimNetwork(model, params, buffers, 0.0, 1.0)

    def features(at: Tensor) -> Tensor:
        return model[:-1](at)

    whole = torch.autograd.functional.jacobian(features, x.detach())  # [2, 16, 2, 1, 4, 4]
    derivative = Derivative([network.run(x).layers[-1].input], x)
    v = torch.randn(x.shape, generator=draws(1), dtype=torch.float64)
    w = torch.randn(2, 16, generator=draws(2), dtype=torch.float64)
    forward = derivative.forward(v)[0]
    torch.testing.assert_close(forward, torch.tensordot(whole, v, 4))
    torch.testing.assert_close(derivative.transposed([w]), torch.tensordot(w, whole, 2))
    step = 1e-7  # too short to cross a kink, long enough against rounding of 1e-16
    difference = (features(x + step * v) - features(x - step * v)) / (2 * step)
    torch.testing.assert_close(forward, difference.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "kernel"),
    [(1, 0, 1, 3), (1, 1, 1, 3), (2, 1, 1, 3), (2, 2, 1, 5), (1, 2, 2, 3), (3, 1, 1, 2)],
)
def test_the_moved_slopes_are_those_of_an_explicit_loop(stride: int, padding: int, dilation: int, kernel: int) -> None:
    n, outputs, channels, height, width = 2, 3, 2, 7, 6
    reading = torch.randn(n, channels, height, width, generator=draws(), dtype=torch.float64)
    weight = torch.randn(outputs, channels, kernel, kernel, generator=draws(1), dtype=torch.float64)
    output = F.conv2d(reading, weight, None, stride, padding, dilation)
    geometry = ((stride, stride), (padding, padding), (dilation, dilation), 1)
    slopes = torch.randn(output.shape, generator=draws(2), dtype=torch.float64)
    layer = LayerUse(weight, geometry, reading, output)
    moved = torch.zeros(outputs, kernel, kernel, n, height, width, dtype=torch.float64)
    for y in range(output.shape[2]):
        for x in range(output.shape[3]):
            for ky in range(kernel):
                for kx in range(kernel):
                    row, column = y * stride - padding + ky * dilation, x * stride - padding + kx * dilation
                    if 0 <= row < height and 0 <= column < width:
                        moved[:, ky, kx, :, row, column] += slopes[:, :, y, x].T
    found = slope_matrix(layer, slopes)
    torch.testing.assert_close(found, moved.reshape(outputs * kernel**2, -1))
    # And M times the reading is the weight's gradient, as autograd has it.
    leaf = weight.clone().requires_grad_(True)
    F.conv2d(reading, leaf, None, stride, padding, dilation).backward(slopes)  # type: ignore[no-untyped-call]
    gradient = (found @ reading.transpose(0, 1).flatten(1).T).view(outputs, kernel, kernel, channels)
    assert leaf.grad is not None
    torch.testing.assert_close(gradient.permute(0, 3, 1, 2), leaf.grad)
    torch.testing.assert_close(layer.weight_gradient(reading, slopes), leaf.grad)


def test_whitened_slopes_have_orthonormal_rows_but_for_the_weakest() -> None:
    reading = torch.randn(2, 2, 6, 6, generator=draws(), dtype=torch.float64)
    weight = torch.randn(3, 2, 3, 3, generator=draws(1), dtype=torch.float64)
    slopes = torch.randn(2, 3, 6, 6, generator=draws(2), dtype=torch.float64)
    layer = LayerUse(weight, ((1, 1), (1, 1), (1, 1), 1), reading, slopes)
    whitening = EquationWhitening(layer, slopes)
    moved = slope_matrix(layer, slopes)
    singular = torch.linalg.svdvals(moved)
    assert len(whitening(layer.weight_gradient(reading, slopes))) == torch.linalg.matrix_rank(moved) == 27
    whitened = torch.linalg.svdvals(whitening.matrix @ moved)
    expected = singular / (singular.square() + (FLOAT32_NETWORK * singular[0]) ** 2).sqrt()
    torch.testing.assert_close(whitened, expected.sort(descending=True).values)
    assert whitened.min() > 0.9
    rows = torch.randn(27, 2, generator=draws(3), dtype=torch.float64)
    sides = (whitening(weight) * rows).sum(), (weight * whitening.transposed(rows, weight)).sum()
    torch.testing.assert_close(*sides)


def test_each_group_of_a_grouped_convolution_is_whitened_by_itself() -> None:
    """By an SVD of each group's own slopes, moved by an explicit unfolding, and what that group reads."""
    n, groups, outputs, channels = 2, 2, 6, 4
    reading = torch.randn(n, channels, 6, 6, generator=draws(), dtype=torch.float64)
    weight = torch.randn(outputs, channels // groups, 3, 3, generator=draws(1), dtype=torch.float64)
    slopes = torch.randn(n, outputs, 6, 6, generator=draws(2), dtype=torch.float64)
    layer = LayerUse(weight, ((1, 1), (1, 1), (1, 1), groups), reading, slopes)
    whitening = EquationWhitening(layer, slopes)
    whitened = whitening(layer.weight_gradient(reading, slopes))  # [r, C / g]
    at = 0
    for group in range(groups):
        own = slopes[:, 3 * group : 3 * group + 3]
        # M [(o, k), (i, y, x)]: the slope at (y, x) - (k - 1), which the transposed unfolding gathers.
        moved = F.unfold(own.flip(2, 3), 3, padding=1).view(n, 3, 9, 6, 6).flip(3, 4).permute(1, 2, 0, 3, 4).flatten(2)
        moved = moved.reshape(27, -1)
        _, singular, right = torch.linalg.svd(moved, full_matrices=False)
        assert singular[-1] > 1e-3 * singular[0]
        h = reading[:, 2 * group : 2 * group + 2].transpose(0, 1).flatten(1).T  # [(i, y, x), C / g]
        # V^T h, up to the signs of its rows and the order of the singular values.
        found, wanted = whitened[at : at + 27], right @ h
        torch.testing.assert_close(found.abs().flip(0), wanted.abs(), rtol=1e-4, atol=1e-6)
        at += 27
    assert len(whitened) == at
    rows = torch.randn(at, channels // groups, generator=draws(3), dtype=torch.float64)
    sides = (whitening(weight) * rows).sum(), (weight * whitening.transposed(rows, weight)).sum()
    torch.testing.assert_close(*sides)


def test_slopes_that_are_all_zero_give_no_equations() -> None:
    reading, slopes = torch.rand(1, 2, 4, 4), torch.zeros(1, 3, 4, 4)
    layer = LayerUse(torch.rand(3, 2, 3, 3), ((1, 1), (1, 1), (1, 1), 1), reading, slopes)
    whitening = EquationWhitening(layer, slopes)
    assert tuple(whitening(layer.weight).shape) == (0, 2)
    assert not whitening.transposed(torch.zeros(0, 2), layer.weight).any()


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("last", ["conv", "linear"])
def test_the_equations_hold_at_the_truth_and_their_transpose_is_one(last: str, opened: bool) -> None:
    made, x = equations(last, opened)
    truth = made.start(x)
    assert truth.square < 1e-20
    point = made.at(x + 0.1 * torch.rand(x.shape, generator=draws(5), dtype=torch.float64), truth.free)
    assert len(point.free) == 3 * opened
    v = torch.randn(x.shape, generator=draws(6), dtype=torch.float64)
    free = torch.randn(point.free.shape, generator=draws(7), dtype=torch.float64)
    parts = made.forward(point, v, free)
    w = [torch.randn(part.shape, generator=draws(8), dtype=torch.float64) for part in parts]
    pulled, pulled_free = made.transposed(point, w)
    left = sum((part * other).sum() for part, other in zip(parts, w, strict=True))
    torch.testing.assert_close(left, (pulled * v).sum() + (pulled_free * free).sum())
    # The residuals change as J says, by finite differences along images and open slopes at once.
    step = 1e-7
    ahead = made.moved(point.x.detach() + step * v, point.free + step * free, point).residuals
    for part, there, here in zip(parts, ahead, point.residuals, strict=True):
        torch.testing.assert_close((there - here) / step, part, rtol=1e-4, atol=1e-5)


def test_conjugate_gradients_solve_what_a_dense_solver_solves() -> None:
    root = torch.randn(12, 12, generator=draws(), dtype=torch.float64)
    matrix = root @ root.T + torch.eye(12, dtype=torch.float64)
    right = torch.randn(12, generator=draws(1), dtype=torch.float64)
    exact = torch.linalg.solve(matrix, right)
    for inverse in (lambda v: v, lambda v: v / matrix.diagonal()):
        for preconditioned in (False, True):
            used = []

            def product(v: Tensor, used: list[Tensor] = used) -> Tensor:
                used.append(v)
                return matrix @ v

            solved = conjugate_gradients(
                product, right, inverse, steps=40, tolerance=1e-2, preconditioned=preconditioned
            )
            assert len(used) <= 12
            assert (solved - exact).norm() < 0.05 * exact.norm()
    short = conjugate_gradients(lambda v: matrix @ v, right, lambda v: v, steps=2, tolerance=1e-2)
    assert (short - exact).norm() > 0.05 * exact.norm()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_products_through_batch_norm_are_those_of_its_dense_jacobian(training: bool, affine: bool) -> None:
    with frozen_randomness(0):
        norm = nn.BatchNorm2d(3, affine=affine).double()
        model = nn.Sequential(nn.Conv2d(1, 3, 3), norm, nn.ReLU(), nn.Conv2d(3, 2, 2)).double()
        norm(torch.randn(4, 3, 2, 2).double())  # running statistics that differ from 0 and 1
        if affine:
            nn.init.normal_(norm.weight)
    x = torch.rand(2, 1, 5, 5, generator=draws(), dtype=torch.float64, requires_grad=True)
    params, buffers = state_of(model)
    layers = VictimNetwork(model, params, buffers, 0.0, 1.0, training=training).run(x).layers
    made = Derivative([layers[1].output], x)
    model.train(training)
    expected = torch.autograd.functional.jacobian(model, x).flatten(4).flatten(0, 3)  # by PyTorch's own rules
    torch.testing.assert_close(layers[1].output, model(x))
    v = torch.randn(x.shape, generator=draws(1), dtype=torch.float64)
    w = torch.randn(layers[1].output.shape, generator=draws(2), dtype=torch.float64)
    torch.testing.assert_close(made.forward(v)[0].flatten(), expected @ v.flatten())
    torch.testing.assert_close(made.transposed([w]).flatten(), w.flatten() @ expected)


def search_of() -> Search:
    """A search that stands near the truth of equations that determine their images."""
    made, x = equations("conv", opened=False)
    return Search(made, NaturalSpectrum(x.shape[1:]).to(x), made.start((x + 0.05).clamp(0, 1)), 100)


def test_a_linear_model_is_solved_as_far_as_the_last_one_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """With w left of the whole gain by masks, the residual may be `sqrt(w / 10)`; a good model is solved well."""
    found = search_of()
    assert found.tolerance == NEWTON_SOLVED
    reached = {"missing": 0.0}
    honest = Equations.moved

    def moved(own: Equations, x: Tensor, free: Tensor, before: EquationsAt) -> EquationsAt:
        there = honest(own, x, free, before)
        there.residuals = [
            part + reached["missing"] * old for part, old in zip(there.residuals, before.residuals, strict=True)
        ]
        return there

    monkeypatch.setattr(Equations, "moved", moved)
    found.step()
    assert found.tolerance < 0.1
    reached["missing"] = 0.9
    found.step()
    assert found.tolerance > 0.1 or found.steps_without_progress


def test_what_is_not_determined_is_solved_no_further_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, used = search_of(), []
    honest = Search._normal

    def counted(own: Search, point: EquationsAt, v: Tensor) -> tuple[Tensor, Tensor]:
        used.append(v)
        return honest(own, point, v)

    monkeypatch.setattr(Search, "_normal", counted)
    probe = torch.randn(found.point.x.shape, generator=draws(3), dtype=torch.float64)
    whole = found.undetermined(probe, 0.0)
    many = len(used)
    used.clear()
    part = found.undetermined(probe, float(whole.max()) + 0.5)
    assert len(used) < many
    # What is unsolved counts as free, so that no more is certified.
    assert bool((part >= whole - 0.05).all())


@pytest.mark.parametrize(("reach", "off"), [(0, 1e-6), (1, 0.1)])
def test_the_preconditioner_inverts_a_block_circulant_matrix(reach: int, off: float) -> None:
    """Of blocks of 4 x 4 pixels: exact within a block; what wraps around at a border it does not see."""
    blocks, size = 8, 16
    root = 0.1 * torch.randn(3, 3, size, size, generator=draws(), dtype=torch.float64)
    kernel = (root + root.flip(0, 1).transpose(2, 3)) / 2  # symmetric as a whole
    if not reach:
        kernel = F.pad(kernel[1:2, 1:2], (0, 0, 0, 0, 1, 1, 1, 1))
    kernel[1, 1] += 3 * torch.eye(size, dtype=torch.float64)

    def product(x: Tensor) -> Tensor:
        cut = F.unfold(x, 4, stride=4).view(len(x), size, blocks, blocks)
        out = torch.zeros_like(cut)
        for dy in range(3):
            for dx in range(3):
                out += torch.einsum("ij,njab->niab", kernel[dy, dx], cut.roll((dy - 1, dx - 1), (2, 3)))
        return F.fold(out.flatten(2), x.shape[2:], 4, stride=4)

    x = torch.randn(2, 1, 32, 32, generator=draws(1), dtype=torch.float64)
    inverse = BlockCirculant(product, x)
    assert (inverse(product(x)) - x).norm() < off * x.norm()
    assert torch.equal(BlockCirculant.of(inverse.eigen(), x)(x), inverse(x))
    inverse.damp(2.0)
    assert (inverse(product(x) + 2 * x) - x).norm() < off * x.norm()


def between_blocks(kernel: Tensor, x: Tensor) -> Tensor:
    """`sum_d kernel[d] block(y - d)` over blocks of 4 x 4 pixels of a square image; nothing comes from outside."""
    side = x.shape[-1] // 4
    cut = F.unfold(x, 4, stride=4).view(len(x), -1, side, side)
    wide = F.pad(cut, (1, 1, 1, 1))
    out = sum(
        torch.einsum("ij,njab->niab", kernel[dy, dx], wide[:, :, 2 - dy : 2 - dy + side, 2 - dx : 2 - dx + side])
        for dy in range(3)
        for dx in range(3)
    )
    assert isinstance(out, Tensor)
    return F.fold(out.flatten(2), x.shape[2:], 4, stride=4)


def test_the_preconditioner_averages_over_the_pairs_of_blocks_that_there_are() -> None:
    """Without what wraps around at a border, a block there has fewer neighbors: the mean is that of those it has."""
    root = 0.1 * torch.randn(3, 3, 16, 16, generator=draws(), dtype=torch.float64)
    kernel = (root + root.flip(0, 1).transpose(2, 3)) / 2
    kernel[1, 1] += 3 * torch.eye(16, dtype=torch.float64)
    x = torch.zeros(2, 1, 32, 32, dtype=torch.float64)
    made = BlockCirculant(lambda v: between_blocks(kernel, v), x)
    spectrum = made.vectors @ torch.diag_embed(made.values).to(made.vectors) @ made.vectors.conj().transpose(-1, -2)
    found = torch.fft.ifft2(spectrum, dim=(0, 1)).real  # [8, 8, 16, 16] by distance
    for dy in range(-1, 2):
        for dx in range(-1, 2):
            torch.testing.assert_close(found[dy, dx], kernel[dy + 1, dx + 1])


def test_the_preconditioner_never_hinders_where_places_differ() -> None:
    """Equations that are mostly missing, here and there: their mean over places has negative eigenvalues."""
    kernel = torch.randn(3, 3, 16, 16, generator=draws(), dtype=torch.float64)
    flipped = kernel.flip(0, 1).transpose(2, 3)
    there = (torch.rand(1, 1, 32, 32, generator=draws(1)) < 0.3).double()

    def product(x: Tensor) -> Tensor:
        return between_blocks(flipped, there * between_blocks(kernel, x)) + x

    x = torch.randn(1, 1, 32, 32, generator=draws(2), dtype=torch.float64)
    made = BlockCirculant(product, x)

    def used(inverse: Callable[[Tensor], Tensor]) -> int:
        counted = []

        def once(v: Tensor) -> Tensor:
            counted.append(v)
            return product(v)

        conjugate_gradients(once, product(x), inverse, steps=2000, tolerance=1e-2, preconditioned=True)
        return len(counted)

    assert used(made) < 1.2 * used(lambda v: v)


def planted(
    model: Architecture = WIDE, n: int = 2, shape: tuple[int, ...] = (1, 8, 8), seed: int = 0, **how: object
) -> tuple[Transcript, Tensor]:
    batch = Batch(planted_inputs(n, shape, seed), torch.arange(n) % 4)
    return record(build(model, shape, 4, seed=0), batch, **how), batch.inputs  # type: ignore[arg-type]


def test_values_that_are_no_8_bit_ones_come_back_and_8_bit_ones_come_back_to_the_bit() -> None:
    seen, truth = planted()
    found = GaussNewton()(seen, seed=0)
    assert recovered_db(found, truth).min() > 120
    assert found.certified.all()
    inputs = (truth * 255).round() / 255
    seen = record(seen.knowledge.model, Batch(inputs, torch.arange(2)))
    assert torch.equal(GaussNewton()(seen, seed=0).inputs, inputs)


def checkpoints(
    lr: float, clip: float | None = None, *, size: int = 16, width: int = 16, labels: tuple[int, ...] = (1, 4, 1)
) -> tuple[Transcript, Tensor]:
    """Two checkpoints in single precision: photographs, of which several are of one class."""
    data = seepage.federation.data.load("album", size=size)
    inputs = data.batch(data.private[: len(labels)]).inputs
    model = build(Architecture("convnet", {"width": width}), (3, size, size), 10, seed=0)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    F.cross_entropy(model(inputs), torch.tensor(labels)).backward()
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    torch.optim.SGD(model.parameters(), lr=lr).step()
    update = Update.from_states(before, model.state_dict())
    model.load_state_dict(before)
    return observe(model, update, (3, size, size), batch_size=len(labels), lr=lr), inputs


@pytest.mark.full
def test_two_checkpoints_in_single_precision_give_pictures_to_the_bit() -> None:
    """Their rounding alone leaves the search far from 8-bit values, some of which are sure before the others."""
    seen, truth = checkpoints(0.1, size=32, width=32, labels=(6, 6, 6, 3))
    found = GaussNewton()(seen, seed=0)
    order = torch.cdist(found.inputs.flatten(1), truth.flatten(1)).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    assert torch.equal((found.inputs * 255).round(), (truth[order] * 255).round())
    assert found.certified.all()  # by `Search.goes_on` alone: without it none is


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.slow
def test_small_pictures_come_back_from_two_checkpoints_at_once(clip: float | None) -> None:
    seen, truth = checkpoints(0.1, clip)
    found = GaussNewton()(seen, seed=0)
    order = torch.cdist(found.inputs.flatten(1), truth.flatten(1)).argmin(1)
    assert torch.equal((found.inputs * 255).round(), (truth[order] * 255).round())
    assert found.certified.all()


@pytest.mark.slow
def test_values_that_were_set_wrongly_are_not_returned() -> None:
    """Pictures that are not of 8 bits, with values near those: what the stages before came to is better."""
    seen, truth = checkpoints(0.01, labels=(6, 6))
    other = truth * 0.999 + 0.0005
    model = seen.knowledge.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.zero_grad()
    F.cross_entropy(model(other), torch.tensor([6, 6])).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    update = Update.from_states(before, model.state_dict())
    model.load_state_dict(before)
    seen = observe(model, update, (3, 16, 16), batch_size=2, lr=0.01)
    found = GaussNewton()(seen, seed=0)
    assert recovered_db(found, other).min() > 45
    assert found.certified is not None
    off = torch.cdist(found.inputs.flatten(1), other.flatten(1)).amin(1) / 768**0.5
    assert float(off[found.certified].max() if found.certified.any() else 0.0) < 1e-3


@pytest.mark.full
def test_a_search_that_goes_on_is_taken_up_again_with_the_same_bits() -> None:
    class Kept(Silent):
        """Stops a run once values are being set, and gives its checkpoint to the next."""

        kept: Checkpoint | None = None

        def load(self) -> Checkpoint | None:
            return self.kept

        def save(self, checkpoint: Checkpoint) -> None:
            resumed, self.kept = self.kept is not None, checkpoint
            if not resumed and checkpoint.tensors["fixed"].any():
                raise KeyboardInterrupt

    seen, _ = checkpoints(0.01)
    progress, attack = Kept(), GaussNewton()
    whole = attack(seen, seed=0)
    for _ in range(60):
        part = attack(seen, seed=0, progress=progress)
        if part.status != "interrupted":
            break
    assert progress.kept.tensors["fixed"].any()
    assert torch.equal(part.inputs, whole.inputs)
    assert part.notes == whole.notes


def test_values_far_from_8_bits_are_never_sure() -> None:
    unit = torch.rand(4, 3, 24, 24, generator=draws())
    assert not sure_values(unit, FIRST_NEARNESS).any()
    assert float(sure_values(unit, LAST_NEARNESS).double().mean()) < 0.02
    exact = to_levels(unit)
    assert sure_values(exact, FIRST_NEARNESS).all()
    spoiled = exact.clone()
    spoiled[:, :, 10:14, 10:14] += 0.4 / 255
    sure = sure_values(spoiled.clamp(0, 1), FIRST_NEARNESS)
    assert not sure[:, :, 9:15, 9:15].any()
    assert sure[:, :, :8].all()


def test_an_update_that_was_clipped_to_a_norm_is_read_as_well() -> None:
    seen, truth = planted(defense=GaussianNoise(sigma=0.0, clip=0.01))
    assert seen.knowledge.defense is None, "nobody says so"
    found = GaussNewton()(seen, seed=0)
    assert recovered_db(found, truth).min() > 110
    assert found.certified.all()
    words = "times the gradient of the stated loss, as behind clipping to a norm, a learning rate below"
    assert any(words in note for note in found.notes)


class Front(nn.Module):
    """What networks do in front of their first layer, of which the update does not show all, or hardly anything."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "grey":
            return (x * torch.tensor([0.3, 0.59, 0.11]).view(1, 3, 1, 1)).sum(1, keepdim=True)
        return x[:, :, 2:-2, 2:-2] if self.what == "cropped" else x / 255


@pytest.mark.parametrize("labels", [(6, 1), (6, 6)])
@pytest.mark.parametrize(
    "what", ["grey", "strides", *(pytest.param(w, marks=pytest.mark.slow) for w in ("cropped", "faint"))]
)
@pytest.mark.full
def test_pictures_of_which_the_network_does_not_read_all_are_not_certified(what: str, labels: tuple[int, ...]) -> None:
    with frozen_randomness(0):
        first = nn.Conv2d(
            1 if what == "grey" else 3, 16, 2 if what == "strides" else 3, stride=3 if what == "strides" else 1
        )
        body = [nn.Identity() if what == "strides" else Front(what), first, nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2)]
        body += [nn.ReLU(), nn.Flatten()]
        width = nn.Sequential(*body)(torch.zeros(1, 3, 16, 16)).shape[1]
        model = nn.Sequential(*body, nn.Linear(width, 10))
    data = seepage.federation.data.load("album", size=16)
    truth = data.batch(data.private[:2]).inputs
    try:
        found = GaussNewton(steps=15)(record(model, Batch(truth, torch.tensor(labels))), seed=0)
    except Inapplicable:
        return
    assert found.certified is not None
    away = torch.cdist(found.inputs.flatten(1), truth.flatten(1)).amin(1) / 768**0.5
    assert not (found.certified & (away > 1e-2)).any()


def test_layers_that_were_clipped_apart_are_not_certified() -> None:
    seen, _ = planted()

    def clipped(observed):  # type: ignore[no-untyped-def]
        shares = {name: 0.1 if name.startswith("8.") else 0.2 for name in observed.update.tensors}
        tensors = {name: shares[name] * tensor for name, tensor in observed.update.tensors.items()}
        return replace(observed, update=replace(observed.update, tensors=tensors))

    try:
        found = GaussNewton(steps=6)(Changed(seen, clipped), seed=0)
    except Inapplicable:
        return
    assert not found.certified.any()


def test_a_smooth_network_that_hides_its_input_gets_no_certificate() -> None:
    """Images 20 dB away explain the gradient of these sigmoids to less than a percent."""
    model, batch = build(Architecture("lenet"), (1, 8, 8), 4), Batch(planted_inputs(1, (1, 8, 8), 0), torch.arange(1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                module.reset_parameters()  # as PyTorch starts layers, where sigmoids are flat
    found = GaussNewton(steps=6)(record(model, batch), seed=0)
    assert recovered_db(found, batch.inputs).min() < 40
    assert not found.certified.any()


@pytest.mark.parametrize("null", ["other images", "noise", "rounded"])
def test_nothing_is_certified_that_is_not_there(null: str) -> None:
    """Last layers of one batch with first layers of another; noise; few levels: refused, or no wrong certificate."""
    seen, _ = planted(defense={"noise": GaussianNoise(sigma=1e-2), "rounded": Quantize(bits=4)}.get(null))
    if null == "other images":
        other = planted(seed=3)[0][0].update.tensors
        convolutions = [name for name in other if not name.startswith("8.")]
        assert len(convolutions) == 6

        def mixed(observed):  # type: ignore[no-untyped-def]
            tensors = observed.update.tensors | {name: other[name] for name in convolutions}
            return replace(observed, update=replace(observed.update, tensors=tensors))

        seen = Changed(seen, mixed)
    try:
        found = GaussNewton(steps=6)(seen, seed=0)
    except Inapplicable:
        return
    assert not found.certified.any()


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("as many as classes", "too_few_classes"),
        ("unknown size", "no_batch_size"),
        ("train mode", "batch_norm"),
        ("no head", "network"),
        ("a head of zeros", "zero_gradient"),
    ],
)
def test_what_it_refuses_it_refuses_with_a_reason(case: str, name: str) -> None:
    if case == "no head":
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        seen: Transcript = record(model, Batch(torch.rand(1, 1, 8, 8, generator=draws()), torch.tensor([1])))
    elif case == "train mode":
        seen, _ = planted(Architecture("convnet", {"width": 4, "batch_norm": True}), client=FedSGD())
    elif case == "a head of zeros":
        model = build(WIDE, (1, 8, 8), 4, seed=0)
        with torch.no_grad():
            next(layer for layer in model.modules() if isinstance(layer, nn.Linear)).weight.zero_()
        seen = record(model, Batch(planted_inputs(2, (1, 8, 8)), torch.arange(2)))
    else:
        seen, _ = planted(n=4 if case == "as many as classes" else 2)
    if case == "unknown size":
        seen = Changed(seen, lambda observed: replace(observed, batch_size=None))
    with refusal(name):
        GaussNewton().check(seen)


def test_grouped_convolutions_are_read() -> None:
    with frozen_randomness(0):
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 4),
        )
    truth = planted_inputs(2, (1, 8, 8))
    found = GaussNewton()(record(model, Batch(truth, torch.arange(2))), seed=0)
    assert recovered_db(found, truth).min() > 100
    assert found.certified.all()


def test_the_head_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from seepage.attacks.gauss_newton import gauss_newton

    calls = []

    def counted(*given: object) -> object:
        calls.append(given)
        return head_features(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(gauss_newton, "head_features", counted)
    GaussNewton(steps=1)(planted()[0], seed=0)
    assert len(calls) == 1


@pytest.mark.slow
def test_digits_of_28_pixels_come_back() -> None:
    seen, truth = planted(shape=(1, 28, 28))
    assert recovered_db(GaussNewton()(seen, seed=0), truth).min() > 80


class Pools(nn.Module):
    """Two convolutions behind pools that take maxima, as in LeNet and LEAF's network for FEMNIST."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Conv2d(1, 24, 5, padding=2), nn.Conv2d(24, 48, 5, padding=2)
        self.c, self.d = nn.Linear(48 * 9, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.a, self.b):
            x = F.max_pool2d(layer(x).relu(), 2)
        return self.d(self.c(x.flatten(1)).relu())


@pytest.mark.full
def test_descents_leave_the_local_minima_behind_pools() -> None:
    """Gauss-Newton alone rests below 30 dB there; each image is found from another start."""
    scans = torch.from_numpy(load_digits().images[:2]).float() / 16
    batch = Batch(F.interpolate(scans[:, None], 12, mode="bilinear"), torch.tensor([1, 2]))
    seen = record(Pools(), batch, client=FedSGD())
    alone, found = (GaussNewton(steps=steps)(seen, seed=0) for steps in (12, 200))
    assert float(psnr(alone.inputs, batch.inputs).max()) < 30
    assert float(psnr(found.inputs, batch.inputs).min()) > 100
    assert found.certified is not None
    assert found.certified.all()
