"""Soteria: prune the gradient of one fully connected layer where its input gives the example away."""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from seepage.base.nn import calls_in_pass
from seepage.base.registry import defenses
from seepage.errors import Inapplicable, SeepageError, refuse
from seepage.federation.types import ClientView, Defense, DefenseModel, Tensors, Update


@defenses.register("soteria")
@dataclass(frozen=True, kw_only=True)
class Soteria(Defense):
    """Hide the features of a fully connected layer that give most of the example away (Sun et al. 2021).

    The layer's input r is the representation. Features with the largest `|r_i| / ||d r_i / d x||` (the paper's measure,
    in the cheaper form its code uses) have their column of the weight's gradient set to zero; everything else is sent
    as it is.

    Chosen here: for a batch the inverse ratios are averaged over the examples in which the feature is not zero, and a
    feature that is zero in all of them is pruned last (its column is zero anyhow; the code divides by zero there).
    Batch norm uses its running statistics, so that an example's representation is its own. After several local steps
    the columns of the weights' change are set to zero, chosen at the weights the server sent.

    Args:
        ratio: Share of the layer's inputs that are hidden, in [0, 1], rounded to whole features.
        layer: Name of the `torch.nn.Linear`; None takes the first one that does not read the input itself.
    """

    only_hides: ClassVar[bool] = True

    ratio: float
    layer: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise SeepageError(f"Soteria prunes a share in [0, 1], got ratio={self.ratio}; correct the recipe")

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        name = self.pruned_layer(client.model, update.tensors)
        weight = f"{name}.weight"
        hidden = self.hidden_features(client, name)
        return replace(update, tensors={**update.tensors, weight: update.tensors[weight].index_fill(1, hidden, 0)})

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        if self.layer is not None:
            return (HiddenColumns(f"{self.layer}.weight"),)
        try:
            return (HiddenColumns(f"{self.pruned_layer(model, dict(model.named_parameters()))}.weight"),)
        except Inapplicable:  # another model than the defense ran on
            return ()

    def hidden_features(self, client: ClientView, layer: str) -> Tensor:
        """Indices of the layer's inputs that are hidden."""
        score = sensitivity(client, layer)
        return score.argsort(stable=True)[: round(self.ratio * len(score))]

    def pruned_layer(self, model: nn.Module, names: Container[str]) -> str:
        """Name of the layer whose inputs are hidden.

        Args:
            model: The model.
            names: Names of the tensors of an update.

        Raises:
            Inapplicable: Where the model has no such layer.
        """
        linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        owners = [name for name, m in model.named_modules() if next(m.parameters(recurse=False), None) is not None]
        inner = [name for name in owners if name in linear and name != owners[0]]
        found = self.layer or next(iter(inner), None)
        if found is None or found not in linear or f"{found}.weight" not in names:
            what = "behind the first layer" if self.layer is None else f"called {self.layer!r}"
            raise refuse("no_linear_layer")(
                f"Soteria prunes a trainable fully connected layer, and the model has none {what}",
                f"name one with layer = NAME, of: {', '.join(linear) or '(the model has none)'}",
            )
        return found


def sensitivity(client: ClientView, layer: str) -> Tensor:
    """`[k]` mean over examples of `||d r_i / d x|| / |r_i|` for the k inputs r of a layer; infinite for unused ones.

    Raises:
        Inapplicable: Where the layer does not read one vector per example, once.
    """
    inputs = client.batch.inputs.detach().requires_grad_()
    calls = calls_in_pass(client.model, [layer], client.params, inputs, buffers=client.buffers).get(layer, [])
    if len(calls) != 1 or calls[0].input.dim() != 2 or len(calls[0].input) != len(inputs):
        raise refuse("not_called_once")(
            f"Soteria needs a layer that reads one vector per example, once, and {layer!r} does not",
            "name another one with layer = NAME",
        )
    features = calls[0].input  # [n, k]
    gradients = torch.stack([_gradient(features[:, i], inputs) for i in range(features.shape[1])], dim=1)  # [n, k]
    # The paper's |r_i| / |dr_i/dx|, inverted so that a feature that is not used, r_i = 0, is recognized.
    used = features.detach() != 0
    ratios = torch.where(used, gradients / features.detach().abs(), 0)
    return torch.where(used.any(0), ratios.sum(0) / used.sum(0), torch.inf)


def _gradient(feature: Tensor, inputs: Tensor) -> Tensor:
    """`[n]` norm of each example's derivative of its own feature."""
    (gradient,) = torch.autograd.grad(feature.sum(), inputs, retain_graph=True)
    lengths: Tensor = gradient.flatten(1).norm(dim=1)
    return lengths


@dataclass(frozen=True)
class HiddenColumns(DefenseModel):
    """Columns of one weight that were sent as zero were hidden; zeros elsewhere are true."""

    weight: str

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        if self.weight not in target:  # another model than the defense ran on
            return dummy
        shown = (target[self.weight] != 0).any(0)  # [inputs]
        return {**dummy, self.weight: dummy[self.weight] * shown}
