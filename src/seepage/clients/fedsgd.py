"""FedSGD: one gradient of the mean loss over the client's batch."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from seepage.core.nn import forward, has_batch_norm, in_mode
from seepage.errors import SeepageError
from seepage.types import Batch, ClientUpdate, Tensors, Update


@dataclass(frozen=True, kw_only=True)
class FedSGD(ClientUpdate):
    """The client sends the gradient of its batch's mean cross-entropy at the server's weights.

    Args:
        mode: `train`: batch norm uses the batch's own statistics, as clients do when they train.
            `eval`: it uses the running ones, as most published attacks assume. Dropout is off in both.

    Example:
        >>> model = nn.Linear(4, 3)
        >>> params = {name: p.detach() for name, p in model.named_parameters()}
        >>> batch = Batch(torch.rand(2, 4), torch.tensor([0, 2]))
        >>> update = FedSGD()(model, params, batch)
        >>> {name: tuple(t.shape) for name, t in update.tensors.items()}
        {'weight': (3, 4), 'bias': (3,)}
    """

    mode: Literal["train", "eval"] = "train"

    def __call__(
        self,
        model: nn.Module,
        params: Tensors,
        batch: Batch,
        *,
        buffers: Tensors | None = None,
        create_graph: bool = False,
    ) -> Update:
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
        with in_mode(model, training=self.mode == "train"):
            loss = F.cross_entropy(forward(model, leaves, batch.inputs, buffers=buffers), batch.labels)
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=create_graph, materialize_grads=True)
        if not create_graph:  # the zeros of unused parameters may come with a graph of their own
            gradients = tuple(gradient.detach() for gradient in gradients)
        return Update(dict(zip(leaves, gradients, strict=True)))

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        if update.kind != "gradient":
            raise SeepageError(
                "FedSGD sends gradients and this update is a difference of weights; "
                "divide it by minus the learning rate first, or name the client rule that made it"
            )
        return update.tensors

    def separable(self, model: nn.Module) -> bool:
        return self.mode == "eval" or not has_batch_norm(model)
