"""Transcripts: rounds simulated from private batches, or read from a folder that somebody recorded.

A folder `observed/` holds everything an attacker may read, and nothing else:

    knowledge.json                schema version, architecture, client rule, shapes, what is told
    model.safetensors             params/NAME, buffers/NAME of the first round
    rounds/000000.safetensors     update/NAME; params/ and buffers/ only where they changed; labels, indices if told
    auxiliary.safetensors         inputs that are not private, if the attacker has some
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from seepage.clients import CLIENTS
from seepage.errors import SeepageError, unknown
from seepage.foreign import (
    Facts,
    check_batch_size,
    check_rounds,
    like_model,
    read_auxiliary,
    read_facts,
    read_kind,
    round_file,
)
from seepage.functional import generator
from seepage.models import MODELS, build, trusted
from seepage.named import is_dotted
from seepage.storage import SCHEMA, read_tensors, refuse_pickle, write_json, write_tensors
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
        parts = {part: _under(tensors, part) for part in ("params", "buffers", "update")}
        for part, first in (("params", self.first[0]), ("buffers", self.first[1])):
            if parts[part]:
                check_fits(parts[part], first, f"the {part} of {path}", "the first round's")
        model = self.knowledge.model
        like = dict(model.named_parameters()), dict(model.named_buffers())
        return Round(
            t=t,
            params=like_model(parts["params"] or self.first[0], like[0], path),
            buffers=like_model(parts["buffers"] or self.first[1], like[1], path),
            # An update that is not finite is refused by `Round`, with advice.
            update=Update(like_model(parts["update"], like[0], path, finite=False), read_kind(tensors, path)),
            batch_size=self.batch_size,
            labels=self._told("labels", tensors, path, self.knowledge.num_classes),
            indices=self._told("indices", tensors, path, None),
        )

    def _told(
        self, what: Literal["labels", "indices"], tensors: Tensors, path: Path, bound: int | None
    ) -> Tensor | None:
        """What the attacker is told about each example: `[n]` whole numbers from 0 to below `bound`."""
        if what not in self.knowledge.told:
            return None  # Whatever lies in the file: a report prints what was told.
        if what not in tensors:
            raise SeepageError(f"{path} lacks the {what} that knowledge.json says are told; record it again")
        told = tensors[what]
        if told.dtype != torch.int64 or told.ndim != 1 or len(told) != (self.batch_size or len(told)):
            raise SeepageError(f"{path} does not tell {what} as one whole number per example; record it again")
        if (told < 0).any() or (bound is not None and (told >= bound).any()):
            limits = "below 0" if bound is None else f"outside 0..{bound - 1}"
            raise SeepageError(f"{path} tells {what} {limits}; record it again with right {what}")
        return told


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
    facts = read_facts(folder)
    named = _architecture(folder, facts, architecture, trust)
    check_rounds(folder, facts.rounds)
    state = {name: t.to(device) for name, t in read_tensors(folder / "model.safetensors").items()}
    first = _under(state, "params"), _under(state, "buffers")
    shape = tuple(facts.input_shape)
    model = _fitting_model(named, shape, facts.num_classes, first)
    low, high = facts.value_range
    told = frozenset(item for item in get_args(Told) if item in facts.told)
    knowledge = Knowledge(
        model=model.to(device),
        client=facts.make_client(),
        input_shape=shape,
        num_classes=facts.num_classes,
        value_range=(low, high),
        told=told,
        auxiliary=read_auxiliary(folder, shape, device) if "auxiliary" in told else None,
        architecture=named,
    )
    size = _batch_size(folder, facts, batch_size)
    return RecordedTranscript(folder, knowledge, facts.rounds, first, size, device)


def _architecture(folder: Path, facts: Facts, chosen: Architecture | None, trust: bool) -> Architecture:
    """The chosen architecture or the recorded one, with the recorded options where only the name was chosen."""
    recorded = facts.named
    if chosen is not None:
        return recorded if chosen.use == recorded.use and not chosen.options else chosen
    if trust or trusted(recorded):
        return recorded
    if not is_dotted(recorded.use):
        raise unknown(f"model in {folder}", recorded.use, MODELS)
    raise SeepageError(
        f"{folder} was recorded with the model {recorded.use!r}, which is somebody's own code and is not run "
        f"unasked; if you trust it, add --model {recorded.use}"
    )


def _batch_size(folder: Path, facts: Facts, given: int | None) -> int | None:
    if facts.batch_size is not None and given is not None and given != facts.batch_size:
        raise SeepageError(
            f"{folder} was recorded with batch size {facts.batch_size}, not {given}; leave out --batch-size"
        )
    check_batch_size(given, facts.input_shape, "--batch-size")
    return facts.batch_size if given is None else given


def _fitting_model(
    architecture: Architecture, shape: tuple[int, ...], num_classes: int, state: tuple[Tensors, Tensors]
) -> torch.nn.Module:
    """Build the recorded model, having checked its size on the meta device, where nothing is allocated."""
    what, whose = "the recorded model", f"the model {architecture.use!r}"
    sketch = _sketch(architecture, shape, num_classes)
    if sketch is not None:
        check_fits(state[0], dict(sketch.named_parameters()), what, whose)
    model = build(architecture, shape, num_classes)
    wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
    check_fits(state[0], wanted, what, whose)
    check_fits(state[1], dict(model.named_buffers()), what, whose)
    return model


def _sketch(architecture: Architecture, shape: tuple[int, ...], num_classes: int) -> torch.nn.Module | None:
    try:
        with torch.device("meta"):
            return build(architecture, shape, num_classes)
    except SeepageError:
        return None  # Some networks look at their values while they are built, and those have none here.


def list_transcripts(folder: Path) -> list[Path]:
    """The transcript folders at or right below a folder: `observed/` itself, or one per cell of a grid."""
    refuse_pickle(folder)
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
