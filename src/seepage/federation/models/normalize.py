"""What is done around a network: its inputs normalized, so that all see values in [0, 1], its logits taken, and
its classes moved.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad

from seepage.base.nn import as_inputs, frozen_randomness, in_mode, logits_in, vocabulary_of
from seepage.errors import SeepageError, short

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of each color that most networks of torchvision and timm were trained with."""


class Normalize(nn.Module):
    """`(x - mean) / std`, element by element, with one mean and one std for all channels.

    The default centers [0, 1] images at 0 with a typical photograph's spread. Data-set statistics per channel
    would tell an attacker something about the data; constants do not.
    """

    def __init__(self, mean: float = 0.5, std: float = 0.25) -> None:
        super().__init__()
        self.mean = mean
        self.std = std

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean}, std={self.std}"


class _Normalizer:
    """What is done to the inputs of a network before its own first layer; under no name, so that no key changes."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.mean, self.std = mean, std

    def __call__(self, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs = given[0]
        if len(self.mean) not in (1, inputs.shape[1]):
            raise SeepageError(
                f"the normalization is of {len(self.mean)} channels and the examples have {inputs.shape[1]}; give one "
                "mean and one deviation, or one of each channel"
            )
        mean, std = (inputs.new_tensor(part).reshape(-1, *[1] * (inputs.ndim - 2)) for part in (self.mean, self.std))
        return (inputs - mean) / std, *given[1:]


def normalize_inputs(model: nn.Module, how: Any) -> None:
    """Let a network normalize its inputs first, in place, as the client does outside of it. No parameter is renamed.

    Args:
        model: The network, which takes pictures or rows of numbers.
        how: As in `statistics_of`.

    Raises:
        SeepageError: For another form, and where the network takes tokens.

    >>> from torch import ones
    >>> model = nn.Identity()
    >>> normalize_inputs(model, "0.5")
    >>> model(ones(1, 1)).item()
    1.0
    """
    mean, std = statistics_of(how)
    if vocabulary_of(model) is not None:
        raise SeepageError("the network takes tokens, and numbers of tokens are not normalized; leave out --normalize")
    model.register_forward_pre_hook(_Normalizer(mean, std))


def classes_second(model: nn.Module) -> None:
    """Let a network's logits have their last axis behind that of the examples, in place: losses take the classes there.

    >>> model = nn.Linear(4, 3)
    >>> classes_second(model)
    >>> from torch import ones
    >>> model(ones(2, 5, 4)).shape
    torch.Size([2, 3, 5])
    """
    model.register_forward_hook(lambda _, given, output: logits_in(output).movedim(-1, 1))


TAKEN = "_seepage_output"
"""Where a network keeps in words which of its several outputs are taken for the logits, where it is not the first."""


def take_last_made(model: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Let a network that returns a tuple return that part of it alone which all parameters of all others bear on.

    Networks that return their features beside the logits return either first; the logits are made of the features. Of
    parts that are made beside one another, as two heads are, the first stays.

    >>> class Both(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
    ...     def forward(self, x):
    ...         return self.body(x), self.head(self.body(x))
    >>> model = Both()
    >>> take_last_made(model, (4,))
    >>> from torch import ones
    >>> model(ones(2, 4)).shape
    torch.Size([2, 3])
    """
    own = [one for one in model.parameters() if one.requires_grad]
    if not own or own[0].device.type == "meta":
        return
    try:
        with torch.enable_grad(), in_mode(model, training=False), frozen_randomness(0):
            given = model(as_inputs(model, torch.zeros((2, *input_shape)).to(own[0])))
            if not isinstance(given, tuple | list) or hasattr(given, "logits") or len(given) < 2:
                return
            sums = [one.sum() if isinstance(one, Tensor) and one.requires_grad else None for one in given]
            bear = [
                set()
                if total is None
                else {k for k, g in enumerate(grad(total, own, retain_graph=True, allow_unused=True)) if g is not None}
                for total in sums
            ]
    except Exception:  # user code may raise anything; what it cannot take is reported where it is tried
        return
    best = max(range(len(bear)), key=lambda place: len(bear[place]))
    if bear[best] == bear[0] or not all(one <= bear[best] for one in bear):
        return
    model.__dict__[TAKEN] = f"number {best + 1} of the {len(given)} that the model returns, made of all others"
    model.register_forward_hook(lambda _, given, output: output[best])


def statistics_of(how: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and standard deviations, one of each or one for each channel.

    Args:
        how: `imagenet`; one number that is both; or a text or list of numbers, the means before the deviations.

    Raises:
        SeepageError: For anything else.

    >>> statistics_of("0.1307,0.3081"), statistics_of(0.5)
    (((0.1307,), (0.3081,)), ((0.5,), (0.5,)))
    """
    if how == "imagenet":
        return IMAGENET
    parts = how.split(",") if isinstance(how, str) else list(how) if isinstance(how, list | tuple) else [how]
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    numbers *= 2 if len(numbers) == 1 else 1
    half = len(numbers) // 2
    if not half or len(numbers) % 2 or not all(map(math.isfinite, numbers)) or min(numbers[half:]) <= 0:
        raise SeepageError(
            "--normalize takes imagenet, 0.5 (mean and deviation), or MEAN,STD such as 0.1307,0.3081, or all means and "
            f"then all deviations, above 0, of the channels, got {short(how)}"
        )
    return tuple(numbers[:half]), tuple(numbers[half:])
