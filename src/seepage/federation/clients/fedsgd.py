"""FedSGD: one gradient of the mean loss over the client's batch."""

from dataclasses import dataclass

from torch import nn

from seepage.base.nn import has_batch_norm
from seepage.base.registry import clients
from seepage.errors import SeepageError
from seepage.federation.clients.base import TrainingRule, leaves_of
from seepage.federation.clients.losses import LOSSES
from seepage.federation.types import LocalProblem, Mode, Tensors, Update


@clients.register("fedsgd")
@dataclass(frozen=True, kw_only=True, repr=False)
class FedSGD(TrainingRule):
    """The client sends the gradient of its batch's mean loss at the server's weights.

    Args:
        loss: `cross_entropy`, `mse`, `bce`, `binary` (one logit), or your own `module:function` of outputs and targets.
        label_smoothing: Of `cross_entropy`: share of each label that is spread evenly over all classes.
        class_weights: Of `cross_entropy`: what the examples of each class are multiplied with; empty: all alike.
        target: `label`, or `input` where each example is its own target, as of an autoencoder.
        mode: `train`: batch norm uses the batch's own statistics, as clients do when they train.
            `eval`: it uses the running ones, as most published attacks assume. Dropout is off in both.

    Example:
        >>> import torch
        >>> from seepage.federation.types import Batch
        >>> model = nn.Linear(4, 3)
        >>> params = {name: p.detach() for name, p in model.named_parameters()}
        >>> batch = Batch(torch.rand(2, 4), torch.tensor([0, 2]))
        >>> update = FedSGD()(model, params, batch)
        >>> {name: tuple(t.shape) for name, t in update.tensors.items()}
        {'weight': (3, 4), 'bias': (3,)}
    """

    mode: Mode = "train"

    @property
    def single_gradient(self) -> bool:
        return type(self).compute is FedSGD.compute

    def compute(self, problem: LocalProblem) -> Update:
        return Update(self.gradient(problem, leaves_of(problem.params)))

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        if update.kind != "gradient":
            raise SeepageError(
                "FedSGD sends gradients and this update is a difference of weights; "
                "divide it by minus the learning rate first, or name the client rule that made it"
            )
        return update.tensors

    def separable(self, model: nn.Module) -> bool:
        # Class weights make the loss of a batch a weighted mean of its examples' own.
        mean_of_examples = self.loss in LOSSES and not self.class_weights
        return mean_of_examples and (self.mode == "eval" or not has_batch_norm(model))

    def batch_coupled(self, model: nn.Module) -> bool:
        return self.mode == "train" and has_batch_norm(model)
