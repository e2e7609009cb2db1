"""Priors on what a layer of the model sees."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from seepage.base.nn import LayerCall
from seepage.errors import refuse
from seepage.federation.types import Knowledge, Round

ACTIVATIONS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish),
    *(nn.Sigmoid, nn.Tanh, nn.Softplus),
)


Seen = Mapping[str, Sequence[LayerCall]]
"""The calls of each watched layer in one forward pass, by the layer's name; a layer may be used more than once."""


class LayerPrior(ABC):
    """A penalty on what layers of the model see while the dummy update is computed.

    Attributes:
        separable: It is a mean over examples, and so may be taken micro-batch by micro-batch.
    """

    separable: ClassVar[bool] = False

    @abstractmethod
    def layers(self, model: nn.Module) -> list[str]:
        """Names of the modules it wants to see; `""` is the model itself."""

    @abstractmethod
    def __call__(self, seen: Seen, labels: Tensor, observed: Round) -> Tensor:
        """The penalty, a scalar that is differentiable in what was seen."""

    def check(self, knowledge: Knowledge, observed: Round) -> None:
        """Raise `Inapplicable` where the model, or what is known of it, does not have what the prior needs."""
        return


@dataclass(frozen=True)
class ActivationSize(LayerPrior):
    """L1 norm of the outputs of the activation layers, summed over layers (FedLeak, section 4.4).

    Where a model has no activation modules (functions instead), every convolution and linear layer but the last
    stands in. The paper writes a norm and no normalization; with `sum` the term outweighs the distance by far on any
    real network, so the default is the mean.

    Args:
        weight: The paper's beta.
        reduce: `mean` over a layer's entries; `sum` over those of one example, mean over examples.
    """

    separable: ClassVar[bool] = True
    weight: float
    reduce: Literal["mean", "sum"] = "mean"

    def layers(self, model: nn.Module) -> list[str]:
        found = [name for name, module in model.named_modules() if isinstance(module, ACTIVATIONS)]
        weighted = (nn.Conv1d, nn.Conv2d, nn.Linear)
        return found or [name for name, module in model.named_modules() if isinstance(module, weighted)][:-1]

    def __call__(self, seen: Seen, labels: Tensor, observed: Round) -> Tensor:
        sizes = [call.output.abs() for calls in seen.values() for call in calls]
        terms = [size.mean() if self.reduce == "mean" else size.flatten(1).sum(1).mean() for size in sizes]
        return self.weight * torch.stack(terms).sum()

    def check(self, knowledge: Knowledge, observed: Round) -> None:
        if not self.layers(knowledge.model):
            raise refuse("no_activations")(
                "the prior on small activations finds no activation, convolution or inner fully connected layer as a "
                "module of this model",
                "set the attack's activation to 0, or use inverting_gradients",
            )


@dataclass(frozen=True)
class BatchNormStatistics(LayerPrior):
    """Distance of the batch's statistics at each BatchNorm to the running ones (GradInversion, CVPR 2021, eq. 10).

    Euclidean norms of the difference of means and of (biased) variances, summed over layers. The running statistics
    are those of the round the update comes from. On a freshly initialized network they are 0 and 1 and say nothing
    about the data.

    Args:
        weight: The paper's alpha_BN.
    """

    weight: float

    def layers(self, model: nn.Module) -> list[str]:
        kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        return [name for name, module in model.named_modules() if isinstance(module, kinds)]

    def __call__(self, seen: Seen, labels: Tensor, observed: Round) -> Tensor:
        terms = []
        for name, calls in seen.items():
            mean, variance = (observed.buffers[key] for key in _running(name))
            for call in calls:
                over = [axis for axis in range(call.input.ndim) if axis != 1]
                here, spread = call.input.mean(over), call.input.var(over, unbiased=False)
                terms += [_length(here - mean.to(here)), _length(spread - variance.to(here))]
        return self.weight * torch.stack(terms).sum()

    def check(self, knowledge: Knowledge, observed: Round) -> None:
        names = self.layers(knowledge.model)
        if not names:
            raise refuse("no_batch_norm")(
                "the model has no BatchNorm layer whose statistics could be matched",
                "set the attack's batch_norm to 0, or use inverting_gradients",
            )
        missing = [key for name in names for key in _running(name) if key not in observed.buffers]
        if missing:
            raise refuse("not_sent")(
                f"the round holds no running statistics such as {missing[0]!r}",
                "record the model's buffers with the round, or set the attack's batch_norm to 0",
            )


def _running(name: str) -> tuple[str, str]:
    prefix = f"{name}." if name else ""
    return f"{prefix}running_mean", f"{prefix}running_var"


def _length(difference: Tensor) -> Tensor:
    # The square root has no gradient at 0, where a flat channel meets its statistics.
    return (difference.square().sum() + 1e-30).sqrt()
