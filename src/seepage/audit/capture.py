"""What was captured of a client: two checkpoints or a gradient, and what is known of how they came about."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from seepage.audit.recipe.trust import own_code
from seepage.base.blocks import Block
from seepage.base.manifest import JudgedFile
from seepage.base.registry import Spec
from seepage.base.storage import SCHEMA
from seepage.errors import SeepageError, short
from seepage.federation.models.weights import check_head, weights_in
from seepage.federation.sent_tensors import check_fits
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.types import Architecture, Target, Tensors, Update

SENT_AS = "what was sent"
"""Name of the fact in which form the client's reply came, where that is not the one it was given as."""
VALUES = "values"
"""Name of the fact between which numbers an example's own lie."""
NORMALIZATION = "normalization"
"""Name of the fact how a client scaled pictures before its network."""
SMALL = 0.1
"""Largest ratio of the norms of a training's difference and of the weights: what is larger in no tensor is one."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """Captured files, and what is known about the client that produced them.

    Attributes:
        before: Weights that the server sent to the client.
        after: Weights that the client returned; exactly one of `after`, `gradient` and `difference` is given.
        gradient: The gradient that the client returned.
        difference: What the client returned where that is AFTER minus BEFORE.
        architecture: How to build the model.
        client: The client's rule: `fedsgd`, or `fedavg` with its `lr`, `epochs` or `steps`.
        lr: Learning rate of the SGD from `before` to `after`, if known.
        weight_decay: Of that SGD, if known.
        steps: Its local steps, if known.
        input_shape: Shape of one example, if known.
        num_classes: Classes of the model, if known.
        batch_size: Examples behind the update, if known.
        target: What examples are trained towards, as in `seepage.observe`, where it is stated.
        values: Smallest and largest number that an example holds, if known; from 0 to 1 is assumed.
        blocks: One-hot blocks of a table's row, as `Knowledge` has them, if known.
    """

    before: Path
    after: Path | None = None
    gradient: Path | None = None
    difference: Path | None = None
    architecture: Architecture
    client: Spec = Spec("fedsgd")  # noqa: RUF009
    lr: float | None = None
    weight_decay: float | None = None
    steps: int | None = None
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None
    batch_size: int | None = None
    target: Target | None = None
    values: tuple[float, float] | None = None
    blocks: tuple[Block, ...] = ()

    def __post_init__(self) -> None:
        if sum(path is not None for path in (self.after, self.gradient, self.difference)) != 1:
            raise SeepageError(
                "give the returned weights (AFTER), --gradient FILE or --difference FILE, and one of them"
            )
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise SeepageError(f"--lr must be above 0 and finite, got {self.lr}; give the client's learning rate")
        if self.weight_decay is not None and not 0 <= self.weight_decay * (self.lr or 1.0) < 1:
            raise SeepageError(
                f"--weight-decay must be from 0 to below 1 / --lr, got {self.weight_decay}; give the client's own"
            )

    @property
    def answer(self) -> Path:
        """The client's reply."""
        path = self.after or self.gradient or self.difference
        assert path is not None
        return path

    def update(self, before: Tensors, state: Tensors) -> Update:
        """The client's update, of those parameters of `before` that are in the state it returned.

        Raises:
            SeepageError: Where none of them is, and for a name or shape that is not in `before`.
        """
        strange = [name for name in state if name not in before]
        if strange or not state:
            words = f"has {some(strange)}, which {self.before} has not" if strange else "holds no parameter of it"
            raise SeepageError(f"{self.answer} {words}; give files of the same model")
        own = {name: state[name].to(like) for name, like in before.items() if name in state}
        if self.after is not None:
            return Update.from_states(before, own)
        check_fits(own, before, str(self.answer), str(self.before), partial=True)
        return Update(own) if self.gradient is not None else Update(own, "delta")

    def moved(self, state: Tensors, sent: Tensors) -> Tensors:
        """What each weight moved by, or its gradient, under the files' names."""
        there = [n for n in sent if n in state and state[n].is_floating_point() and state[n].shape == sent[n].shape]
        before, after = ({n: one[n] for n in there} for one in (state, sent))
        weights = self.after is not None and not _is_difference(before, after)
        return {n: after[n] - before[n] for n in there} if weights else after

    def mended(self, state: Tensors, sent: Tensors) -> tuple[Self, Tensors, dict[str, str]]:
        """The files as what they are: a difference in the place of AFTER, gradients of single examples as their mean.

        Args:
            state: The weights that were sent out, in the model's names.
            sent: What came back, in the model's names.

        Returns:
            The files, with the number of examples where they hold the gradient of each; what came back; what is said.
        """
        there = [name for name in sent if name in state and state[name].is_floating_point()]
        if self.after is not None and _is_difference({n: state[n] for n in there}, {n: sent[n] for n in there}):
            words = f"{self.after.name} is a difference of weights, and no weights: its entries are far smaller"
            return replace(self, after=None, difference=self.after), sent, {SENT_AS: words}
        if self.gradient is not None and there:
            shapes = [(tuple(sent[name].shape), tuple(state[name].shape)) for name in there]
            count = shapes[0][0][:1]
            if count and all(given == (*count, *own) for given, own in shapes):
                words = (
                    f"the gradient of each of {count[0]} examples alone, which gives away more than their mean; "
                    "read as that mean: one example's gradient is an update of one example"
                )
                mean = {name: tensor.mean(0) for name, tensor in sent.items()}
                return replace(self, batch_size=count[0]), mean, {SENT_AS: words}
        return self, sent, {}

    @property
    def known(self) -> frozenset[str]:
        """Names of the facts that are stated here, as `seepage check` calls them, but for the model."""
        rule = self.client.options
        whole = self.client.use != "fedsgd"  # a rule with a rate, steps and an optimizer of its own
        stated = {
            "input shape": self.input_shape is not None,
            "classes": self.num_classes is not None,
            "target": self.target is not None,
            NORMALIZATION: "normalize" in self.architecture.options,
            "loss": "loss" in rule,
            "optimizer": whole,
            "learning rate": self.lr is not None or whole,
            "local steps": self.steps is not None or whole,
            "batch size": self.batch_size is not None,
            "weight decay": self.weight_decay is not None or "weight_decay" in rule,
            VALUES: self.values is not None,
            "clipping": bool({"clip_norm", "clip_value"} & set(rule)),
            "batch norm": "mode" in rule,
            "dropout": "mode" in rule,
        }
        return frozenset(name for name, is_stated in stated.items() if is_stated)

    def names_code_of(self, observed: Path) -> bool:
        """Whether all code that its `observed/` folder names was named here, where the client's rule has such code."""
        typed = {*own_code({"client": self.client.table()}), self.architecture.use}
        facts = read_facts(observed)
        found = set(own_code({"client": facts.client, "defense": facts.defense, "model": facts.architecture}))
        return len(typed) > 1 and found <= typed

    @property
    def judged(self) -> list[JudgedFile]:
        """The files by their roles, with their digests, for whoever signs what came of them."""
        roles = (
            (self.before, "weights that were sent out", "BEFORE"),
            (self.after, "returned weights", "AFTER"),
            (self.gradient, "sent gradient", "GRADIENT"),
            (self.difference, "sent difference of weights", "DIFFERENCE"),
        )
        return [
            JudgedFile(case="case", what=what, name=name, sha256=_digest(path))
            for path, what, name in roles
            if path is not None
        ]

    @property
    def text(self) -> str:
        """The identity of this capture as JSON: digests of its files and what is known about them."""
        captured = (self.before, self.after, self.gradient, self.difference)
        known = {
            "files": [None if path is None else _digest(path) for path in captured],
            "lr": self.lr,
            "model": {"use": self.architecture.use, "options": dict(self.architecture.options)},
            "client": asdict(self.client),
            "input_shape": self.input_shape,
            "num_classes": self.num_classes,
            "steps": self.steps,
            "batch_size": self.batch_size,
            **({} if self.target is None else {"target": self.target}),
            **({} if self.values is None else {"values": self.values}),
            **({"blocks": self.blocks} if self.blocks else {}),
            **({} if self.weight_decay is None else {"weight_decay": self.weight_decay}),
        }
        return json.dumps({"schema": SCHEMA, **known}, indent=2, default=str) + "\n"


def some(names: list[str]) -> str:
    """The first three names, and whether there are more."""
    return f"{', '.join(map(short, names[:3]))}{' and more' if len(names) > 3 else ''}"


def _is_difference(before: Tensors, after: Tensors) -> bool:
    """Whether what was given as the returned weights is what they changed by: no training shrinks all of them so."""
    pairs = [(after[name].double().norm(), before[name].double().norm()) for name in before if before[name].ndim > 1]
    return bool(pairs) and all(float(small) < SMALL * float(large) for small, large in pairs)


def _digest(path: Path) -> str:
    """SHA-256 of a captured file in hexadecimal, after a check of its head: an untrusted file may be terabytes long."""
    try:
        if path.exists():
            check_head(path)
        with (weights_in(path) or path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise SeepageError(f"{path} does not exist; check the path") from error
