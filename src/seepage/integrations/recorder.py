"""Updates of a running training, kept as `observed/` folders: what the hooks of every framework write with.

It knows no framework. In a training loop of your own:

    recorder = Recorder(Path("seepage"), architecture=Architecture("mymodule:net"), input_shape=(3, 32, 32),
                        num_classes=10, client=FedAvg(lr=0.01, epochs=1), audit="inline")
    recorder.record(before, after, t=3, client=7, examples=500)
"""

import hashlib
import logging
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.clients import FedAvg, FedSGD, client_options
from seepage.errors import SeepageError
from seepage.exposure import Exposure, exposure
from seepage.integrations.arrays import Layout, OneByOne, Sent
from seepage.models import build
from seepage.storage import make_private
from seepage.transcripts.recorded import kind_tensor, save_update
from seepage.transcripts.simulated import SimulatedTranscript
from seepage.transcripts.truth import save_truth
from seepage.types import Architecture, Batch, ClientUpdate, Knowledge, Round, Update

NAME = re.compile(r"\d{6,}-client-[A-Za-z0-9_-]{1,64}")
"""Folders that a recorder wrote, and may remove again."""
log = logging.getLogger("seepage")


@dataclass(frozen=True)
class Recorded:
    """What became of one update.

    Attributes:
        folder: The `observed/` folder; None: not written.
        exposure: What it gives away in closed form, where that was looked at.
        blocked: Whether it gives away more than is let through.
    """

    folder: Path | None
    exposure: Exposure | None
    blocked: bool


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
        most: Bytes of all recordings together; the oldest go first.
        audit: `inline`: look at each update's exposure too (under a second for a ResNet-18). `none`: only record.
        block: Private examples above which an update is not let through, or what decides on its exposure. An update
            that cannot be looked at is not let through either. This looks at closed forms alone, and what passes is
            not safe for that.
        private: Where `keep_truth` may write the true batches. None: they are never kept. For the client's own disk.

    Raises:
        SeepageError: For a rule that cannot be written, a bound that no recording fits, and a model that cannot be
            built.

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
    private: Path | None = field(kw_only=True, default=None)

    def __post_init__(self) -> None:
        client_options(self.client)
        if isinstance(self.client.alone, FedSGD) and (self.lr is None or not 0 < self.lr < math.inf):
            raise SeepageError(
                "a difference of weights is a gradient only when the learning rate is known; give lr=… above 0, or "
                "client=FedAvg(lr=…, epochs=…) for local training"
            )
        if self.audit not in ("none", "inline"):
            raise SeepageError(f"audit is 'none' or 'inline', got {self.audit!r}; correct it")
        if self.most < self.size:
            raise SeepageError(f"one recording of this model takes {self.size} bytes; give most=… above that")

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
            after: Those that came back.
            t: The round.
            client: The client's number or name; only names the folder.
            examples: Examples behind the update, if known.
            steps: Local steps behind it, where it tells: in place of what `client` says of a `FedAvg`.
            difference: `after` is the difference of weights itself, as some frameworks send it.
            keep: Write it. False: only look at it.

        Raises:
            SeepageError: Where the weights do not fit the model or are not finite, and where they cannot be written.
        """
        rate = self.lr if isinstance(self.client.alone, FedSGD) else None
        sent = Sent.between(self.layout, before, after, lr=rate, t=t, difference=difference)
        rule, found = self._rule(steps), None
        if self.looks:
            sent = sent.held()
            found = self._look(sent, rule, examples)
        folder = self._write(sent, rule, examples, f"{t:06d}-client-{label_of(client)}") if keep else None
        return Recorded(folder, found, self.blocks(found))

    def blocks(self, found: Exposure | None) -> bool:
        """Whether an update with this exposure is not let through; None: it could not be looked at."""
        if self.block is None:
            return False
        if found is None:
            return True
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

    def _rule(self, steps: int | None) -> ClientUpdate:
        own = isinstance(self.client, FedAvg) and steps is not None and steps >= 1
        return replace(self.client, steps=steps) if own and isinstance(self.client, FedAvg) else self.client

    def _look(self, sent: Sent, rule: ClientUpdate, examples: int | None) -> Exposure:
        with torch.no_grad():
            for name, tensor in sent.part("frozen").items():
                self.model.get_parameter(name).copy_(tensor)
        update = Update(dict(sent.update), sent.kind)
        seen = Round(0, sent.part("params"), update, buffers=sent.part("buffers"), batch_size=examples)
        return exposure(SimulatedTranscript(self._knowledge(self.model, rule), lambda t: seen, 1))

    def _knowledge(self, model: nn.Module, rule: ClientUpdate) -> Knowledge:
        return Knowledge(model, rule, self.input_shape, self.layout.classes, architecture=self.architecture)

    def _write(self, sent: Sent, rule: ClientUpdate, examples: int | None, name: str) -> Path:
        make_private(self.folder)
        self._make_room()
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run that was started again
        make_private(folder)
        # The folder names the architecture, and no model is needed to write it.
        known = self._knowledge(nn.Identity(), rule)
        save_update(known, sent.state, _written(sent), folder, batch_size=examples)
        return folder

    def _make_room(self) -> None:
        """Remove the oldest recordings until one more fits; nothing that a recorder did not write is touched."""
        kept = [path for path in self.folder.iterdir() if NAME.fullmatch(path.name) and not path.is_symlink()]
        kept.sort(key=lambda path: (int(path.name.partition("-")[0]), path.name))
        for path in kept[: max(0, len(kept) + 1 - self.most // self.size)]:
            shutil.rmtree(path, ignore_errors=True)  # another process may be at it
            log.info("seepage: removed the recording %s to stay below %d bytes", path.name, self.most)


def label_of(client: int | str) -> str:
    """A client's name as a part of a file's name; one that could lead elsewhere becomes its fingerprint.

    >>> label_of(7), label_of("site-1"), label_of("../site")
    ('7', 'site-1', 'f9e8a039d9540ee2')
    """
    name = str(client)
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        return name
    return hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()


def _written(sent: Sent) -> OneByOne:
    """`update/NAME` and its `kind`, as a recorded round holds them."""
    keys = {f"update/{name}": name for name in sent.update}
    return OneByOne({**keys, "kind": ""}, lambda name: sent.update[name] if name else kind_tensor(sent.kind))
