"""FedAvg: several local steps on the client's own batches; the difference of weights is sent."""

import math
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.base.nn import derived_seed, forward, frozen_randomness, generator, has_batch_norm, in_mode
from seepage.base.registry import clients
from seepage.errors import SeepageError, refuse
from seepage.federation.clients.base import TrainingRule, WrappedRule, gradient_of, leaves_of
from seepage.federation.clients.optimizers import NAMES, OPTIMIZERS, WITH_MOMENTUM, Optimizer, OptimizerName, clipped
from seepage.federation.measured import Step
from seepage.federation.types import LocalProblem, Mode, StepGradient, Tensors, Update

MOST_STEPS = 100_000
"""Local steps of one round; more count as a mistake, in a recipe or in a file."""
FEW_STEPS = 1000
"""Local steps up to which reaches are summed one by one, exactly; beyond, a closed form takes constant time.

The closed form loses digits by cancellation at a momentum m near 1, most where `steps (1 - m)` is small.
"""


@clients.register("fedavg")
@dataclass(frozen=True, kw_only=True, repr=False)
class FedAvg(TrainingRule):
    """The client trains for some epochs, or some steps, and sends its weights minus those it was given.

    McMahan et al., AISTATS 2017, Algorithm 1. Each local step sees its own batch, so batch norm in train mode takes
    the statistics of that batch alone. With `create_graph` every step stays in the graph: an attack differentiates
    the whole local training, at a memory that grows with the steps.

    Masks of dropout and rounding of autocast are the client's alone: attacks are given the rule without them
    (`read_as`), and how far that is from what was sent is measured.

    Args:
        lr: Local learning rate.
        epochs: Passes over the client's examples.
        steps: This many steps instead, going on into further epochs as needed.
        batch_size: Examples per step; the last batch of an epoch may be smaller.
        accumulate: Batches whose gradients are added up, each over their number, before a step is made.
        optimizer: `sgd`, `adam`, `adamw`, `rmsprop`, `adagrad` or `adadelta`, with PyTorch's constants; `signsgd`:
            `lr` times the sign of each entry.
        momentum: Of `sgd` and `rmsprop`; starts from zero each round.
        nesterov: Of `sgd` with momentum: the step looks ahead.
        weight_decay: As PyTorch's optimizers take it: added to the gradient, of `adamw` taken off the weights.
        eps: Epsilon of an optimizer that has one; None: PyTorch's.
        clip_norm: Largest Euclidean norm of a local step's gradient, before the optimizer; None: any.
        clip_value: Largest size of one of its entries; None: any.
        shuffle: Draw a new order for each epoch, as data loaders do. The attacker knows that, and not the order.
        mode: `train` or `eval` batch norm, as in `FedSGD`.
        dropout: Dropout and stochastic depth are on; their masks are the client's own, anew in each round.
        precision: `float32`, or `bfloat16`: forward passes under PyTorch's autocast.
        loss: `cross_entropy`, `mse`, `bce`, `binary` (one logit), or your own `module:function` of outputs and targets.
        label_smoothing: Of `cross_entropy`: share of each label that is spread evenly over all classes.
        class_weights: Of `cross_entropy`: what the examples of each class are multiplied with; empty: all alike.
        target: `label`, or `input` where each example is its own target, as of an autoencoder.
        seed: Seeds the order. A client's own is drawn anew each round; the attacker's copy keeps this one.

    Example:
        >>> from seepage.federation.types import Batch
        >>> model = nn.Linear(4, 3)
        >>> params = {name: p.detach() for name, p in model.named_parameters()}
        >>> batch = Batch(torch.rand(6, 4), torch.arange(6) % 3)
        >>> client = FedAvg(lr=0.1, epochs=2, batch_size=4)
        >>> update = client(model, params, batch)
        >>> update.kind, client.count(6)
        ('delta', 4)
    """

    lr: float = 0.01
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    optimizer: OptimizerName = "sgd"
    momentum: float = 0.0
    nesterov: bool = field(default=False, metadata={"quiet": True})
    weight_decay: float = field(default=0.0, metadata={"quiet": True})
    eps: float | None = field(default=None, metadata={"quiet": True})
    clip_norm: float | None = field(default=None, metadata={"quiet": True})
    clip_value: float | None = field(default=None, metadata={"quiet": True})
    accumulate: int = field(default=1, metadata={"quiet": True})
    dropout: bool = field(default=False, metadata={"quiet": True})
    precision: Literal["float32", "bfloat16"] = field(default="float32", metadata={"quiet": True})
    shuffle: bool = True
    mode: Mode = "train"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = []
        if not 0 < self.lr < math.inf:
            wrong.append(f"lr > 0, got {self.lr}")
        for name in ("epochs", "batch_size", "accumulate", "steps"):
            count = getattr(self, name)
            if count is not None and not 1 <= count <= MOST_STEPS:
                wrong.append(f"{name} from 1 to {MOST_STEPS}, got {count}")
        if self.optimizer not in NAMES:
            wrong.append(f"optimizer {', '.join(map(repr, NAMES[:-1]))} or {NAMES[-1]!r}, got {self.optimizer!r}")
        if self.precision not in ("float32", "bfloat16"):
            wrong.append(f"precision 'float32' or 'bfloat16', got {self.precision!r}")
        if self.mode not in ("train", "eval"):
            wrong.append(f"mode 'train' or 'eval', got {self.mode!r}")
        if not 0 <= self.momentum < 1 or (self.momentum and self.optimizer not in WITH_MOMENTUM):
            wrong.append(f"momentum from 0 to below 1, and with sgd or rmsprop only, got {self.momentum}")
        if self.nesterov and not (self.momentum and self.optimizer == "sgd"):
            wrong.append("momentum and sgd for nesterov")
        if not 0 <= self.weight_decay < math.inf:
            wrong.append(f"weight_decay >= 0, got {self.weight_decay}")
        for name in ("clip_norm", "clip_value", "eps"):
            most = getattr(self, name)
            if most is not None and not 0 < most < math.inf:
                wrong.append(f"{name} > 0, got {most}")
        if wrong:
            raise SeepageError(f"the client rule fedavg needs {'; '.join(wrong)}; correct the recipe's [client]")

    def count(self, examples: int) -> int:
        """Local steps of a client with so many examples."""
        return self.steps or self.epochs * math.ceil(examples / self._each)

    @property
    def _each(self) -> int:
        """Examples of a local step."""
        return self.batch_size * self.accumulate

    def with_steps(self, steps: int) -> "FedAvg":
        return replace(self, steps=steps)

    def max_participations(self, examples: int) -> int:
        return math.ceil(self.count(examples) / math.ceil(examples / self._each))

    def batches(self, examples: int) -> list[Tensor]:
        """Places `[b]` of the examples of each local step.

        Raises:
            Inapplicable: For more than `MOST_STEPS` steps: each of a client's numbers may be possible, and their
                product not.
        """
        steps = self.count(examples)
        if steps > MOST_STEPS:
            raise refuse("too_large")(
                f"a client of {examples} examples makes {steps} local steps, more than {MOST_STEPS}, and "
                "they are not computed one by one",
                "correct its epochs, its batch size or its number of examples",
            )
        parts: list[Tensor] = []
        epoch = 0
        while len(parts) < self.count(examples):
            order = torch.arange(examples)
            if self.shuffle:
                order = torch.randperm(examples, generator=generator(self.seed, "local order", epoch))
            parts += order.split(self._each)
            epoch += 1
        return parts[: self.count(examples)]

    @property
    def local_steps(self) -> bool:
        # A derived rule that computes its update in another way does not go through `walk`.
        return type(self).compute is FedAvg.compute

    def compute(self, problem: LocalProblem) -> Update:
        def gradient(now: Tensors, places: Tensor) -> Tensors:
            return self.gradient(problem, now, places)

        with ExitStack() as stack:
            if self.dropout:
                seed = derived_seed(self.seed, "masks")
                stack.enter_context(frozen_randomness(seed, problem.batch.inputs.device))
            return self.walk(problem.params, len(problem.batch), gradient, create_graph=problem.create_graph)

    def loss_at(self, problem: LocalProblem, weights: Tensors, places: Tensor | None = None) -> Tensor:
        if places is not None and len(places) > self.batch_size:  # accumulated: each batch passes by itself
            parts = [self.loss_at(problem, weights, part) for part in places.split(self.batch_size)]
            return torch.stack(parts).mean()
        device = problem.batch.inputs.device.type
        with torch.autocast(device, torch.bfloat16, enabled=self.precision == "bfloat16"):
            return super().loss_at(problem, weights, places)

    def outputs(self, problem: LocalProblem, weights: Tensors, inputs: Tensor) -> Tensor:
        with in_mode(problem.model, training=self.mode == "train", dropout=self.dropout):
            return forward(problem.model, weights, inputs, buffers=problem.buffers)

    def walk(self, params: Tensors, examples: int, gradient: StepGradient, *, create_graph: bool = False) -> Update:
        start = leaves_of(params)
        now = dict(start)
        optimizer = self._optimizer
        for places in self.batches(examples):
            if not create_graph:
                now = leaves_of(now)
            steepest = self.step_gradient(gradient(now, places), now, start)
            now = optimizer.step(now, clipped(steepest, self.clip_norm, self.clip_value))
        delta = {name: now[name] - start[name].detach() for name in now}
        return Update(delta if create_graph else {name: d.detach() for name, d in delta.items()}, kind="delta")

    @property
    def _optimizer(self) -> Optimizer:
        return OPTIMIZERS[self.optimizer](
            lr=self.lr, momentum=self.momentum, nesterov=self.nesterov, weight_decay=self.weight_decay, eps=self.eps
        )

    def first_step(self, examples: int | None) -> tuple[Step, float] | None:
        """The only local step, of which a gradient can be read, and the share of the weights that it took off them.

        Args:
            examples: Number of the client's examples; needed for a rule of epochs.

        Returns:
            None for several steps, or an unknown number, and for an optimizer that leaves signs alone.
        """
        known, optimizer = self.steps is not None or examples is not None, self._optimizer
        if not known or self.count(examples or 1) != 1 or optimizer.first is None:
            return None
        limit = math.inf if self.clip_value is None else self.clip_value
        return replace(optimizer.first, limit=limit, scaled=self.clip_norm is not None), optimizer.decays_beside

    def step_gradient(self, gradient: Tensors, now: Tensors, start: Tensors) -> Tensors:
        """The descent gradient of a local step: that of the loss here; a derived rule may add a term, as FedProx does.

        Args:
            gradient: Gradient of the loss at `now`, one tensor per parameter.
            now: The weights at this step.
            start: The weights that the server sent.
        """
        return gradient

    def reaches(self, steps: int) -> list[float]:
        """Weight of each step's gradient in the final difference of weights, in units of `-lr`; one per step.

        `delta = -lr sum over s of reaches[s] g_s`, with `g_s` the gradient at step s.
        """
        # With momentum m, step s moves them again at every later one: 1 + m + ... + m^(steps - 1 - s) times, and once
        # more, so that it is as if one step more were made less the first, where the step looks ahead: r <- 1 + m r.
        plain = [(1 - self.momentum ** (steps - s)) / (1 - self.momentum) for s in range(steps)]
        return [1 + self.momentum * far for far in plain] if self.nesterov else plain

    def reach(self, steps: int) -> float:
        """The sum of `reaches`: the factor r in `delta = -lr r g`, where the gradient g is the same at all steps.

        The time is bounded whatever the number of steps, which may come from an untrusted file.
        """
        return sum(self.reaches(steps)) if steps <= FEW_STEPS else self._reach_of_many(steps)

    def _reach_of_many(self, steps: int) -> float:
        # Sum over k = 1 .. n of (1 - m^k) / (1 - m), a geometric sum: (n - m (1 - m^n) / (1 - m)) / (1 - m).
        m = self.momentum
        plain = (steps - m * (1 - m**steps) / (1 - m)) / (1 - m)
        return steps + m * plain if self.nesterov else plain

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        """The mean gradient behind a difference of weights: `-delta / (lr reach(n))` for n local steps.

        With SGD and one gradient g at all steps, `delta = -lr reach(n) g` exactly; where the gradient changes along the
        way, the result is an average over the steps, in which early ones weigh more with momentum. With Adam it is no
        average, as each entry was divided by a size of its own.

        Args:
            update: Difference of weights, after minus before.
            examples: Number of the client's examples; needed for a rule of epochs, whose steps depend on it.

        Returns:
            One tensor per parameter that was sent, of its shape.

        Raises:
            SeepageError: For an update that is a gradient, and for an unknown number of steps.
        """
        if update.kind != "delta":
            raise SeepageError(
                "FedAvg sends differences of weights and this update is a gradient; name the client rule fedsgd"
            )
        if examples is None and self.steps is None:
            raise SeepageError(
                "how many local steps a client of several epochs made is not known without its number of examples; "
                "name it with --batch-size, or give the client's steps in place of its epochs"
            )
        reach = self.reach(self.count(examples or 1))
        return {name: tensor / (-self.lr * reach) for name, tensor in update.tensors.items()}

    def separable(self, model: nn.Module) -> bool:
        return False

    def batch_coupled(self, model: nn.Module) -> bool:
        return self.mode == "train" and has_batch_norm(model)

    @property
    def linear_in_gradient(self) -> bool:
        return self.optimizer == "sgd" and self.clip_value is None

    @property
    def sign_only(self) -> bool:
        return self.optimizer == "signsgd"

    def first_order_rule(self) -> "MeanGradient":
        return MeanGradient(self)

    @property
    def read_as(self) -> "FedAvg":
        return replace(self, dropout=False, precision="float32")

    def without_decay(self) -> "FedAvg":
        return replace(self, weight_decay=0.0) if self._decay_shows else self

    @property
    def _decay_shows(self) -> bool:
        """Whether weight decay is a share of the weights by itself: elsewhere it goes through what else is done."""
        return self.optimizer in ("sgd", "adamw") and self.clip_norm is None and self.clip_value is None

    def undecayed(self, update: Update, params: Tensors, examples: int) -> Update:
        if not (self.weight_decay and self._decay_shows):
            return update
        # SGD adds c w to each gradient: -lr c w sum of reaches. AdamW multiplies the weights by 1 - lr c at each step.
        steps = self.count(examples)
        pull = self.lr * self.weight_decay
        share = pull * self.reach(steps) if self.optimizer == "sgd" else 1 - (1 - pull) ** steps
        return update.without_decay(params, dict.fromkeys(params, share))

    def for_round(self, seed: int, t: int) -> "FedAvg":
        drawn = self.shuffle or self.dropout
        return replace(self, seed=derived_seed(seed, "client order", t)) if drawn else self


@dataclass(frozen=True)
class MeanGradient(WrappedRule):
    """The mean of the gradients of a client's local batches, all at the weights it was sent.

    What an update of local training is when its weights hardly move. Each local batch is passed by itself, since batch
    norm in train mode takes the statistics of each.

    Args:
        rule: The local training.
    """

    rule: FedAvg

    def compute(self, problem: LocalProblem) -> Update:
        leaves, parts = leaves_of(problem.params), self.rule.batches(len(problem.batch))
        mean = torch.stack([self.rule.loss_at(problem, leaves, places) for places in parts]).mean()
        return Update(gradient_of(mean, leaves, create_graph=problem.create_graph))

    def as_gradient(self, update: Update, examples: int | None = None) -> Tensors:
        return update.tensors

    @property
    def linear_in_gradient(self) -> bool:
        return True

    @property
    def sign_only(self) -> bool:
        return False

    def max_participations(self, examples: int) -> int:
        return 1
