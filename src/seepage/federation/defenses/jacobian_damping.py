"""Trade closeness to the true gradient against what the update tells about small changes of the input."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor, nn

from seepage.base.algebra.derivative import Derivative
from seepage.base.nn import dot
from seepage.base.registry import defenses
from seepage.base.solvers import conjugate_gradients
from seepage.errors import SeepageError, refuse
from seepage.federation.clients import WrappedRule
from seepage.federation.types import Batch, ClientUpdate, ClientView, Defense, LocalProblem, Tensors, Update


@defenses.register("jacobian_damping")
@dataclass(frozen=True, kw_only=True)
class JacobianDamping(Defense):
    """Send the update that best trades closeness to the true one against its leakage (a method of this package).

    It stands where FedLeak (Figure 4) has Guardian (Fan et al. 2024), which jointly optimizes a measure of performance
    and one of privacy with a weight beta of 0.1, 1, 10, 100 and 1000. Guardian's formulas are in no public text that
    was found, so this is another method with the same aim. With J the derivative of the update with respect to the
    client's inputs and g the update:

        minimize over u   ||u - g||^2 / ||g||^2  +  beta ||J^T u||^2 / ||J^T g||^2.

    The second term is what matching-based attacks live on: `J^T u` is the direction in which a small change of the
    inputs moves the update towards u. The problem is convex with the one solution of
    `(I + beta ||g||^2 / ||J^T g||^2 J J^T) u = g`, found here by conjugate gradients from g without ever
    forming J. So beta = 0 sends g, and the closeness lost and the leakage left are both monotone in beta. Figures
    found with this say nothing of Guardian. It is deterministic, and an attacker who knows
    of it solves its equation (`JacobianDampingRule`): it stops only those who do not. It prunes nothing.

    Args:
        beta: Weight of privacy, at least 0.
        steps: Steps of conjugate gradients at most.
        tolerance: They stop when the residual has fallen to this share of ||g||.
    """

    beta: float
    steps: int = 50
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf or self.steps < 1 or not 0 < self.tolerance < 1:
            raise SeepageError(
                f"JacobianDamping needs beta >= 0, steps >= 1 and tolerance in (0, 1), got beta={self.beta}, "
                f"steps={self.steps}, tolerance={self.tolerance}; correct the recipe"
            )

    def defended_rule(self, rule: ClientUpdate, model: nn.Module, sent: Tensors) -> ClientUpdate:
        """Of the sum of several clients' updates there is no such equation."""
        return JacobianDampingRule(rule, self.beta, sent) if self.beta > 0 and rule.per_client is rule else rule

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        true = {name: update.tensors[name].to(client.params[name]) for name in client.params}
        pull, push = derivatives(client)
        leak = float(pull(true).square().sum())  # |J^T g|^2: what the undefended update would give a matching attack
        if self.beta == 0 or leak == 0:
            return update
        # c = beta |g|^2 / |J^T g|^2, the ratio of the units of the two terms.
        weight = self.beta * float(dot(true, true)) / leak

        def system(u: Tensor) -> Tensor:
            return u + weight * _flat(push(pull(_named(u, true))))

        # (I + c J J^T) u = g is solved by conjugate gradients from u = g, the solution for c = 0: only the correction
        # is solved for.
        own = _flat(true)
        rest = own - system(own)  # [parameters]
        if rest.norm() > self.tolerance * own.norm():
            # The tolerance is of |g|, that of the solver of its right-hand side.
            share = float(self.tolerance * own.norm() / rest.norm())
            own = own + conjugate_gradients(system, rest, steps=self.steps, tolerance=share)
        solved = _named(own, true)
        return replace(update, tensors={name: solved[name].to(t.dtype) for name, t in update.tensors.items()})


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def _named(flat: Tensor, like: Tensors) -> Tensors:
    parts = flat.split([tensor.numel() for tensor in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}


def derivatives(client: ClientView) -> tuple[Callable[[Tensors], Tensor], Callable[[Tensor], Tensors]]:
    """The maps `u -> J^T u` and `v -> J v` of the client's undefended update with respect to its inputs."""
    inputs = client.batch.inputs.detach().requires_grad_()
    batch = Batch(inputs, client.batch.labels)
    made = client.rule(client.model, client.params, batch, buffers=client.buffers or None, create_graph=True).tensors
    outputs = {name: tensor for name, tensor in made.items() if tensor.requires_grad}
    if not outputs:
        raise refuse("no_derivatives")(
            "JacobianDamping differentiates the update by the inputs, and this one does not depend on them",
            "use another model or client rule",
        )
    slope = Derivative(list(outputs.values()), inputs)

    def pull(u: Tensors) -> Tensor:
        return slope.transposed([u[name] for name in outputs])

    def push(v: Tensor) -> Tensors:
        known = dict(zip(outputs, slope.forward(v), strict=True))
        return {name: known.get(name, torch.zeros_like(tensor)) for name, tensor in made.items()}

    return pull, push


@dataclass(frozen=True, eq=False)
class JacobianDampingRule(WrappedRule):
    """The rule of an attacker who knows of `jacobian_damping`: the batch must solve its equation for the sent update.

    The sent u and the client's own g fulfill `u = g - weight J J^T u`, with g, J and the weight those of the private
    batch. For a dummy batch the right side is the update here; it is u where the dummy is the truth, to the tolerance
    of the defense's solver. Differentiable in the inputs, at three times the cost of the rule alone.

    Args:
        rule: What the client does.
        beta: Of the defense.
        sent: The update that was seen.
    """

    beta: float
    sent: Tensors

    def compute(self, problem: LocalProblem) -> Update:
        batch, create_graph = problem.batch, problem.create_graph
        inputs = batch.inputs if batch.inputs.requires_grad else batch.inputs.detach().requires_grad_()
        own = self.rule.compute(replace(problem, batch=Batch(inputs, batch.labels), create_graph=True))
        made = own.tensors
        outputs = {name: tensor for name, tensor in made.items() if tensor.requires_grad}
        values = list(outputs.values())
        probe = [torch.zeros_like(tensor, requires_grad=True) for tensor in values]
        towards = [probe, [self.sent[name] for name in outputs], values]
        # J^T 0 (kept, as its derivative gives J v), J^T u and J^T g, each `[n, *shape]`.
        pulled, by_sent, by_own = (
            torch.autograd.grad(values, inputs, along, create_graph=True)[0] for along in towards
        )
        weight = self.beta * dot(made, made) / by_own.square().sum().clamp(min=1e-30)
        # The zeros of unused parameters may require gradients, and say nothing of the inputs.
        gradients = torch.autograd.grad(pulled, probe, by_sent, create_graph=True, materialize_grads=True)
        moved = dict(zip(outputs, gradients, strict=True))
        right = {name: tensor - weight * moved[name] if name in moved else tensor for name, tensor in made.items()}
        return replace(own, tensors=right if create_graph else {name: t.detach() for name, t in right.items()})

    def separable(self, model: nn.Module) -> bool:
        return False
