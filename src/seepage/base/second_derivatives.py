"""A model whose gradient can be differentiated in turn: what stands in for operations that PyTorch has no rule for."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from seepage.errors import refuse

NO_RULE = re.compile(r"derivative for (?:aten::)?(\w+) is not implemented")
"""What PyTorch says of an operation that it cannot differentiate; the operation is usually a `..._backward`."""


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """`min(max(x + 3, 0), 6) / 6`, the definition (Howard et al. 2019, section 5.2), of parts that have two rules."""
    return F.relu6(input + 3) / 6


STAND_INS: dict[Callable[..., Any], Callable[..., Any]] = {F.hardsigmoid: _hardsigmoid}
"""Functions whose derivative has no rule, and the same values and slopes made of others."""


class _StandIns(TorchFunctionMode):
    """Calls what stands in for a function while it is on."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return STAND_INS.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Run a block in which gradients of this model, made with `create_graph`, can be differentiated.

    PyTorch's fused kernels of attention have no second derivative, so the plain one is used; nor has the hard sigmoid
    of squeeze-and-excitation in MobileNetV3, which is written out. (Recurrent layers: see `core.nn.called`.)

    Args:
        model: The model that the block runs. It is not changed.

    Raises:
        Inapplicable: Where the block differentiates an operation that has no second derivative.

    Example:
        >>> import torch
        >>> net, x = nn.Hardsigmoid(), torch.tensor([0.5], requires_grad=True)
        >>> with twice_differentiable(net):
        ...     (slope,) = torch.autograd.grad(net(x).square(), x, create_graph=True)
        ...     torch.autograd.grad(slope, x)[0]  # 2 (1/6)^2
        tensor([0.0556])
    """
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        # The mode sees every call of every function, so it is on only where there is something to replace.
        if any(isinstance(module, nn.Hardsigmoid) for module in model.modules()):
            stack.enter_context(_StandIns())
        try:
            yield
        except RuntimeError as error:
            missing = NO_RULE.search(str(error))
            if missing is None:
                raise
            raise refuse("no_derivatives")(
                f"the model uses an operation whose gradient PyTorch cannot differentiate ({missing[1]}), and matching "
                "gradients needs their derivative",
                "write that layer with other operations, or use an attack in closed form, such as linear, "
                "cocktail_party or patch_embedding",
            ) from error
