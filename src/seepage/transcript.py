"""Transcripts: rounds simulated from private batches, or read from a folder that somebody recorded.

A folder `observed/` holds everything an attacker may read, and nothing else:

    knowledge.json                schema version, architecture, client rule, shapes, what is told
    model.safetensors             params/NAME, buffers/NAME of the first round
    rounds/000000.safetensors     update/NAME; params/ and buffers/ only where they changed; labels, indices if told
    auxiliary.safetensors         inputs that are not private, if the attacker has some
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from seepage.clients import CLIENTS
from seepage.errors import SeepageError
from seepage.functional import generator
from seepage.models import MODELS, build, trusted
from seepage.named import bind
from seepage.storage import SCHEMA, check_schema, read_json, read_tensors, write_json, write_tensors
from seepage.types import (
    Architecture,
    Batch,
    ClientUpdate,
    ClientView,
    Defense,
    Knowledge,
    Round,
    Tensors,
    Told,
    Transcript,
    Update,
    check_fits,
)

LARGEST_INPUT = 2**28
"""Values in one example of a foreign folder; more is refused before anything is allocated."""


@dataclass(frozen=True)
class SimulatedTranscript:
    """Rounds made anew each time they are asked for, from `(seed, t)`. It holds no batch, only the way to a round."""

    knowledge: Knowledge
    make_round: Callable[[int], Round]
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, t: int) -> Round:
        if not 0 <= t < self.length:
            raise IndexError(t)
        return self.make_round(t)


@dataclass(frozen=True)
class Victim:
    """A client with private batches; only simulations, metrics and audits hold one.

    Args:
        knowledge: What the attacker is told.
        params: Trainable parameters the server sends, the same each round.
        batches: The private batch of round `t`, for `t` in `range(rounds)`.
        rounds: Number of rounds.
        buffers: The model's buffers.
        defense: What the client does to its update.
        seed: Seeds the defence's noise, together with `t`.
    """

    knowledge: Knowledge
    params: Tensors
    batches: Callable[[int], Batch]
    rounds: int
    buffers: Tensors
    defense: Defense | None = None
    seed: int = 0

    def transcript(self) -> SimulatedTranscript:
        """What the server sees of this client."""
        return SimulatedTranscript(self.knowledge, self._round, self.rounds)

    def update(self, t: int) -> Update:
        """What leaves the client in round `t`."""
        knowledge, batch = self.knowledge, self.batches(t)
        update = knowledge.client(knowledge.model, self.params, batch, buffers=self.buffers)
        if self.defense is None:
            return update
        view = ClientView(knowledge.model, self.params, batch, knowledge.client, self.buffers, t)
        return self.defense(update, view, generator=generator(self.seed, "defense", t))

    def _round(self, t: int) -> Round:
        batch = self.batches(t)
        told = self.knowledge.told
        return Round(
            t=t,
            params=self.params,
            update=self.update(t),
            buffers=self.buffers,
            batch_size=len(batch),
            # Sorted, so that the batch's own order is not told with the labels.
            labels=batch.labels.sort().values if "labels" in told else None,
            indices=batch.indices if "indices" in told else None,
        )


@dataclass(frozen=True)
class OneRound:
    """A transcript of one round of another: what an attack with `rounds = "one"` is given."""

    whole: Transcript
    t: int

    @property
    def knowledge(self) -> Knowledge:
        return self.whole.knowledge

    def __len__(self) -> int:
        return 1

    def __getitem__(self, t: int) -> Round:
        if t != 0:
            raise IndexError(t)
        return self.whole[self.t]


@dataclass(frozen=True)
class RecordedTranscript:
    """Rounds read from a folder, each when it is asked for."""

    folder: Path
    knowledge: Knowledge
    length: int
    first: tuple[Tensors, Tensors]
    batch_size: int | None
    device: str = "cpu"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, t: int) -> Round:
        if not 0 <= t < self.length:
            raise IndexError(t)
        path = round_file(self.folder, t)
        tensors = {name: tensor.to(self.device) for name, tensor in read_tensors(path).items()}
        parts = {part: self._ordered(_under(tensors, part)) for part in ("params", "buffers", "update")}
        kind = bytes(tensors["kind"].tolist()).decode(errors="replace") if "kind" in tensors else "gradient"
        if kind not in ("gradient", "delta"):
            raise SeepageError(f"{path} holds an update of kind {kind!r}; it must be 'gradient' or 'delta'")
        return Round(
            t=t,
            params=parts["params"] or self._ordered(self.first[0]),
            buffers=parts["buffers"] or self._ordered(self.first[1]),
            update=Update(parts["update"], kind),  # type: ignore[arg-type]
            batch_size=self.batch_size,
            labels=self._labels(tensors.get("labels"), path),
            indices=tensors.get("indices"),
        )

    def _ordered(self, tensors: Tensors) -> Tensors:
        """In the model's order, which files do not keep: sums over tensors must round as in the simulation."""
        names = [*dict(self.knowledge.model.named_parameters()), *dict(self.knowledge.model.named_buffers())]
        places = {name: place for place, name in enumerate(names)}
        return dict(sorted(tensors.items(), key=lambda item: places.get(item[0], len(places))))

    def _labels(self, labels: Tensor | None, path: Path) -> Tensor | None:
        if labels is None:
            return None
        wrong = labels.is_floating_point() or labels.ndim != 1
        if wrong or not ((labels >= 0) & (labels < self.knowledge.num_classes)).all():
            raise SeepageError(
                f"{path} tells labels outside 0..{self.knowledge.num_classes - 1}; record it again with right labels"
            )
        return labels


def round_file(folder: Path, t: int) -> Path:
    """Where round `t` lies."""
    return folder / "rounds" / f"{t:06d}.safetensors"


def _under(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    return {name[len(part) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{part}/")}


def _over(part: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}


def client_options(client: ClientUpdate) -> dict[str, Any]:
    """A client rule as JSON: its registry name and its fields."""
    for use, kind in CLIENTS.items():
        if type(client) is kind:
            return {"use": use, **{f.name: getattr(client, f.name) for f in fields(client)}}  # type: ignore[arg-type]
    raise SeepageError(
        f"{type(client).__name__} is not one of seepage's client rules ({', '.join(CLIENTS)}), so it cannot be written "
        "to a folder; keep the transcript in memory"
    )


def save_transcript(transcript: Transcript, folder: Path) -> None:
    """Write `observed/`. The index `knowledge.json` comes last, so a folder without it is not whole."""
    knowledge = transcript.knowledge
    if knowledge.architecture is None:
        raise SeepageError(
            "this transcript's model has no name to build it from, so it cannot be written to a folder; "
            "give architecture=Architecture('fc2') or Architecture('mymodule:factory') when recording"
        )
    first = transcript[0]
    write_tensors(folder / "model.safetensors", _over("params", first.params) | _over("buffers", first.buffers))
    for t in range(len(transcript)):
        write_tensors(round_file(folder, t), _round_tensors(transcript[t], first))
    if knowledge.auxiliary is not None:
        write_tensors(folder / "auxiliary.safetensors", {"inputs": knowledge.auxiliary})
    write_json(
        folder / "knowledge.json",
        {
            "schema": SCHEMA,
            "architecture": {
                "use": knowledge.architecture.use,
                "options": dict(knowledge.architecture.options),
            },
            "client": client_options(knowledge.client),
            "input_shape": list(knowledge.input_shape),
            "num_classes": knowledge.num_classes,
            "value_range": list(knowledge.value_range),
            "told": sorted(knowledge.told),
            "defense": None if knowledge.defense is None else repr(knowledge.defense),
            "batch_size": first.batch_size,
            "rounds": len(transcript),
        },
    )


def _round_tensors(observed: Round, first: Round) -> Tensors:
    tensors = _over("update", observed.update.tensors)
    tensors["kind"] = torch.tensor(list(observed.update.kind.encode()), dtype=torch.uint8)
    if not same(observed.params, first.params):
        tensors |= _over("params", observed.params)
    if not same(observed.buffers, first.buffers):
        tensors |= _over("buffers", observed.buffers)
    if observed.labels is not None:
        tensors["labels"] = observed.labels
    if observed.indices is not None:
        tensors["indices"] = observed.indices
    return tensors


def same(a: Tensors, b: Tensors) -> bool:
    """Whether two named states are equal, bit by bit."""
    return a is b or all(torch.equal(a[name], b[name]) for name in a)


def open_transcript(
    folder: Path,
    *,
    architecture: Architecture | None = None,
    batch_size: int | None = None,
    device: str = "cpu",
    trust: bool = False,
) -> RecordedTranscript:
    """Open an `observed/` folder, which may come from somebody else.

    Args:
        folder: The folder with `knowledge.json`.
        architecture: Use this model instead of the recorded one; needed where the record names somebody's own code.
        batch_size: Use this batch size where the record has none.
        device: Where to put the tensors.
        trust: The folder was written by this very run, so its dotted paths were typed by the user.

    Raises:
        SeepageError: Where a file is missing, truncated, of another schema version, or does not fit the model.
    """
    path = folder / "knowledge.json"
    if not path.exists():
        raise SeepageError(
            f"{folder} has no knowledge.json, so it is no recorded update; "
            "name a folder that seepage record or seepage audit wrote (…/observed)"
        )
    facts = read_json(path)
    check_schema(facts, path)
    try:
        return _opened(folder, facts, architecture, batch_size, device, trust)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SeepageError(f"{path} is damaged ({type(error).__name__}: {error}); record it again") from error


def _opened(
    folder: Path,
    facts: Mapping[str, Any],
    architecture: Architecture | None,
    batch_size: int | None,
    device: str,
    trust: bool,
) -> RecordedTranscript:
    shape = tuple(int(side) for side in facts["input_shape"])
    num_classes = int(facts["num_classes"])
    if not shape or min(shape) < 1 or math.prod(shape) > LARGEST_INPUT or not 1 <= num_classes <= 10**6:
        raise SeepageError(
            f"{folder} names inputs of shape {shape} and {num_classes} classes, which cannot be; record it again"
        )
    recorded = Architecture(str(facts["architecture"]["use"]), dict(facts["architecture"]["options"]))
    named = architecture or recorded
    if architecture is None and not trust and not trusted(named):
        raise SeepageError(
            f"{folder} was recorded with the model {named.use!r}, which is somebody's own code and is not run "
            f"unasked; if you trust it, add --model {named.use}"
        )
    state = {name: t.to(device) for name, t in read_tensors(folder / "model.safetensors").items()}
    first = _under(state, "params"), _under(state, "buffers")
    model = _fitting_model(named, shape, num_classes, first)
    told: set[Told] = {item for item in facts["told"] if item in get_args(Told)}
    client = dict(facts["client"])
    rule = client.pop("use")
    if rule not in CLIENTS:
        raise SeepageError(f"{folder} names the unknown client rule {rule!r}; use the seepage version that wrote it")
    bind(CLIENTS[rule], client, f"client {rule!r}")
    knowledge = Knowledge(
        model=model.to(device),
        client=CLIENTS[rule](**client),
        input_shape=shape,
        num_classes=num_classes,
        value_range=(float(facts["value_range"][0]), float(facts["value_range"][1])),
        told=frozenset(told),
        auxiliary=_auxiliary(folder, device) if "auxiliary" in told else None,
        architecture=named,
    )
    size = facts.get("batch_size") or batch_size
    return RecordedTranscript(folder, knowledge, int(facts["rounds"]), first, size, device)


def _auxiliary(folder: Path, device: str) -> Tensor:
    return read_tensors(folder / "auxiliary.safetensors")["inputs"].to(device)


def _fitting_model(
    architecture: Architecture, shape: tuple[int, ...], num_classes: int, state: tuple[Tensors, Tensors]
) -> torch.nn.Module:
    """Build the recorded model, having checked its size on the meta device first where that runs our code only."""
    what, whose = "the recorded model", f"the model {architecture.use!r}"
    if architecture.use in MODELS:
        with torch.device("meta"):
            sketch = build(architecture, shape, num_classes)
        check_fits(state[0], dict(sketch.named_parameters()), what, whose)
    model = build(architecture, shape, num_classes)
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    check_fits(state[0], wanted, what, whose)
    check_fits(state[1], dict(model.named_buffers()), what, whose)
    return model


def list_transcripts(folder: Path) -> list[Path]:
    """The transcript folders at or right below a folder: `observed/` itself, or one per cell of a grid."""
    if (folder / "knowledge.json").exists():
        return [folder]
    below = sorted(path.parent for path in folder.glob("*/knowledge.json"))
    if below:
        return below
    if (folder / "observed").is_dir():
        return list_transcripts(folder / "observed")
    reason = "holds no recorded update (no knowledge.json)" if folder.is_dir() else "is no folder"
    raise SeepageError(f"{folder} {reason}; name a folder that seepage record or seepage audit wrote (…/observed)")


def save_truth(batches: Sequence[Batch], folder: Path) -> None:
    """Write `private/truth.safetensors`: inputs and labels of each round."""
    tensors: Tensors = {}
    for t, batch in enumerate(batches):
        tensors |= {f"{t:06d}/inputs": batch.inputs, f"{t:06d}/labels": batch.labels}
        if batch.indices is not None:
            tensors[f"{t:06d}/indices"] = batch.indices
    write_tensors(folder / "truth.safetensors", tensors)


def open_truth(folder: Path) -> list[Batch]:
    """Read `private/truth.safetensors`. For metrics and audits only."""
    path = folder / "truth.safetensors"
    tensors = read_tensors(path)
    rounds = sorted({name.partition("/")[0] for name in tensors})
    try:
        return [Batch(tensors[f"{t}/inputs"], tensors[f"{t}/labels"], tensors.get(f"{t}/indices")) for t in rounds]
    except KeyError as error:
        raise SeepageError(f"{path} lacks {error}; record it again") from error


def with_told(knowledge: Knowledge, told: Sequence[Told]) -> Knowledge:
    """The same knowledge, told something more."""
    return replace(knowledge, told=knowledge.told | frozenset(told))
