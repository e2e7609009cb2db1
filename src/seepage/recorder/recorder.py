"""Record the updates of a running training as `observed/` folders; the hooks of all frameworks use this class.

It is independent of any framework. In a training loop of your own:

    recorder = Recorder(Path("seepage"), architecture=Architecture("mymodule:net"), input_shape=(3, 32, 32),
                        num_classes=10, client=FedAvg(lr=0.01, epochs=1), audit="inline")
    recorder.watch(before, after, t=3, client=7, examples=500)

`watch` never raises, and hooks call it; `record` does the same and raises.
"""

import hashlib
import logging
import math
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from torch import Tensor, nn

from seepage.attacks.exposure import Exposure, exposure
from seepage.base.nn import vocabulary_of
from seepage.base.storage import LazyTensors, make_private
from seepage.errors import SeepageError, printable, short
from seepage.federation.clients import FedSGD, client_options
from seepage.federation.clients.losses import likely_target
from seepage.federation.models import build
from seepage.federation.transcript.foreign import check_batch_size
from seepage.federation.transcript.recorded import save_update, update_facts
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.federation.transcript.truth import save_truth
from seepage.federation.types import Architecture, Batch, ClientUpdate, Knowledge, Round, Target, Update
from seepage.recorder.arrays import Layout, Sent
from seepage.recorder.circuit_breaker import CircuitBreaker, Say, Step

log = logging.getLogger("seepage")
_MODEL_LOCK = threading.Lock()
"""Analyses share one model object, while a server may handle replies in several threads."""
T = TypeVar("T")
RECORDING = re.compile(r"\d{6,}-client-[A-Za-z0-9_-]{1,64}")
"""Names of folders that a recorder wrote, and may remove again."""


@dataclass(frozen=True)
class Recorded:
    """The result of recording one update.

    Attributes:
        folder: The `observed/` folder; None: not written.
        exposure: Analysis of what the update reveals in closed form; None if it was not analyzed.
        blocked: Whether the update must not be passed on.
        missing: Trained parameters that the client did not return.
    """

    folder: Path | None
    exposure: Exposure | None
    blocked: bool
    missing: tuple[str, ...] = ()


class _Attempted(Protocol):
    """Runs a step of recording; returns None if it fails."""

    def __call__(self, step: Step, work: Callable[[], T]) -> T | None: ...


@dataclass(frozen=True)
class Recorder:
    """Writes updates as folders `ROUND-client-NUMBER`, each of which `seepage attack` and `seepage check` read.

    Args:
        folder: Where to write the folders. Only the owner can read it.
        architecture: How to build the model. The names, or the order, of the arrays must be those of its `state_dict`.
        input_shape: Shape of one example.
        num_classes: Classes of the model.
        client: The clients' rule; `FedSGD` needs `lr` as well.
        lr: Learning rate of the one SGD step behind a difference of weights, for `FedSGD`.
        most: Largest total size of all recordings in bytes. Beyond it the oldest recordings are removed.
        audit: `inline`: also analyze each update's exposure (half a second for a ResNet-18). `none`: only record.
        block: Number of exposed private examples above which an update is blocked, or a function that decides from
            the exposure. Only closed-form leaks are considered; an update that is not blocked is not therefore safe.
        on_error: What to do with an update that could not be analyzed for `block`: `drop` it, or let it `pass`.
            Without `block` no update is dropped.
        private: Folder on the client's own disk where `keep_truth` may write the true batches; None: never written.
        names: Names of the parameters that arrays without names stand for, in their order; None: those of the
            `state_dict` where they are as many, else those that the model trains (`requires_grad`).
        target: What examples are trained towards, `class`, `value` (regression) or `map` (a class at each pixel); None:
            maps where the model's outputs are such, values where the loss is `mse` and it has one output, else classes.

    Raises:
        SeepageError: For a rule that cannot be written, a bound that no recording fits, and a model that cannot be
            built or run.

    Example:
        >>> import tempfile, torch
        >>> from seepage.federation.clients import FedAvg
        >>> model = build(Architecture("fc2", {"hidden": 8}), (1, 4, 4), 3)
        >>> before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        >>> torch.nn.functional.cross_entropy(model(torch.rand(1, 1, 4, 4)), torch.tensor([2])).backward()
        >>> torch.optim.SGD(model.parameters(), lr=0.1).step()
        >>> with tempfile.TemporaryDirectory() as place:
        ...     recorder = Recorder(Path(place) / "seen", architecture=Architecture("fc2", {"hidden": 8}),
        ...         input_shape=(1, 4, 4), num_classes=3, client=FedAvg(lr=0.1), audit="inline", block=0)
        ...     found = recorder.record(before, model.state_dict(), t=1, client=5, examples=1)
        ...     found.folder.name, found.exposure.examples, found.blocked
        ('000001-client-5', 1, True)
    """

    folder: Path
    architecture: Architecture = field(kw_only=True)
    input_shape: tuple[int, ...] = field(kw_only=True)
    num_classes: int = field(kw_only=True)
    client: ClientUpdate = field(kw_only=True, default=FedSGD())
    lr: float | None = field(kw_only=True, default=None)
    most: int = field(kw_only=True, default=2**30)
    audit: Literal["none", "inline"] = field(kw_only=True, default="none")
    block: int | Callable[[Exposure], bool] | None = field(kw_only=True, default=None)
    on_error: Literal["drop", "pass"] = field(kw_only=True, default="drop")
    private: Path | None = field(kw_only=True, default=None)
    names: Sequence[str] | None = field(kw_only=True, default=None)
    target: Target | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        client_options(self.client)
        if self.client.per_client.single_gradient and (self.lr is None or not 0 < self.lr < math.inf):
            raise SeepageError(
                "a difference of weights is a gradient only when the learning rate is known; give lr=… above 0, or "
                "client=FedAvg(lr=…, epochs=…) for local training"
            )
        if self.audit not in ("none", "inline"):
            raise SeepageError(f"audit is 'none' or 'inline', got {self.audit!r}; correct it")
        if self.on_error not in ("drop", "pass"):
            raise SeepageError(f"on_error is 'drop' or 'pass', got {self.on_error!r}; correct it")
        if self.most < self.size:
            raise SeepageError(f"one recording of this model takes {self.size} bytes; give most=… above that")

    @cached_property
    def breaker(self) -> CircuitBreaker:
        """Faults of this process, which did not reach the training."""
        return CircuitBreaker()

    @cached_property
    def layout(self) -> Layout:
        """The model's names and shapes; of its weights the frozen ones alone are kept."""
        model = build(self.architecture, self.input_shape, self.client.num_outputs(self.num_classes))
        return Layout.of(model, self.input_shape, self.names)

    @cached_property
    def model(self) -> nn.Module:
        """The model for analyzing updates; its weights are overwritten. It is built only when it is needed."""
        return build(self.architecture, self.input_shape, self.client.num_outputs(self.num_classes))

    @property
    def size(self) -> int:
        """Largest size of one recording in bytes: the model, the update and their description."""
        return 2 * self.layout.size + 2048 * len(self.layout.like) + 2**14

    @property
    def looks(self) -> bool:
        """Whether updates are analyzed, for the audit or for blocking."""
        return self.audit == "inline" or self.block is not None

    def record(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        t: int,
        client: int | str,
        examples: int | None = None,
        steps: int | None = None,
        difference: bool = False,
        keep: bool = True,
    ) -> Recorded:
        """Write one update, and analyze it if the recorder audits or blocks.

        Args:
            before: The weights that the server sent: a `state_dict`, or arrays in its order. Frozen parameters may be
                missing, at the values that the architecture builds them with, as may those that stay with the client.
            after: The weights that the client returned. Those that are missing are recorded as not sent.
            t: The round.
            client: The client's number or name; only names the folder.
            examples: Examples behind the update, if known.
            steps: Number of local steps behind the update, if known; overrides the count of a `FedAvg` rule.
            difference: Whether `after` is the difference of weights itself, as some frameworks send it.
            keep: Whether to write the update; False: only analyze it.

        Raises:
            SeepageError: Where the weights do not fit the model or are not finite, and where they cannot be written.
        """
        read = partial(self._read, before, after, t, examples, steps, difference)
        return self._through(lambda _, work: work(), read, (t, client), examples, keep=keep)

    def watch(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        *,
        t: int,
        client: int | str,
        examples: int | None = None,
        steps: int | None = None,
        difference: bool = False,
        keep: bool = True,
        say: Say | None = None,
    ) -> Recorded:
        """Record an update as `record` does, but never raise, for a training that must not stop.

        Each kind of fault is logged once. A step of recording that fails three times in a row for a reason other than
        the update itself is disabled, which is logged as well: reading and analyzing for that client alone, writing for
        all. Writing and analyzing an update are independent: one may fail without the other. Arguments as of `record`;
        `say` takes warnings, which are this package's logger's where it is None.
        """
        say, where = say or _warn, printable(f"round {t}, client {client}")

        def tried(step: Step, work: Callable[[], T]) -> T | None:
            always = self.block is not None and step != "write"
            # A disk is everybody's; what cannot be read or analyzed is of the client that sent it.
            whose = None if step == "write" else label_of(client)
            return self.breaker.call(step, work, where, say, always=always, client=whose)

        read = partial(self._read, before, after, t, examples, steps, difference)
        found = self._through(tried, read, (t, client), examples, keep=keep)
        if found.missing:
            self.breaker.once(f"{where}: {_lacks(found.missing)}", f"missing from {label_of(client)}", say)
        return found

    def _through(
        self,
        tried: _Attempted,
        read: Callable[[], tuple[Sent, ClientUpdate]],
        place: tuple[int, int | str],
        examples: int | None,
        *,
        keep: bool,
    ) -> Recorded:
        """Run the steps of recording, each of which may fail without affecting the others."""
        got = tried("read", read)
        if got is None:
            return Recorded(None, None, self.blocks(None))
        sent, rule = got

        def judged() -> tuple[Exposure, bool]:
            found = self._look(sent, rule, examples)
            return found, self.blocks(found)

        look = tried("look", judged) if self.looks else None
        found, blocked = look or (None, self.blocks(None))
        folder = tried("write", partial(self._write, sent, rule, examples, *place)) if keep else None
        return Recorded(folder, found, blocked, sent.missing)

    def blocks(self, found: Exposure | None) -> bool:
        """Whether an update with this exposure is blocked; an exposure of None means that the analysis failed."""
        if self.block is None:
            return False
        if found is None:
            return self.on_error == "drop"
        return bool(self.block(found)) if callable(self.block) else found.examples > self.block

    def keep_truth(self, batch: Batch, *, t: int, client: int | str) -> Path:
        """Write the private examples behind an update for later scoring, if their owner allowed it by `private`.

        Args:
            batch: The examples.
            t: The round.
            client: The client's number or name, as in `record`.

        Raises:
            SeepageError: Where the recorder was made without `private`.
        """
        if self.private is None:
            raise SeepageError("this recorder keeps no truth; give it private=FOLDER, on the client's own disk")
        folder = self.private / f"{t:06d}-client-{label_of(client)}"
        make_private(self.private)
        make_private(folder)
        save_truth([batch], folder)
        return folder

    def _read(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        t: int,
        examples: int | None,
        steps: int | None,
        difference: bool,
    ) -> tuple[Sent, ClientUpdate]:
        """The update, held in memory where it is analyzed, and the rule that made it."""
        check_batch_size(examples, list(self.input_shape), "the client")
        rate = self.lr if self.client.per_client.single_gradient else None
        loss = self.client.loss == "cross_entropy" and self.client.linear_in_gradient
        sent = Sent.between(
            self.layout, before, after, lr=rate, t=t, difference=difference, softmax=loss, hold=self.looks
        )
        rule = self.client.with_steps(steps) if steps is not None and steps >= 1 else self.client
        return sent, rule

    def _look(self, sent: Sent, rule: ClientUpdate, examples: int | None) -> Exposure:
        with _MODEL_LOCK:
            sent.load(self.model)
            params, update = sent.params, Update(dict(sent.update), sent.kind, sent.rate, sent.decayed)
            seen = Round(0, params, update, buffers=sent.buffers, batch_size=examples, personal=sent.personal)
            return exposure(SimulatedTranscript(self._knowledge(self.model, rule), lambda t: seen, 1))

    def _knowledge(self, model: nn.Module, rule: ClientUpdate) -> Knowledge:
        classes = 2 if rule.one_logit else self.layout.classes
        likely = likely_target(self.layout.outputs, rule.loss, tokens=vocabulary_of(model) is not None)
        target = self.target or ("value" if rule.target == "input" else likely)
        return Knowledge(model, rule, self.input_shape, classes, architecture=self.architecture, target=target)

    def _write(self, sent: Sent, rule: ClientUpdate, examples: int | None, t: int, client: int | str) -> Path:
        """Write one update as a folder `ROUND-client-NUMBER`, and return it; an incomplete folder is removed."""
        if t < 0:
            raise SeepageError(f"round {t} cannot be recorded, since rounds count from 0; number the rounds so")
        make_private(self.folder)
        name = f"{t:06d}-client-{label_of(client)}"
        self._make_room(name)
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)  # left by an earlier run in the same folder
        make_private(folder)
        # The folder names the architecture, and no model is needed to write it.
        known = self._knowledge(nn.Identity(), rule)
        said = {"tensors left out": _lacks(sent.missing)} if sent.missing else {}
        said |= {} if sent.decay is None else {"weight decay": sent.decay.words(sent.rate)}
        written = _written(sent)
        try:
            save_update(known, sent.state, written, folder, batch_size=examples, inferred=said, personal=sent.personal)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # an incomplete recording cannot be used and takes up space
            raise
        return folder

    def _make_room(self, name: str) -> None:
        """Remove the oldest recordings until one more fits; other files are never removed."""
        kept = [path for path in recordings(self.folder) if path.name != name]  # the new one replaces its own
        for old in kept[: max(0, len(kept) + 1 - self.most // self.size)]:
            shutil.rmtree(old, ignore_errors=True)  # another process may be removing it
            log.info("seepage: removed the recording %s to stay below the bound of the recorder", old.name)


def recordings(folder: Path) -> list[Path]:
    """The recordings in a folder, in the order in which they were written."""
    found = []
    for path in folder.iterdir():
        if RECORDING.fullmatch(path.name) and not path.is_symlink():
            try:
                found.append((path.stat().st_mtime_ns, int(path.name.partition("-")[0]), path.name, path))
            except FileNotFoundError:
                continue  # another process removed it
    return [path for *_, path in sorted(found)]


def _warn(words: str) -> None:
    log.warning("seepage: %s", words)


def _lacks(missing: Sequence[str]) -> str:
    """Sentence on the parameters that the client did not return."""
    named = ", ".join(map(short, missing[:3])) + (" and more" if len(missing) > 3 else "")
    return f"{len(missing)} trained parameters were not returned ({named}); recorded as not sent"


def label_of(client: int | str) -> str:
    """A client's name as a part of a file's name; one that could lead elsewhere becomes its fingerprint.

    >>> label_of(7), label_of("site-1"), label_of("../site")
    ('7', 'site-1', 'f9e8a039d9540ee2')
    """
    name = str(client)
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        return name
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()


def _written(sent: Sent) -> LazyTensors:
    """`update/NAME` and what else is known of it, as a recorded round holds them."""
    facts = update_facts(sent.kind, sent.rate, sent.decayed)
    keys = {key: key for key in [*(f"update/{name}" for name in sent.update), *facts]}
    return LazyTensors(keys, lambda key: facts[key] if key in facts else sent.update[key.removeprefix("update/")])
