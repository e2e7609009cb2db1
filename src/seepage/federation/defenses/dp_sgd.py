"""DP-SGD: clip each example's gradient, add them up, add noise; in one gradient, or in every local step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.func import grad, vmap

from seepage.base.nn import called, forward, in_mode, without_hooks
from seepage.base.registry import defenses
from seepage.errors import SeepageError, refuse
from seepage.federation.clients import WrappedRule
from seepage.federation.defenses.noise import gaussian
from seepage.federation.types import (
    Batch,
    ClientUpdate,
    ClientView,
    Defense,
    GaussianMechanism,
    LocalProblem,
    Noise,
    Tensors,
    Update,
)

CHUNK = 16
"""Examples whose gradients are held in memory at a time."""


@defenses.register("dp_sgd")
@dataclass(frozen=True, kw_only=True)
class DPSGD(Defense):
    """Clip each example's gradient, add Gaussian noise to their sum, divide by their number (DP-SGD).

    Abadi et al. 2016, Algorithm 1. The noise of the sum has standard deviation `sigma * clip`, so that of a mean of n
    gradients has `sigma * clip / n`. FedLeak (Section 6.4) clips to 1. The update is made anew from the batch, so this
    defense comes first in a composition.

    With `fedsgd` the client sends one such mean. With `fedavg` every local step goes along one, with noise of its own,
    and the client sends the difference of weights as ever: what Opacus does inside a client. Where Opacus divides by
    the batch size it expects, this divides by the number of examples in the step, which is another only for the
    smaller last batch of an epoch. A user-defined rule that sends differences of weights is refused.

    To count it, give `privacy.accounting.epsilon` this sigma, and as `rounds` the rounds times `max_participations(n)`:
    the local steps in which one example is used. That count takes nothing for the order being unknown, and holds for
    examples that are left out of their step; Opacus counts all steps, each joined at random (Poisson sampling),
    which batches of a fixed size are not.

    Args:
        sigma: Noise multiplier: standard deviation of the noise in the sum, in units of `clip`.
        clip: Largest Euclidean norm of one example's gradient over all tensors.

    Example:
        >>> from torch import nn
        >>> from seepage.federation.clients import FedAvg
        >>> from seepage.base.nn import generator
        >>> model = nn.Linear(4, 3)
        >>> params = {name: p.detach() for name, p in model.named_parameters()}
        >>> batch, rule = Batch(torch.rand(6, 4), torch.arange(6) % 3), FedAvg(lr=0.1, epochs=2, batch_size=2)
        >>> client, plain = ClientView(model, params, batch, rule), rule(model, params, batch)
        >>> sent = DPSGD(sigma=0.0, clip=1e-3)(plain, client, generator=generator(0, "defense"))
        >>> float(torch.cat([t.flatten() for t in sent.tensors.values()]).norm()) <= rule.count(6) * 0.1 * 1e-3
        True
    """

    from_batch: ClassVar[bool] = True
    """It makes the update anew from the batch, so whatever was done before is lost."""

    sigma: float
    clip: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf or not 0 < self.clip < math.inf:
            raise SeepageError(
                f"DPSGD needs sigma >= 0 and clip > 0, got sigma={self.sigma}, clip={self.clip}; correct the recipe"
            )

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        _check_applies(update, client)

        def gradient(now: Tensors, places: Tensor) -> Tensors:
            here = replace(client, params={name: tensor.detach() for name, tensor in now.items()})
            return self._private(here, places, generator)

        made = client.rule.walk(client.params, len(client.batch), gradient).tensors
        return replace(update, tensors={name: made[name].to(tensor) for name, tensor in update.tensors.items()})

    def defended_rule(self, rule: ClientUpdate, model: nn.Module, sent: Tensors) -> ClientUpdate:
        """The clip of examples, in each local step; the noise is left out."""
        own = rule.per_client
        if not (own.single_gradient or own.local_steps) or rule.batch_coupled(model):
            return rule
        return rule.with_per_client(ClippedRule(own, self.clip))

    def added_noise(self, rule: ClientUpdate, examples: float, t: int) -> Noise:
        """The clip is of examples, so none is stated of the whole; a local step's noise is taken to stay as it was."""
        return Noise(self.sigma * self.clip * _share_of_sum(rule, examples))

    def with_less_noise(self, share: float, t: int) -> "DPSGD":
        return replace(self, sigma=share * self.sigma)

    def mechanism(self, rounds: Sequence[int]) -> GaussianMechanism:
        return GaussianMechanism("example", self.clip, self.sigma, every_step=True)

    def _private(self, client: ClientView, places: Tensor, generator: Generator) -> Tensors:
        """The noisy mean of some examples' clipped gradients at the client's weights."""
        summed = {name: torch.zeros_like(tensor) for name, tensor in client.params.items()}
        for chunk in places.split(CHUNK):
            for name, part in _clipped_sum(example_gradients(client, chunk), self.clip).items():
                summed[name] += part
        # (sum_i clip(g_i) + N(0, sigma^2 C^2 I)) / b: Abadi et al. 2016, Algorithm 1.
        deviation = self.sigma * self.clip
        return {name: (total + deviation * gaussian(total, generator)) / len(places) for name, total in summed.items()}


@dataclass(frozen=True)
class ClippedRule(WrappedRule):
    """What a client behind `dp_sgd` computes, less the noise: the rule of an attacker who knows of it.

    Differentiable in inputs and soft labels; it holds the gradient of every example of a local step at once. Hooks on
    the model see one pass of the whole batch at the weights that were sent, after all others: tensors of the passes
    example by example cannot be used outside them.

    Args:
        rule: What the client does.
        clip: Largest Euclidean norm of one example's gradient.
        still: All local steps at the weights that were sent: their mean, in place of the difference of weights.
    """

    clip: float
    still: bool = False

    def compute(self, problem: LocalProblem) -> Update:
        model, batch = problem.model, problem.batch
        view = ClientView(model, problem.params, batch, self.rule, problem.buffers or {})
        with without_hooks(model) as watched:
            update = self._clipped(view, problem.create_graph)
        if watched:
            with in_mode(model, training=self.mode == "train"):
                forward(model, problem.params, batch.inputs, buffers=problem.buffers)
        return update

    def _clipped(self, view: ClientView, create_graph: bool) -> Update:
        params, count = view.params, len(view.batch)

        def gradient(now: Tensors, places: Tensor) -> Tensors:
            rows = example_gradients(replace(view, params=now), places)
            mean = {name: total / len(places) for name, total in _clipped_sum(rows, self.clip).items()}
            return mean if create_graph else {name: tensor.detach() for name, tensor in mean.items()}

        if not self.still:
            return self.rule.walk(params, count, gradient, create_graph=create_graph)
        steps = [gradient(params, places) for places in self.rule.batches(count)]
        return Update({name: torch.stack([step[name] for step in steps]).mean(0) for name in params})

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        return update.tensors if self.still else self.rule.as_gradient(update, examples)

    def first_order_rule(self) -> "ClippedRule":
        return replace(self, still=self.rule.local_steps)


def _share_of_sum(rule: ClientUpdate, examples: float) -> float:
    """Deviation of the noise in one client's mean gradient, over that in the sum of a local step's examples.

    Local step s of n is divided by its examples b_s and moves the weights by r_s = 1 + m + ... + m^(n - 1 - s) learning
    rates (momentum m), and the noises are independent: sqrt(sum (r_s / b_s)^2) / sum r_s.
    """
    if not rule.local_steps:
        return 1 / examples
    sizes = [len(places) for places in rule.batches(math.ceil(examples))]
    reach = rule.reaches(len(sizes))
    return math.sqrt(sum((far / size) ** 2 for far, size in zip(reach, sizes, strict=True))) / sum(reach)


def _clipped_sum(rows: Tensors, clip: float) -> Tensors:
    """Rows `[b, *shape]` of all tensors, each example's scaled down to the clip norm, and added up."""
    squares = torch.stack([row.flatten(1).square().sum(1) for row in rows.values()]).sum(0)  # [b]
    shrink = (clip / (squares + 1e-30).sqrt()).clamp(max=1.0)  # finite, and so is its gradient, for a gradient of zero
    return {name: torch.einsum("b...,b->...", row, shrink) for name, row in rows.items()}


def example_gradients(client: ClientView, places: Tensor) -> Tensors:
    """The gradient of each of some examples' losses at the client's weights: `[b, *shape]` by parameter name.

    Args:
        client: Whose rule has local steps, or is separable: it sends the mean of its examples' gradients.
        places: `[b]` places in the client's batch.
    """
    batch = client.batch
    inputs, labels = batch.inputs[places], batch.labels[places]
    if not (client.rule.single_gradient or client.rule.local_steps):
        alone = [_alone(client, Batch(x[None], y[None])) for x, y in zip(inputs, labels, strict=True)]
        return {name: torch.stack([one[name] for one in alone]) for name in client.params}
    with in_mode(client.model, training=client.rule.mode == "train"):
        per_example = vmap(grad(_loss(client)), in_dims=(None, 0, 0))
        rows: Tensors = per_example(client.params, inputs, labels)
    return rows


def _loss(client: ClientView) -> Callable[[Tensors, Tensor, Tensor], Tensor]:
    """The loss of one example, as a function of weights, input and label."""
    model = client.model
    state = dict(client.buffers or dict(model.named_buffers()))

    def loss(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return client.rule.loss_of(called(model, {**params, **state}, x[None]), y[None])

    return loss


def _alone(client: ClientView, batch: Batch) -> Tensors:
    return client.rule(client.model, client.params, batch, buffers=client.buffers or None).tensors


def _check_applies(update: Update, client: ClientView) -> None:
    """Raise `Inapplicable` where the update is not made of separate gradients of single examples."""
    local = client.rule.local_steps
    if (update.kind == "delta") != local:
        raise refuse("weight_difference")(
            "DP-SGD clips the gradients of single examples, and how this client made its difference of weights from "
            "them is not known",
            "use the client rule fedsgd or fedavg, or gaussian_noise with a clip, which bounds the whole update",
        )
    if client.rule.read_as != client.rule:
        raise refuse("dropout_or_precision")(
            "DP-SGD passes every example by itself, without the client's dropout or autocast",
            "leave out dropout and precision, or use gaussian_noise with a clip, which bounds the whole update",
        )
    if client.rule.batch_coupled(client.model):
        raise refuse("batch_norm")(
            "DP-SGD needs a gradient per example, and batch norm in train mode lets each reach into all others",
            "use a model with group norm, or the client option mode = 'eval'",
        )
    # Of a loss that is no mean over examples, as with class weights, each example's own is that of a batch of one.
    if not (local or client.rule.single_gradient or client.rule.separable(client.model)):
        raise refuse("no_mean_of_examples")(
            "DP-SGD needs an update that is the mean of its examples' gradients, and this client rule does more",
            "use the client rule fedsgd or fedavg",
        )
