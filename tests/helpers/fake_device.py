"""A device that is not there, so that code for GPUs is checked where there is none.

While `pretended()` is open, tensors can be made on `cuda:0` and moved to it. They say that they lie there and hold
their numbers on the CPU, so every result is a CPU's; and what fails between a CPU and a GPU fails here: an operation
on tensors of both, a CPU's generator for a draw on the device, `.numpy()` without `.cpu()`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Generator, Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("cuda", 0)

_ATEN = torch.ops.aten
_COPIES = {_ATEN.copy_.default, _ATEN._to_copy.default}
_INDEXING = {
    *(_ATEN.index.Tensor, _ATEN._unsafe_index.Tensor),
    *(_ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default),
}


@contextmanager
def pretended() -> Iterator[torch.device]:
    """The device; where torch has a real one, that.

    >>> with pretended() as device:
    ...     far = torch.ones(2, device=device)
    ...     far.device.type, (far * 2).sum().item()
    ('cuda', 4.0)
    >>> with pretended() as device:
    ...     torch.ones(2, device=device) + torch.ones(2)
    Traceback (most recent call last):
        ...
    RuntimeError: aten::add.Tensor was given tensors of cuda:0 and of the CPU; move them to one device
    """
    if torch.cuda.is_available():
        yield DEVICE
        return
    getattr(torch._C, "_ensureCUDADeviceGuardSet", bool)()  # as its own fake tensors do, in newer torch
    with patch.object(torch.cuda, "_lazy_init", lambda: None), _FromNumbers(), _Device():  # type: ignore[no-untyped-call]
        yield DEVICE


class Far(Tensor):
    """A tensor of the pretended device, as C++ code sees it on `meta`, with its numbers in `near`."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "Far":
        """Take a CPU's tensor."""
        made: Far = Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            layout=near.layout,
            device=torch.device("meta"),
        )
        made.near = near
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where it claims to be."""
        return DEVICE

    is_cuda = property(lambda self: True)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Far({self.near})"

    def __format__(self, spec: str) -> str:
        return format(self.near, spec)

    def tolist(self) -> Any:
        """Its numbers."""
        return self.near.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Far":
        copy = Far(self.near.detach().clone()).requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy  # type: ignore[return-value]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Makes tensors on the device where one is named."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """Tensors from Python numbers, which torch would copy to a real device below the level of `_Device`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_far(kwargs.get("device")):
            return func(*args, **kwargs | {"device": "cpu"}).to(DEVICE)
        if func is Tensor.new_tensor and isinstance(args[0], Far):
            return args[0].near.new_tensor(*args[1:], **kwargs).to(DEVICE)
        return func(*args, **kwargs)


def _is_far(device: Any) -> bool:
    """Whether a device is the pretended one; `meta` is what C++ code takes it for."""
    return device is not None and torch.device(device).type in (DEVICE.type, "meta")


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    leaves, named = tree_leaves((args, kwargs)), kwargs.get("device")
    goes = any(isinstance(leaf, Far) for leaf in leaves) if named is None else _is_far(named)
    if func in _INDEXING and isinstance(args[0], Far):
        leaves = tree_leaves((args[0], args[2:], kwargs))  # its indices may lie on the CPU
    _check(func, leaves, goes)
    near_args, near_kwargs = tree_map_only(Far, lambda far: far.near, (args, dict(kwargs)))
    if named is not None:
        near_kwargs["device"] = torch.device("cpu")
    out = func(*near_args, **near_kwargs)
    if func is _ATEN.copy_.default:
        return args[0]
    if not goes:
        return out
    out = tree_map_only(Tensor, Far, out)
    return return_and_correct_aliasing(func, args, kwargs, out)


def _check(func: Any, leaves: Sequence[Any], goes: bool) -> None:
    """Raise where a GPU would; tensors of one number may lie on the CPU there."""
    if func in _COPIES:
        return
    far = any(isinstance(leaf, Far) for leaf in leaves)
    near = any(isinstance(leaf, Tensor) and not isinstance(leaf, Far) and leaf.dim() for leaf in leaves)
    if far and near:
        raise RuntimeError(f"{func.name()} was given tensors of {DEVICE} and of the CPU; move them to one device")
    if goes and any(isinstance(leaf, Generator) and leaf.device.type == "cpu" for leaf in leaves):
        raise RuntimeError(f"{func.name()} draws on {DEVICE} with a generator of the CPU; draw there and move it")
