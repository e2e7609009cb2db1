"""What a network's outputs are, by one pass: the layer that makes them, the axis of its classes, what it draws."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.base.nn import as_inputs, captured_calls, frozen_randomness, generator, in_mode, logits_in
from seepage.base.rounding import FLOAT32_NETWORK

MANY = 32
"""Examples on which two passes in train mode are compared: rare dropout seldom leaves all of them alike."""
ENOUGH = 2**18
"""Values of all of these examples together: of large pictures there are fewer, whose values are many."""
FEWEST_SORTED = 8
"""Values from which their order is no chance."""
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Outputs:
    """The layer that a network's logits are made by, but for a permutation and what their softmax does not see.

    Attributes:
        layer: Its name.
        classes: Its rows.
        axis: Axis of the logits along which they lie, 1 or more.
    """

    layer: str
    classes: int
    axis: int


def outputs_of(model: nn.Module, input_shape: tuple[int, ...], *, bent: bool = False) -> Outputs | None:
    """The layer behind a network's logits; None where these are made of more than one layer's outputs.

    A layer of somebody's own, whose weight is no module's, is told by its bias: what is added to that is added to the
    logits.

    Args:
        model: The network. Its mode and state are left as they were.
        input_shape: Shape of one example.
        bent: A layer counts of which each output is bent by itself, as by a sigmoid, too.

    >>> outputs_of(nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(-1)), (5, 4))
    Outputs(layer='0', classes=3, axis=2)
    """
    names = [name for name, module in model.named_modules() if isinstance(module, _LAYERS)]
    probes = _probes(model, input_shape)
    with torch.enable_grad(), in_mode(model, training=False), captured_calls(model, names) as calls:
        logits = logits_in(model(probes))
    for name in reversed(calls):
        layer, made = model.get_submodule(name), calls[name][-1].output
        classes = layer.out_features if isinstance(layer, nn.Linear) else len(layer.weight)  # type: ignore[arg-type]
        rows = _rows(made if isinstance(layer, nn.Linear) else made.movedim(1, -1), int(classes))
        for axis in range(1, logits.ndim):
            if logits.shape[axis] != classes or logits.numel() != made.numel():
                continue
            if torch.allclose(_rows(logits.movedim(axis, -1), int(classes)), rows, atol=FLOAT32_NETWORK):
                return Outputs(name, int(classes), axis)
            if bent and _monotone(made.detach().movedim(-1 if isinstance(layer, nn.Linear) else 1, -1), logits, axis):
                return Outputs(name, int(classes), axis)
    return _by_bias(model, probes, logits.detach())


def _monotone(made: Tensor, logits: Tensor, axis: int) -> bool:
    """Whether logits are one rising or falling function of what a layer made: k values are so by a chance of 2 / k!."""
    moved = logits.detach().movedim(axis, -1)
    if moved.shape != made.shape or made.numel() < FEWEST_SORTED:
        return False
    steps = moved.flatten()[made.flatten().argsort()].diff()
    return bool((steps >= 0).all() or (steps <= 0).all()) and bool(steps.any())


def _by_bias(model: nn.Module, probes: Tensor, logits: Tensor) -> Outputs | None:
    """The module of somebody's own to whose bias the logits' softmax adds what is added to it."""
    for name, module in reversed(list(model.named_modules())):
        bias = module._parameters.get("bias")
        if bias is None or bias.ndim != 1 or len(bias) < 2 or isinstance(module, (*_LAYERS, nn.RNNBase)):
            continue
        axes = [axis for axis in range(1, logits.ndim) if logits.shape[axis] == len(bias)]
        if not axes:
            continue
        added = torch.rand(len(bias), generator=generator(0, "bias"), dtype=torch.float64).to(bias)
        state = {f"{name}.bias".removeprefix("."): bias.detach() + added}
        with torch.no_grad(), in_mode(model, training=False):
            moved = logits_in(functional_call(model, state, (probes.clone(),)))
        for axis in axes:
            shifted = (one.movedim(axis, -1) for one in (moved, logits))
            own, expected = next(shifted), next(shifted) + added
            if torch.allclose(_rows(own, len(bias)), _rows(expected, len(bias)), atol=FLOAT32_NETWORK):
                return Outputs(name, len(bias), axis)
    return None


def _rows(logits: Tensor, classes: int) -> Tensor:
    """`[n T, classes]` softmax values; of one class its values."""
    rows = logits.detach().double().reshape(-1, classes)
    return rows.softmax(1) if classes > 1 else rows


def _probes(model: nn.Module, input_shape: tuple[int, ...], count: int = 2) -> Tensor:
    like = next(model.parameters())
    noise = torch.rand((count, *input_shape), generator=generator(0, "probe"), dtype=torch.float64)
    return as_inputs(model, noise.to(like))


def draws(model: nn.Module, input_shape: tuple[int, ...]) -> bool | None:
    """Whether a pass in train mode draws random numbers: dropout, noise, or random paths, in modules or in the code.

    Outputs need not show it: behind weights that are zero, as those of fresh adapters, two passes are the same.

    Returns:
        None where the network cannot be run in train mode.
    """
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [(module, module.training) for module in model.modules()]
    try:
        drawn, found, count = False, [], max(2, min(MANY, ENOUGH // max(1, math.prod(input_shape))))
        values = _probes(model, input_shape, count)
        model.train()
        for seed in (1, 2):
            with torch.no_grad(), frozen_randomness(seed, values.device):
                begun = torch.get_rng_state()
                found.append(logits_in(model(values.clone())))
                drawn |= not torch.equal(begun, torch.get_rng_state())
                model.load_state_dict(state)  # batch norm counts its passes
        return drawn or not torch.equal(*found)
    except Exception:  # user code may raise anything
        return None
    finally:
        model.load_state_dict(state)
        for module, mode in modes:
            module.training = mode
