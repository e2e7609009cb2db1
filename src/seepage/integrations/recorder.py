"""Updates of a running training, kept as `observed/` folders: what the hooks of every framework write with.

It knows no framework. In a training loop of your own:

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

from seepage.clients import FedSGD, client_options
from seepage.core.storage import LazyTensors, make_private
from seepage.errors import SeepageError, printable, short
from seepage.integrations.arrays import Layout, Sent
from seepage.integrations.circuit_breaker import CircuitBreaker, Say, Step
from seepage.integrations.retention import recordings, surplus
from seepage.leakage import Exposure, exposure
from seepage.models import build
from seepage.transcript.recorded import kind_tensor, save_update
from seepage.transcript.simulated import SimulatedTranscript
from seepage.transcript.truth import save_truth
from seepage.types import Architecture, Batch, ClientUpdate, Knowledge, Round, Update

log = logging.getLogger("seepage")
_MODEL_LOCK = threading.Lock()
"""Looks go through one model at weights of its own, and servers take replies in several threads."""
T = TypeVar("T")


@dataclass(frozen=True)
class Recorded:
    """What became of one update.

    Attributes:
        folder: The `observed/` folder; None: not written.
        exposure: What it gives away in closed form, where that was looked at.
        blocked: Whether it is not let through.
        missing: Trained parameters that did not come back.
    """

    folder: Path | None
    exposure: Exposure | None
    blocked: bool
    missing: tuple[str, ...] = ()


class _Tried(Protocol):
    """Does a step of recording; None where it fails."""

    def __call__(self, step: Step, work: Callable[[], T]) -> T | None: ...


def _straight(step: Step, work: Callable[[], T]) -> T | None:
    return work()


@dataclass(frozen=True)
class Recorder:
    """Writes updates as folders `ROUND-client-NUMBER`, each of which `seepage attack` and `seepage exposure` read.

    Args:
        folder: Where the folders go. Only the owner can open it.
        architecture: How to build the model. The names, or the order, of the arrays must be those of its `state_dict`.
        input_shape: Shape of one example.
        num_classes: Classes of the model.
        client: The clients' rule; `FedSGD` needs `lr` as well.
        lr: Learning rate of the one SGD step behind a difference of weights, for `FedSGD`.
        most: Bytes of all recordings together. Beyond any bound the recordings written first go first.
        max_rounds: Rounds of which recordings are kept; None: as many as `most` allows.
        max_per_client: Recordings kept of one client; None: as many as `most` allows.
        audit: `inline`: look at each update's exposure too (half a second for a ResNet-18). `none`: only record.
        block: Private examples above which an update is not let through, or what decides on its exposure. This looks
            at closed forms alone, and what passes is not safe for that.
        on_error: What becomes of an update that `block` could not look at: `drop` it, or let it `pass`. Without
            `block` nothing is ever dropped.
        private: Where `keep_truth` may write the true batches. None: they are never kept. For the client's own disk.

    Raises:
        SeepageError: For a rule that cannot be written, a bound that no recording fits, and a model that cannot be
            built or run.

    Example:
        >>> import tempfile, torch
        >>> from seepage.clients import FedAvg
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
    max_rounds: int | None = field(kw_only=True, default=None)
    max_per_client: int | None = field(kw_only=True, default=None)
    private: Path | None = field(kw_only=True, default=None)

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
        for name, bound in (("max_rounds", self.max_rounds), ("max_per_client", self.max_per_client)):
            if bound is not None and bound < 1:
                raise SeepageError(f"{name} must be 1 or more, got {bound}; leave it out to keep all that fit")
        if self.most < self.size:
            raise SeepageError(f"one recording of this model takes {self.size} bytes; give most=… above that")

    @cached_property
    def breaker(self) -> CircuitBreaker:
        """What failed in this process, and was not let through to the training."""
        return CircuitBreaker(self.folder)

    @cached_property
    def layout(self) -> Layout:
        """The model's names and shapes; its weights are not kept."""
        return Layout.of(build(self.architecture, self.input_shape, self.num_classes), self.input_shape)

    @cached_property
    def model(self) -> nn.Module:
        """The model that updates are looked at with, at some weights or other. Where none are, it is not made."""
        return build(self.architecture, self.input_shape, self.num_classes)

    @property
    def size(self) -> int:
        """Bytes of one recording at most: the model, the update, and what is said about them."""
        return 2 * self.layout.size + 2048 * len(self.layout.like) + 2**14

    @property
    def looks(self) -> bool:
        """Whether updates are looked at, to be audited or blocked."""
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
        """Keep one update, and look at it where the recorder does that.

        Args:
            before: The weights that were sent out: a `state_dict`, or arrays in its order.
            after: Those that came back. Where trained parameters are missing, the others are recorded, and the missing
                ones count as not trained.
            t: The round.
            client: The client's number or name; only names the folder.
            examples: Examples behind the update, if known.
            steps: Local steps behind it, where it tells: in place of what `client` says of a `FedAvg`.
            difference: `after` is the difference of weights itself, as some frameworks send it.
            keep: Write it. False: only look at it.

        Raises:
            SeepageError: Where the weights do not fit the model or are not finite, and where they cannot be written.
        """
        read = partial(self._read, before, after, t, steps, difference)
        return self._through(_straight, read, (t, client), examples, keep=keep)

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
        """As `record`, for a training that must not stop: it raises nothing.

        What fails is said once for each kind of fault, and noted in `faults.jsonl` of the folder as far as that can be
        written. A step that fails three times in a row for a reason other than the update itself is given up, which
        is said and noted too. An update that cannot be written is looked at all the same, and the other way round.

        Args:
            before: As in `record`, like all up to `keep`.
            after: See there.
            t: See there.
            client: See there.
            examples: See there.
            steps: See there.
            difference: See there.
            keep: See there.
            say: Takes warnings; None: this package's logger.
        """
        say, where = say or _warn, printable(f"round {t}, client {client}")

        def tried(step: Step, work: Callable[[], T]) -> T | None:
            return self.breaker.call(step, work, where, say, always=self.block is not None and step != "write")

        read = partial(self._read, before, after, t, steps, difference)
        found = self._through(tried, read, (t, client), examples, keep=keep)
        if found.missing:
            self.breaker.once(f"{where}: {_lacks(found.missing)}", f"missing from {label_of(client)}", say)
        return found

    def _through(
        self,
        tried: _Tried,
        read: Callable[[], tuple[Sent, ClientUpdate]],
        place: tuple[int, int | str],
        examples: int | None,
        *,
        keep: bool,
    ) -> Recorded:
        """The steps of recording, of which one may fail without the others."""
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
        """Whether an update with this exposure is not let through; None: it could not be looked at."""
        if self.block is None:
            return False
        if found is None:
            return self.on_error == "drop"
        return bool(self.block(found)) if callable(self.block) else found.examples > self.block

    def keep_truth(self, batch: Batch, *, t: int, client: int | str) -> Path:
        """Write the private examples behind an update, for scoring later, where its owner allowed it by `private`.

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
        steps: int | None,
        difference: bool,
    ) -> tuple[Sent, ClientUpdate]:
        """The update, in memory where it is looked at, and the rule that made it."""
        rate = self.lr if self.client.per_client.single_gradient else None
        sent = Sent.between(self.layout, before, after, lr=rate, t=t, difference=difference, hold=self.looks)
        rule = self.client.with_steps(steps) if steps is not None and steps >= 1 else self.client
        return sent, rule

    def _look(self, sent: Sent, rule: ClientUpdate, examples: int | None) -> Exposure:
        with _MODEL_LOCK:
            sent.load(self.model)
            params = {name: p.detach() for name, p in self.model.named_parameters() if name in sent.update}
            update = Update(dict(sent.update), sent.kind)
            seen = Round(0, params, update, buffers=sent.buffers, batch_size=examples)
            return exposure(SimulatedTranscript(self._knowledge(self.model, rule), lambda t: seen, 1))

    def _knowledge(self, model: nn.Module, rule: ClientUpdate) -> Knowledge:
        return Knowledge(model, rule, self.input_shape, self.layout.classes, architecture=self.architecture)

    def _write(self, sent: Sent, rule: ClientUpdate, examples: int | None, t: int, client: int | str) -> Path:
        if t < 0:
            raise SeepageError(f"round {t} cannot be recorded, since rounds count from 0; number the rounds so")
        make_private(self.folder)
        name = f"{t:06d}-client-{label_of(client)}"
        self._make_room(name)
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run that was started again
        make_private(folder)
        # The folder names the architecture, and no model is needed to write it.
        known = self._knowledge(nn.Identity(), rule)
        said = {"tensors left out": _lacks(sent.missing)} if sent.missing else None
        try:
            save_update(known, sent.state, _written(sent), folder, batch_size=examples, inferred=said)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # half a recording is of no use, and takes up the disk
            raise
        return folder

    def _make_room(self, name: str) -> None:
        """Remove the oldest recordings until one more fits; nothing that a recorder did not write is touched."""
        kept = {path.name: path for path in recordings(self.folder)}
        most = self.most // self.size
        for old in surplus(list(kept), name, most=most, rounds=self.max_rounds, per_client=self.max_per_client):
            shutil.rmtree(kept[old], ignore_errors=True)  # another process may be at it
            log.info("seepage: removed the recording %s to stay below the bounds of the recorder", old)


def _warn(words: str) -> None:
    log.warning("seepage: %s", words)


def _lacks(missing: Sequence[str]) -> str:
    """What did not come back, in words."""
    named = ", ".join(map(short, missing[:3])) + (" and more" if len(missing) > 3 else "")
    return f"{len(missing)} trained parameters did not come back ({named}); taken for not trained"


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
    """`update/NAME` and its `kind`, as a recorded round holds them."""
    keys = {f"update/{name}": name for name in sent.update}
    return LazyTensors({**keys, "kind": ""}, lambda name: sent.update[name] if name else kind_tensor(sent.kind))
