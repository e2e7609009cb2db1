"""Pure helpers: modes, seeds, states, and finding the layers that leak."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, attack, build, record
from seepage.base.nn import (
    dot,
    forward,
    frozen_randomness,
    generator,
    in_mode,
    input_layer,
    last_linear,
    norm,
    output_shape,
    state_of,
    try_inputs,
    vocabulary_of,
)
from seepage.federation.models import Normalize

SHAPE = (2, 3, 4)


def draws(*key: object) -> Tensor:
    return torch.rand(64, generator=generator(*key))  # type: ignore[arg-type]


@given(st.integers(-(2**40), 2**63), st.text(max_size=8), st.integers(0, 10**6))
def test_generators_repeat_and_differ_in_every_part_of_their_key(seed: int, purpose: str, t: int) -> None:
    own = draws(seed, purpose, t)
    assert torch.equal(own, draws(seed, purpose, t))
    for other in ((seed + 1, purpose, t), (seed, purpose + "x", t), (seed, purpose, t + 1)):
        assert not torch.equal(own, draws(*other))


def test_neighbouring_generators_are_uncorrelated() -> None:
    rows = torch.stack([draws(0, "noise", t) for t in range(200)])
    correlations = torch.corrcoef(rows)[~torch.eye(200, dtype=torch.bool)]
    assert correlations.abs().max() < 0.6
    assert abs(float(correlations.mean())) < 0.01


def test_frozen_randomness_repeats_and_restores_the_global_generator() -> None:
    before = torch.get_rng_state()
    with frozen_randomness(3):
        first = torch.rand(4)
    with frozen_randomness(3):
        assert torch.equal(first, torch.rand(4))
    assert torch.equal(torch.get_rng_state(), before)


class FunctionalDropout(nn.Module):
    """Dropout as a call, not a module: it follows its owner's mode."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.dropout(inputs, 0.5, training=self.training)


def noisy() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), FunctionalDropout(), nn.Linear(8, 3))


def test_in_mode_restores_every_modules_own_mode_also_after_an_error() -> None:
    model = noisy()
    model.eval()
    model[2].train()
    before = [module.training for module in model.modules()]
    with in_mode(model, training=True):
        assert model[1].training
        assert [module.training for module in model.modules()] != before
    assert [module.training for module in model.modules()] == before

    def fail() -> None:
        with in_mode(model, training=True):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("training", [True, False])
def test_dropout_of_every_form_stays_off(training: bool) -> None:
    model, inputs = noisy(), torch.rand(16, 4)
    params, buffers = state_of(model)
    with in_mode(model, training=training):
        first, second = (forward(model, params, inputs, buffers=buffers) for _ in range(2))
    assert torch.equal(first, second)


def test_stochastic_depth_stays_off() -> None:
    from torchvision.ops import StochasticDepth

    model = nn.Sequential(StochasticDepth(0.9, "row"))
    with in_mode(model, training=True):
        assert torch.equal(model(torch.ones(32, 1)), torch.ones(32, 1))


def test_train_mode_reaches_batch_norm() -> None:
    model, inputs = nn.Sequential(nn.BatchNorm1d(4, affine=False)), 5 + torch.rand(16, 4)
    for training, mean in ((True, 0.0), (False, 5.5)):
        with in_mode(model, training=training):
            assert float(forward(model, {}, inputs).mean()) == pytest.approx(mean, abs=0.2)


def test_forward_leaves_module_and_buffers_alone() -> None:
    model = noisy()
    params, buffers = state_of(model)
    zeros = {name: torch.zeros_like(p) for name, p in params.items()}
    kept = {name: b.clone() for name, b in buffers.items()}
    with in_mode(model, training=True):
        output = forward(model, zeros, torch.rand(8, 4), buffers=buffers)
        forward(model, zeros, torch.rand(8, 4))
    assert not output.any()
    assert all(torch.equal(buffers[name], kept[name]) for name in kept)
    assert all(torch.equal(b, kept[name]) for name, b in model.named_buffers())
    assert any(p.any() for p in model.parameters())


def test_state_of_copies_trainable_parameters_and_buffers() -> None:
    model = noisy()
    model[0].weight.requires_grad_(False)
    params, buffers = state_of(model)
    assert set(params) == {name for name, _ in model.named_parameters()} - {"0.weight"}
    assert set(buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    params["4.bias"].fill_(9)
    buffers["1.running_mean"].fill_(9)
    for untouched in (model[4].bias, model[1].running_mean):
        assert isinstance(untouched, torch.Tensor)
        assert not bool((untouched == 9).any())


def test_dot_and_norm_are_those_of_one_long_vector() -> None:
    rng = np.random.default_rng(0)
    a, b = ({n: torch.from_numpy(rng.normal(size=s)) for n, s in (("w", (3, 4)), ("b", (5,)))} for _ in range(2))
    long_a, long_b = (np.concatenate([x["w"].numpy().ravel(), x["b"].numpy()]) for x in (a, b))
    assert float(dot(a, dict(reversed(b.items())))) == pytest.approx(long_a @ long_b, rel=1e-12)
    assert float(norm(a)) == pytest.approx(np.linalg.norm(long_a), rel=1e-12)


class Wrapped(nn.Module):
    """A layer within a layer, and a name of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.body = inner

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.body(inputs)
        return output


class Scaled(nn.Module):
    """A normalisation per channel, held as buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.3, 0.7]).reshape(1, 2, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 4.0]).reshape(1, 2, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.std  # type: ignore[operator]


class Apply(nn.Module):
    """A module from a function."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.function(inputs)  # type: ignore[operator]
        return output


def head() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(24, 5), nn.ReLU(), nn.Linear(5, 3)]


READS_THE_INPUT = {
    "plain": (nn.Sequential(*head()), "1"),
    "normalised": (nn.Sequential(Normalize(0.4, 0.3), *head()), "2"),
    "per channel": (nn.Sequential(Scaled(), *head()), "2"),
    "wrapped": (Wrapped(Wrapped(nn.Sequential(*head()))), "body.body.1"),
    "nested": (nn.Sequential(nn.Sequential(Normalize(), nn.Flatten()), nn.Sequential(*head()[1:])), "1.0"),
    "flipped": (nn.Sequential(Apply(lambda x: 1 - x), *head()), "2"),
    "no bias": (nn.Sequential(nn.Flatten(), nn.Linear(24, 5, bias=False), nn.Linear(5, 3)), "1"),
}


@pytest.mark.parametrize("name", READS_THE_INPUT)
def test_the_layer_that_reads_the_input_is_found_and_inverted(name: str) -> None:
    model, prefix = READS_THE_INPUT[name]
    params, _ = state_of(model)
    layer = input_layer(model, params, SHAPE)
    assert layer.weight == f"{prefix}.weight"
    assert layer.bias == (None if name == "no bias" else f"{prefix}.bias")
    assert not any(module._forward_pre_hooks for module in model.modules())
    inputs, seen = torch.rand(6, *SHAPE), []
    handle = model.get_submodule(prefix).register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    model(inputs)
    handle.remove()
    assert torch.allclose(layer.to_inputs(seen[0].double(), SHAPE), inputs.double(), atol=1e-6)


DOES_NOT = {
    "convolution first": nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), *head()),
    "batch norm first": nn.Sequential(nn.BatchNorm2d(2), *head()),
    "no parameters": nn.Sequential(nn.Flatten()),
    "permuted": nn.Sequential(Apply(lambda x: x.permute(0, 2, 3, 1).reshape(len(x), -1)), nn.Linear(24, 3)),
    "squared": nn.Sequential(Apply(lambda x: x.square()), *head()),
    "pooled": nn.Sequential(nn.AvgPool2d((1, 2)), nn.Flatten(), nn.Linear(12, 3)),
    "padded": nn.Sequential(nn.ZeroPad2d(1), nn.Flatten(), nn.Linear(60, 3)),
    "own statistics": nn.Sequential(nn.InstanceNorm2d(2), *head()),
    "per row": nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(30, 3)),
    "used twice": nn.Sequential(nn.Flatten(), (twice := nn.Linear(24, 24)), twice, nn.Linear(24, 3)),
    "a part switched off": nn.Sequential(Apply(lambda x: x * (torch.arange(4) > 0)), *head()),
}


@pytest.mark.parametrize("name", DOES_NOT)
def test_a_layer_that_reads_something_else_is_not_taken_for_it(name: str) -> None:
    params, _ = state_of(DOES_NOT[name])
    assert input_layer(DOES_NOT[name], params, SHAPE) is None
    assert not any(module._forward_pre_hooks for module in DOES_NOT[name].modules())


def test_the_first_registered_layer_need_not_be_the_first_used() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(5, 3)
            self.first = nn.Linear(24, 5)

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.last(self.first(inputs.flatten(1)).relu())
            return output

    model = Backwards()
    found = input_layer(model, state_of(model)[0], SHAPE)
    assert found is not None
    assert found.weight == "first.weight"


@pytest.mark.parametrize(("use", "weight"), [("fc2", "4.weight"), ("mlp3", "6.weight"), ("convnet", "8.weight")])
def test_the_last_layer_with_a_row_per_class_is_found(use: str, weight: str) -> None:
    model = build(Architecture(use), (1, 8, 8), 7)
    found = last_linear(model, 7)
    assert found == (weight, weight.replace("weight", "bias"))
    assert last_linear(model, 8) is None


def test_a_last_layer_without_bias_says_so() -> None:
    assert last_linear(nn.Linear(4, 3, bias=False), 3) == ("weight", None)


class OneValue(nn.Module):
    """Values for regression as many write them: `[n]`."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.out = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.read(inputs).relu()).squeeze(-1)
        return found


def test_outputs_of_one_value_an_example_are_a_column() -> None:
    model = OneValue()
    params = dict(model.named_parameters())
    assert forward(model, params, torch.rand(3, 6)).shape == (3, 1)
    assert output_shape(model, params, None, (6,)) == (1,)
    batch = Batch(torch.rand(1, 6), torch.rand(1, 1))
    found = attack(record(model, batch, client=FedSGD(loss="mse")), "linear")
    assert torch.allclose(found.inputs, batch.inputs, atol=1e-4)


def test_a_bag_of_rows_is_a_table() -> None:
    model = nn.Sequential(nn.EmbeddingBag(50, 8), nn.Linear(8, 2))
    try_inputs(model, (5,))
    assert vocabulary_of(model) == 50
