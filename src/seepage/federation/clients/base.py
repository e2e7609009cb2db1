"""Base classes of client rules: the gradient of a loss, and rules that wrap another rule."""

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor, nn

from seepage.base.nn import forward, in_mode
from seepage.errors import SeepageError
from seepage.federation.clients.losses import check_loss, loss_of
from seepage.federation.types import ClientUpdate, LocalProblem, Mode, OwnTarget, Reduction, Tensors, Update


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingRule(ClientUpdate):
    """A rule whose client follows the gradient of a loss over its own examples.

    Args:
        loss: `cross_entropy`, `mse` (values, or one-hot labels), `bce`, `binary` (one logit for two classes), or your
            own `module:function` of outputs and targets.
        label_smoothing: Of `cross_entropy`: share of each label that is spread evenly over all classes.
        class_weights: Of `cross_entropy`: what the examples of each class are multiplied with; empty: all alike.
        target: `label`, or `input` where each example is its own target, as of an autoencoder.
    """

    # Options with their default values are left out of the `repr`.
    loss: str = field(default="cross_entropy", metadata={"quiet": True})
    label_smoothing: float = field(default=0.0, metadata={"quiet": True})
    class_weights: tuple[float, ...] = field(default=(), metadata={"quiet": True})
    target: OwnTarget = field(default="label", metadata={"quiet": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "class_weights", tuple(self.class_weights))  # a list, where it comes from TOML
        check_loss(self.loss, self.label_smoothing, self.class_weights)
        if self.target not in ("label", "input"):
            raise SeepageError(
                f"client.target is 'label' or 'input', got {self.target!r}; correct the recipe's [client]"
            )
        if self.target == "input" and self.loss in ("cross_entropy", "binary"):
            raise SeepageError(
                f"the client's targets are its inputs and its loss {self.loss} is of classes; say which it is: --loss "
                "mse, bce (of logits), or your own module:function of outputs and inputs"
            )

    def __repr__(self) -> str:
        shown = [f for f in fields(self) if not ("quiet" in f.metadata and getattr(self, f.name) == f.default)]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    def loss_of(self, logits: Tensor, labels: Tensor, reduction: Reduction = "mean") -> Tensor:
        return loss_of(
            self.loss,
            logits,
            labels,
            label_smoothing=self.label_smoothing,
            class_weights=self.class_weights,
            reduction=reduction,
        )

    @property
    def softmax_gradient(self) -> bool:
        return self.loss == "cross_entropy" and not self.label_smoothing and not self.class_weights

    @property
    def one_logit(self) -> bool:
        return self.loss == "binary"

    def loss_at(self, problem: LocalProblem, weights: Tensors, places: Tensor | None = None) -> Tensor:
        """The mean loss of some of the client's examples at these weights.

        Args:
            problem: The model and the examples.
            weights: All trainable parameters.
            places: `[b]` places in the batch; None: all of it.
        """
        inputs, labels = problem.batch.inputs, problem.batch.labels
        if places is not None:
            places = places.to(inputs.device)
            inputs, labels = inputs[places], labels[places]
        outputs = self.outputs(problem, weights, inputs)
        return self.loss_of(outputs, inputs.reshape(outputs.shape) if self.target == "input" else labels)

    def outputs(self, problem: LocalProblem, weights: Tensors, inputs: Tensor) -> Tensor:
        """The model's outputs in training, at these weights."""
        with in_mode(problem.model, training=self.mode == "train"):
            return forward(problem.model, weights, inputs, buffers=problem.buffers)

    def gradient(self, problem: LocalProblem, weights: Tensors, places: Tensor | None = None) -> Tensors:
        """The gradient of `loss_at`, for those of the weights that require one."""
        leaves = {name: tensor for name, tensor in weights.items() if tensor.requires_grad}
        loss = self.loss_at(problem, weights, places)
        return gradient_of(loss, leaves, create_graph=problem.create_graph)


def leaves_of(params: Tensors) -> Tensors:
    """Copies of the weights as leaves of a new graph."""
    return {name: tensor.detach().requires_grad_() for name, tensor in params.items()}


def gradient_of(loss: Tensor, weights: Tensors, *, create_graph: bool) -> Tensors:
    """The gradient of a loss by name; zeros for weights that it does not depend on."""
    found = torch.autograd.grad(loss, list(weights.values()), create_graph=create_graph, materialize_grads=True)
    # The zeros of unused parameters may come with a graph of their own.
    found = found if create_graph else tuple(tensor.detach() for tensor in found)
    return dict(zip(weights, found, strict=True))


@dataclass(frozen=True)
class WrappedRule(ClientUpdate):
    """A rule that wraps another one and inherits its properties.

    Args:
        rule: The rule that it wraps.
    """

    rule: ClientUpdate

    @property
    def loss(self) -> str:
        return self.rule.loss

    def loss_of(self, logits: Tensor, labels: Tensor, reduction: Reduction = "mean") -> Tensor:
        return self.rule.loss_of(logits, labels, reduction)

    @property
    def target(self) -> OwnTarget:
        return self.rule.target

    @property
    def softmax_gradient(self) -> bool:
        return self.rule.softmax_gradient

    @property
    def one_logit(self) -> bool:
        return self.rule.one_logit

    @property
    def mode(self) -> Mode:
        return self.rule.mode

    @property
    def linear_in_gradient(self) -> bool:
        return self.rule.linear_in_gradient

    @property
    def sign_only(self) -> bool:
        return self.rule.sign_only

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        return self.rule.as_gradient(update, examples)

    def separable(self, model: nn.Module) -> bool:
        return self.rule.separable(model)

    def batch_coupled(self, model: nn.Module) -> bool:
        return self.rule.batch_coupled(model)

    def max_participations(self, examples: int) -> int:
        return self.rule.max_participations(examples)
