"""FedSGD against a plain `loss.backward()`, and the promises an attack builds on."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from seepage import CLIENTS, Architecture, Batch, FedSGD, SeepageError, Update, build
from seepage.base.nn import state_of
from seepage.federation.types import Tensors

SHAPE = (3, 6, 6)


def network(name: str) -> nn.Sequential:
    """Networks with everything that behaves differently when a client trains."""
    torch.manual_seed(1)
    parts: dict[str, list[nn.Module]] = {
        "fc": [nn.Flatten(), nn.Linear(108, 9), nn.ReLU(), nn.Linear(9, 4)],
        "conv": [nn.Conv2d(3, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(64, 4)],
        "batch norm": [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)],
        "group norm": [nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 4)],
        "unused": [nn.Flatten(), nn.Linear(108, 4)],
    }
    model = nn.Sequential(*parts[name])
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    if name == "unused":
        model.register_parameter("spare", nn.Parameter(torch.ones(3)))
    return model


def batch_of(n: int, *, soft: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (n,), generator=draw)
    chances = torch.rand((n, 4), generator=draw).to(dtype).softmax(-1)
    return Batch(torch.rand((n, *SHAPE), generator=draw).to(dtype), chances if soft else labels)


def by_backward(model: nn.Module, batch: Batch, *, training: bool) -> Tensors:
    """The slow obvious way: a copy of the module, its own mode switch, `loss.backward()`."""
    copy = deepcopy(model).train(training)
    F.cross_entropy(copy(batch.inputs), batch.labels).backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in copy.named_parameters()}


def assert_close(a: Tensors, b: Tensors, rtol: float = 1e-5) -> None:
    assert list(a) == list(b)
    for name in a:
        assert torch.allclose(a[name], b[name], rtol=rtol, atol=1e-7), name


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "chances"])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", ["fc", "conv", "batch norm", "group norm", "unused"])
def test_it_is_what_backward_gives(name: str, mode: str, soft: bool) -> None:
    model, batch = network(name), batch_of(5, soft=soft)
    params, buffers = state_of(model)
    client = FedSGD(mode=mode)  # type: ignore[arg-type]
    update = client(model, params, batch, buffers=buffers)
    assert update.kind == "gradient"
    assert_close(client.as_gradient(update), by_backward(model, batch, training=mode == "train"))
    if name == "batch norm":
        other = by_backward(model, batch, training=mode != "train")
        assert not torch.allclose(update.tensors["0.weight"], other["0.weight"], rtol=1e-2)


def test_it_reads_the_parameters_it_is_given_not_the_modules() -> None:
    model, batch = network("fc"), batch_of(3)
    params, _ = state_of(model)
    other = deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-2)
    moved, _ = state_of(other)
    assert_close(FedSGD()(model, moved, batch).tensors, by_backward(other, batch, training=True))
    assert_close(FedSGD()(model, params, batch).tensors, by_backward(model, batch, training=True))


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_nothing_is_left_behind(mode: str) -> None:
    model = network("batch norm")
    model[1].eval()
    params, buffers = state_of(model)
    kept = state_of(model)
    FedSGD(mode=mode)(model, params, batch_of(4), buffers=buffers)  # type: ignore[arg-type]
    for state in (state_of(model), (params, buffers)):
        for now, before in zip(state, kept, strict=True):
            assert all(torch.equal(now[name], before[name]) for name in before)
    assert not any(p.requires_grad for p in params.values())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert not model[1].training


def test_dropout_is_off_in_both_modes() -> None:
    dropped = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(108, 4))
    plain = nn.Sequential(nn.Flatten(), nn.Identity(), dropped[2])
    params, _ = state_of(dropped)
    for mode in ("train", "eval"):
        update = FedSGD(mode=mode)(dropped, params, batch_of(4))
        assert_close(update.tensors, by_backward(plain, batch_of(4), training=True))


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("soft", [False, True], ids=["labels", "chances"])
def test_it_can_be_differentiated_in_inputs_and_soft_labels(mode: str, soft: bool) -> None:
    """Analytic derivative of <v, update> against central differences, in float64, through batch norm."""
    model = network("batch norm").double()
    params, buffers = state_of(model)
    batch = batch_of(3, soft=soft, dtype=torch.float64)
    draw = torch.Generator().manual_seed(9)
    v = {name: torch.randn(p.shape, generator=draw, dtype=torch.float64) for name, p in params.items()}
    client = FedSGD(mode=mode)  # type: ignore[arg-type]

    def along(inputs: Tensor, labels: Tensor) -> Tensor:
        update = client(model, params, Batch(inputs, labels), buffers=buffers, create_graph=True)
        return torch.stack([(update.tensors[name] * v[name]).sum() for name in v]).sum()

    leaves = [batch.inputs.requires_grad_()] + ([batch.labels.requires_grad_()] if soft else [])
    slopes = torch.autograd.grad(along(batch.inputs, batch.labels), leaves)
    for place, (leaf, slope) in enumerate(zip(leaves, slopes, strict=True)):
        step = torch.randn(leaf.shape, generator=draw, dtype=torch.float64)
        points = []
        for size in (1e-5, -1e-5):
            moved = [batch.inputs.detach(), batch.labels.detach()]
            moved[place] = moved[place] + size * step
            points.append(float(along(*moved).detach()))
        numeric = (points[0] - points[1]) / 2e-5
        assert float((slope * step).sum()) == pytest.approx(numeric, rel=1e-5)


def test_without_create_graph_it_carries_no_graph() -> None:
    model = network("fc")
    update = FedSGD()(model, state_of(model)[0], batch_of(2))
    assert not any(tensor.requires_grad for tensor in update.tensors.values())


def mean_of_singles(client: FedSGD, model: nn.Module, batch: Batch) -> Tensors:
    params, buffers = state_of(model)
    singles = [
        client(model, params, Batch(batch.inputs[i : i + 1], batch.labels[i : i + 1]), buffers=buffers).tensors
        for i in range(len(batch))
    ]
    return {name: torch.stack([single[name] for single in singles]).mean(0) for name in params}


@given(
    st.sampled_from(["fc", "conv", "batch norm", "group norm"]), st.sampled_from(["train", "eval"]), st.integers(2, 5)
)
def test_separable_means_that_the_update_is_the_mean_over_single_examples(name: str, mode: str, n: int) -> None:
    model, batch = network(name), batch_of(n, seed=n)
    client = FedSGD(mode=mode)  # type: ignore[arg-type]
    params, buffers = state_of(model)
    update = client(model, params, batch, buffers=buffers).tensors
    singles = mean_of_singles(client, model, batch)
    equal = all(torch.allclose(update[k], singles[k], rtol=1e-3, atol=1e-6) for k in update)
    assert client.separable(model) == equal


def test_a_difference_of_weights_is_not_taken_for_a_gradient() -> None:
    with pytest.raises(SeepageError, match="difference of weights"):
        FedSGD().as_gradient(Update({"w": torch.ones(2)}, kind="delta"))


def test_every_named_client_can_be_made_and_printed() -> None:
    for make in CLIENTS.values():
        assert eval(repr(make()), {make.make.__name__: make.make}) == make()


def test_a_large_network_by_name_gives_the_same_as_backward() -> None:
    model = build(Architecture("convnet", {"width": 4, "batch_norm": True}), SHAPE, 4)
    params, buffers = state_of(model)
    update = FedSGD()(model, params, batch_of(6), buffers=buffers)
    assert_close(update.tensors, by_backward(model, batch_of(6), training=True), rtol=1e-4)
