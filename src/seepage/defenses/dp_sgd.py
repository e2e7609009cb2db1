"""DP-SGD: clip each example's gradient, add them up, add noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, vmap

from seepage.clients import FedSGD
from seepage.defenses.noise import gaussian
from seepage.errors import Inapplicable, SeepageError
from seepage.functional import in_mode
from seepage.types import Batch, ClientView, Defense, Tensors, Update


@dataclass(frozen=True, kw_only=True)
class DPSGD(Defense):
    """Clip each example's gradient, add Gaussian noise to their sum, divide by their number (DP-SGD).

    Abadi et al. 2016, Algorithm 1. The noise of the sum has standard deviation `sigma * clip`, so that of the update
    has `sigma * clip / n`. FedLeak (Section 6.4) clips to 1. The update is made anew from the batch, so this defense
    comes first in a composition. It is defined for clients that send one gradient; a client of several local steps is
    refused.

    `seepage.accounting.epsilon` takes this sigma. It counts examples that join a batch independently (Poisson
    sampling); for batches of a fixed size, as this package draws them, it is the usual approximation.

    Args:
        sigma: Noise multiplier: standard deviation of the noise in the sum, in units of `clip`.
        clip: Largest Euclidean norm of one example's gradient over all tensors.
        chunk: Examples whose gradients are held in memory at a time.
    """

    from_batch: ClassVar[bool] = True
    """It makes the update anew from the batch, so whatever was done before is lost."""

    sigma: float
    clip: float = 1.0
    chunk: int = 16

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf or not 0 < self.clip < math.inf or self.chunk < 1:
            raise SeepageError(
                f"DPSGD needs sigma >= 0, clip > 0 and chunk >= 1, got sigma={self.sigma}, clip={self.clip}, "
                f"chunk={self.chunk}; correct the recipe"
            )

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        _check_applies(update, client)
        summed = {name: torch.zeros_like(tensor) for name, tensor in client.params.items()}
        for places in torch.arange(len(client.batch)).split(self.chunk):
            rows = example_gradients(client, places)
            lengths = torch.stack([row.flatten(1).norm(dim=1) for row in rows.values()]).norm(dim=0)  # [b]
            shrink = (self.clip / lengths.clamp(min=1e-12)).clamp(max=1.0)
            for name, row in rows.items():
                summed[name] += torch.einsum("b...,b->...", row, shrink)
        deviation, count = self.sigma * self.clip, len(client.batch)
        sent = {
            name: ((summed[name] + deviation * gaussian(summed[name], generator)) / count).to(tensor)
            for name, tensor in update.tensors.items()
        }
        return replace(update, tensors=sent)


def example_gradients(client: ClientView, places: Tensor) -> Tensors:
    """The gradient of each of some examples' losses: `[b, *shape]` by parameter name.

    Args:
        client: Whose rule must be separable: one that sends the mean of its examples' gradients.
        places: `[b]` places in the client's batch.
    """
    batch = client.batch
    inputs, labels = batch.inputs[places], batch.labels[places]
    if type(client.rule) is not FedSGD:
        alone = [_alone(client, Batch(x[None], y[None])) for x, y in zip(inputs, labels, strict=True)]
        return {name: torch.stack([one[name] for one in alone]) for name in client.params}
    with in_mode(client.model, training=client.rule.mode == "train"):
        per_example = vmap(grad(_loss(client.model, client.buffers)), in_dims=(None, 0, 0))
        rows: Tensors = per_example(client.params, inputs, labels)
    return rows


def _loss(model: nn.Module, buffers: Tensors) -> Callable[[Tensors, Tensor, Tensor], Tensor]:
    state = dict(buffers or dict(model.named_buffers()))

    def loss(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(model, {**params, **state}, (x[None],))
        return F.cross_entropy(logits, y[None])

    return loss


def _alone(client: ClientView, batch: Batch) -> Tensors:
    return client.rule(client.model, client.params, batch, buffers=client.buffers or None).tensors


def _check_applies(update: Update, client: ClientView) -> None:
    if update.kind != "gradient":
        raise Inapplicable(
            "DP-SGD clips the gradients of single examples, and this client sends what local steps did to its weights",
            "use the client rule fedsgd, or gaussian_noise with a clip, which bounds the whole update",
        )
    if client.rule.couples(client.model):
        raise Inapplicable(
            "DP-SGD needs a gradient per example, and batch norm in train mode lets each reach into all others",
            "use a model with group norm, or the client option mode = 'eval'",
        )
    if not client.rule.separable(client.model):
        raise Inapplicable(
            "DP-SGD needs an update that is the mean of its examples' gradients, and this client rule does more",
            "use the client rule fedsgd",
        )
