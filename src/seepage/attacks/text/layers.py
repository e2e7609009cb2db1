"""Which fully connected layers of a network read its tokens, and what they read: found by running it, whatever its
code.

    gradient of W = sum over tokens i of (what the layer reads of i) (x) (the gradient in what it makes of i)

so the gradient's columns, on the side of the layer's input, span what the layer reads of all tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.network import AttackedRound
from seepage.base.nn import forward, generator, in_mode
from seepage.base.rounding import FLOAT32_ZERO
from seepage.federation.types import Tensors


@dataclass(frozen=True)
class TokenLayer:
    """Fully connected layers that read the same vectors of the tokens, such as query, key and value.

    Attributes:
        module: Name of the first of them.
        weights: For each the name of its weight, and the axis of the weight that its input is on.
        local: Whether a vector depends on its own token and place alone.
        causal: Whether it depends on tokens up to its own alone.
    """

    module: str
    weights: tuple[tuple[str, int], ...]
    local: bool
    causal: bool

    def mixtures(self, gradient: Tensors) -> Tensor:
        """`[d, m]` the gradients of the weights side by side: each column is a mixture of what is read."""
        parts = [gradient[name] if axis == 0 else gradient[name].T for name, axis in self.weights]
        return torch.cat(parts, 1)


class _Enough(Exception):
    """Ends a forward pass when all that is wanted of it is there."""


@dataclass(frozen=True, eq=False)
class Reader:
    """Runs the network on sequences up to the layers that are looked at.

    Attributes:
        attacked: The model and its weights.
    """

    attacked: AttackedRound

    def read(self, modules: Sequence[str], ids: Tensor) -> dict[str, Tensor]:
        """`[n, tokens, d]` what layers read of sequences `[n, tokens]`, by name; nothing behind the last of them runs.

        Args:
            modules: Names, in the order of their calls.
            ids: Token numbers; -1: none.
        """
        model, seen = self.attacked.model, dict[str, Tensor]()
        ids = ids.to(self.device)
        with ExitStack() as hooks, torch.no_grad():
            for name in modules:
                hooks.callback(_before(model.get_submodule(name), name, seen, name == modules[-1]).remove)
            with suppress(_Enough):
                self.attacked.forward(ids)
        return seen

    @cached_property
    def takes_shorter(self) -> bool:
        """Whether the network takes -1 behind the end of a shorter sequence; others read sequences of one length.

        It is tried on the CPU: a GPU that looks up a row which is not there does not recover.
        """
        model, ids = self.attacked.model, torch.zeros((1, *self.attacked.knowledge.input_shape), dtype=torch.int64)
        ids[0, -1] = -1
        params = dict(model.named_parameters()) | self.attacked.observed.params
        buffers = dict(model.named_buffers()) | self.attacked.observed.buffers
        on_cpu = [{name: tensor.detach().cpu() for name, tensor in one.items()} for one in (params, buffers)]
        try:
            with torch.no_grad(), in_mode(model, training=False):
                forward(model, on_cpu[0], ids, buffers=on_cpu[1])
        except (IndexError, RuntimeError):
            return False
        return True

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.attacked.like().device

    def layers(self, vocabulary: int) -> list[TokenLayer]:
        """The layers that read tokens, in the order of their calls.

        Args:
            vocabulary: Number of tokens there are.
        """
        model, length = self.attacked.model, self.attacked.knowledge.input_shape[0]
        draw, place = generator(0, "probe"), length // 2
        base = torch.randint(vocabulary, (length,), generator=draw)
        other = (base + 1 + torch.randint(max(1, vocabulary - 1), (length,), generator=draw)) % vocabulary
        # A sequence, the same with every token but one changed, and the same with every later token changed.
        alone, before = (torch.where(torch.arange(length) == place, base, other), base.clone())
        before[place + 1 :] = other[place + 1 :]
        ids = torch.stack([base, alone, before]).to(self.device)
        names = own_weights(model)
        with linear_calls(model) as calls, torch.no_grad():
            self.attacked.forward(ids)
        grouped: list[tuple[Tensor, str, list[tuple[str, int]]]] = []
        for name, parameter, read, axis in calls:
            weight = names.get(id(parameter))
            if weight not in self.attacked.observed.update.tensors or weight is None or read.shape[:2] != ids.shape:
                continue
            # Between the A of two adapters that read the same, their B is called.
            same = next((weights for other, _, weights in grouped if other is read), None)
            if same is not None:
                same.append((weight, axis))
            else:
                grouped.append((read, name, [(weight, axis)]))
        return [_token_layer(read, name, weights, place) for read, name, weights in grouped]


def _token_layer(read: Tensor, name: str, weights: list[tuple[str, int]], place: int) -> TokenLayer:
    # At one place: the sequence itself, all other tokens changed, all later tokens changed. [d] each
    own, alone, before = read[:, place].double()
    local, causal = ((other - own).norm() <= FLOAT32_ZERO * own.norm() for other in (alone, before))
    return TokenLayer(name, tuple(weights), bool(local), bool(causal))


def _before(module: nn.Module, name: str, seen: dict[str, Tensor], last: bool) -> Any:
    """Keep what a module is given, and end the pass at the last one."""

    def keep(module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> None:
        seen[name] = _read(module, args, kwargs)
        if last:
            raise _Enough

    return module.register_forward_pre_hook(keep, with_kwargs=True)


def own_weights(model: nn.Module) -> dict[int, str]:
    """Names of the parameters that one module alone holds, by identity: the gradient of others is a sum of several."""
    holders = Counter(id(p) for module in model.modules() for p in module.parameters(recurse=False))
    return {id(p): name for name, p in model.named_parameters() if holders[id(p)] == 1}


@contextmanager
def linear_calls(model: nn.Module) -> Iterator[list[tuple[str, nn.Parameter, Tensor, int]]]:
    """The first call of every fully connected layer: its name, its weight, what it reads, and the weight's input axis.

    A layer is known by what it does: it has a matrix, and maps vectors of the size of one side to that of the other.
    PyTorch's own attention has those of query, key and value in one, if all three are as wide.
    """
    calls: list[tuple[str, nn.Parameter, Tensor, int]] = []
    done: set[str] = set()

    def hook(name: str, weight: nn.Parameter) -> Any:
        # The parameter itself is kept: while the network runs at other weights, the module holds those.
        def keep(module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor], output: Tensor) -> None:
            read = _read(module, args, kwargs)
            axis = _input_axis(module, read, output)
            # Keys and values of another text are in the same matrix's gradient.
            given = [*args[:3], *(kwargs[part] for part in ("query", "key", "value") if part in kwargs)]
            crossed = isinstance(module, nn.MultiheadAttention) and any(one is not given[0] for one in given)
            if axis is not None and name not in done and not crossed:
                done.add(name)
                calls.append((name, weight, read, axis))

        return keep

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            weight = getattr(module, "in_proj_weight" if isinstance(module, nn.MultiheadAttention) else "weight", None)
            if isinstance(weight, nn.Parameter) and weight.ndim == 2 and not isinstance(module, nn.Embedding):
                hooks.callback(module.register_forward_hook(hook(name, weight), with_kwargs=True).remove)
        yield calls


def _read(module: nn.Module, args: tuple[Tensor, ...], kwargs: Mapping[str, Tensor]) -> Tensor:
    """`[n, tokens, d]` what a module is given: its first argument, which for attention is the query."""
    read = args[0] if args else next(iter(kwargs.values()))
    places_first = isinstance(module, nn.MultiheadAttention) and not module.batch_first
    return read.transpose(0, 1) if places_first and read.ndim == 3 else read


def _input_axis(module: nn.Module, read: object, output: object) -> int | None:
    """Which axis of a layer's matrix its input is on: 1 in PyTorch's own, 0 in the transposed one of GPT-2."""
    if isinstance(module, nn.MultiheadAttention):
        return 1
    weight = module.weight
    assert isinstance(weight, Tensor)
    if not isinstance(read, Tensor) or not isinstance(output, Tensor) or not read.is_floating_point():
        return None
    sides = read.shape[-1], output.shape[-1]
    if isinstance(module, nn.Linear) or tuple(weight.shape) == sides[::-1] != sides:
        return 1
    return 0 if tuple(weight.shape) == sides else None
