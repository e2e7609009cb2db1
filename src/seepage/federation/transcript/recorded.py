"""Transcripts in folders: `save_transcript` writes them; `open_transcript` reads each round when it is needed.

A folder `observed/` contains everything that an attacker may read, and nothing else:

    knowledge.json                schema version, architecture, client rule, shapes, side information
    model.safetensors             params/NAME, buffers/NAME of the first round; frozen/NAME: what is not trained
    rounds/000000.safetensors     update/NAME of what was sent; params/ and buffers/ only where they changed; labels,
                                  indices if known; rate, by which a difference of weights was divided
    auxiliary.safetensors         inputs that are not private, if the attacker has some
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy

from seepage.base.nn import on_meta, vocabulary_of
from seepage.base.registry import is_network_file
from seepage.base.storage import (
    LARGEST_TENSORS,
    SCHEMA,
    count_tensors,
    read_tensors,
    refuse_links,
    refuse_pickle,
    write_json,
    write_tensors,
)
from seepage.errors import SeepageError, short, unknown
from seepage.federation.clients import client_options
from seepage.federation.defenses import defense_tables
from seepage.federation.measured import Step
from seepage.federation.models import MODELS, build, trusted
from seepage.federation.sent_tensors import check_fits, not_sent
from seepage.federation.transcript.foreign import (
    STEP_NUMBERS,
    Facts,
    check_batch_size,
    check_rounds,
    like_model,
    read_auxiliary,
    read_decayed,
    read_facts,
    read_kind,
    read_rate,
    read_rates,
    read_step,
    round_file,
)
from seepage.federation.transcript.labels import misfit_of_labels
from seepage.federation.types import (
    Architecture,
    Knowledge,
    Round,
    SideInformation,
    Tensors,
    Transcript,
    Update,
    in_short,
)

MAX_CACHED_BYTES = 2**28
"""Largest size in bytes of the rounds that an open transcript caches; the latest round is always cached."""
PARTS_FOR_EACH, SPARE_PARTS = 4, 2_000
"""Modules and parameters of a model for each tensor of its file, and beside those."""
FILE_OVERHEAD = 2**26
"""Largest size in bytes of a file beyond the tensors of its model."""


@dataclass
class _RoundCache:
    """The most recently read rounds, at most `MAX_CACHED_BYTES` in total, and always the last one."""

    rounds: dict[int, Round] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def keep(self, observed: Round, size: int) -> None:
        """Add a round of so many bytes, and evict the oldest ones if the cache is full."""
        self.rounds[observed.t], self.sizes[observed.t] = observed, size
        self.total += size
        while self.total > MAX_CACHED_BYTES and len(self.rounds) > 1:
            oldest = next(iter(self.rounds))
            del self.rounds[oldest]
            self.total -= self.sizes.pop(oldest)


@dataclass(frozen=True)
class RecordedTranscript:
    """Rounds read from a folder, each when it is first needed; the most recent ones are cached."""

    folder: Path
    knowledge: Knowledge
    length: int
    first: tuple[Tensors, Tensors]
    batch_size: int | None
    device: str = "cpu"
    personal: frozenset[str] = frozenset()
    size_inferred: bool = False
    _cache: _RoundCache = field(default_factory=_RoundCache, repr=False, compare=False)

    __repr__ = in_short

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, t: int) -> Round:
        if not 0 <= t < self.length:
            raise IndexError(t)
        if t not in self._cache.rounds:
            path = round_file(self.folder, t)
            self._cache.keep(self._read(t, path), path.stat().st_size)
        return self._cache.rounds[t]

    def _read(self, t: int, path: Path) -> Round:
        """One round from its file; parameters and buffers that are not in it are those of the first round.

        Raises:
            SeepageError: For tensors that do not fit the model, and for damaged values.
        """
        found = read_tensors(path, most=self._most)
        tensors = {name: tensor.to(self.device) for name, tensor in found.items()}
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
            update=Update(
                like_model(parts["update"], like[0], path, finite=False),
                read_kind(tensors, path),
                read_rate(tensors, path),
                read_decayed(_under(tensors, "decayed"), parts["update"], path),
                read_step(tensors, path),
                read_rates(_under(tensors, "rates"), parts["update"], path),
                like_model(_under(tensors, "returned"), like[1], path),
            ),
            batch_size=self._size(tensors),
            labels=self._labels(tensors, path),
            indices=self._told("indices", tensors, path, None),
            personal=self.personal,
            size_inferred=self.size_inferred,
        )

    @property
    def _most(self) -> int:
        """Bytes that a round's file can have: weights and buffers, sent and returned, in numbers of 8 bytes at most."""
        params, buffers = self.first
        return 2 * (_bytes_of(params.values()) + _bytes_of(buffers.values()))

    def indices(self, t: int) -> Tensor | None:
        """`[K]` indices of the samples of round `t`, without reading its update; None if the attacker lacks them."""
        if t in self._cache.rounds:
            return self._cache.rounds[t].indices
        path = round_file(self.folder, t)
        return self._told("indices", read_tensors(path, ["indices"]), path, None)

    def params(self, t: int) -> Tensors:
        """The weights of round `t`."""
        if t in self._cache.rounds:
            return self._cache.rounds[t].params
        names = [f"params/{name}" for name in self.first[0]]
        moved = _under(read_tensors(round_file(self.folder, t), names), "params")
        return self[t].params if moved else self.first[0]

    def select(self, t: int, names: Collection[str]) -> Tensors:
        """The gradients of these tensors in round `t`, without reading the others."""
        if t in self._cache.rounds:
            whole = self._cache.rounds[t].gradient(self.knowledge.client)
            return {name: whole[name] for name in names}
        path = round_file(self.folder, t)
        tensors = read_tensors(path, ["kind", "indices", *(f"update/{name}" for name in names)])
        like = {name: self.first[0][name] for name in names}
        found = {name: tensor.to(self.device) for name, tensor in _under(tensors, "update").items()}
        absent = next((name for name in names if name not in found), None)
        if absent is not None:
            raise not_sent(absent, self.first[0])
        check_fits(found, like, f"the update of {path}", "the model")
        update = Update(like_model(found, like, path, finite=False), read_kind(tensors, path))
        return self.knowledge.client.as_gradient(update, self._size(tensors))

    def _size(self, tensors: Tensors) -> int | None:
        """The batch size; where indices are known, the last batch of an epoch may be smaller."""
        known = tensors.get("indices") if "indices" in self.knowledge.known else None
        return self.batch_size if known is None or known.ndim != 1 else len(known)

    def _labels(self, tensors: Tensors, path: Path) -> Tensor | None:
        """The labels that the attacker knows, where they are: class numbers, next tokens, values, maps of classes."""
        knowledge = self.knowledge
        single = knowledge.target == "class" and vocabulary_of(knowledge.model) is None
        if single or "labels" not in knowledge.known:
            return self._told("labels", tensors, path, knowledge.num_classes)
        known = tensors.get("labels")
        odd = known is None or misfit_of_labels(known, knowledge, self._size(tensors))
        if known is None or odd:
            raise SeepageError(
                f"{path} {odd or 'lacks the labels that knowledge.json says are known'}; record it again"
            )
        return known

    def _told(
        self, what: Literal["labels", "indices"], tensors: Tensors, path: Path, bound: int | None
    ) -> Tensor | None:
        """Side information on each example (labels or indices): `[n]` integers in [0, bound)."""
        if what not in self.knowledge.known:
            # Ignored even if the file has it, so that a report lists exactly the knowledge that attacks used.
            return None
        if what not in tensors:
            raise SeepageError(f"{path} lacks the {what} that knowledge.json says are known; record it again")
        known = tensors[what]
        one_each = known.dtype == torch.int64 and known.ndim == 1 and len(known)
        if not one_each or len(known) != (self._size(tensors) or len(known)):
            raise SeepageError(f"{path} does not tell {what} as one whole number per example; record it again")
        if (known < 0).any() or (bound is not None and (known >= bound).any()):
            limits = "below 0" if bound is None else f"outside 0..{bound - 1}"
            raise SeepageError(f"{path} tells {what} {limits}; record it again with right {what}")
        return known


def _bytes_of(tensors: Iterable[Tensor]) -> int:
    """Largest size in bytes of a file with tensors of these shapes, including names, labels and indices."""
    return FILE_OVERHEAD + 8 * sum(tensor.numel() for tensor in tensors)


def _under(tensors: Mapping[str, Tensor], part: str) -> Tensors:
    return {name[len(part) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{part}/")}


def _over(part: str, tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}


def save_transcript(
    transcript: Transcript,
    folder: Path,
    *,
    inferred: Mapping[str, str] | None = None,
    first: Round | None = None,
) -> None:
    """Write `observed/`. The index `knowledge.json` is written last, so a folder without it is incomplete.

    Args:
        transcript: The transcript to write.
        folder: The folder to write to.
        inferred: Name of each fact that was inferred instead of stated, to its source.
        first: The first round, if the caller has computed it already.

    Raises:
        SeepageError: If the model has no name from which it can be rebuilt, or the disk is full.
    """
    # Each round is asked for once: it may be computed when it is.
    knowledge, first = transcript.knowledge, transcript[0] if first is None else first
    table = _table(knowledge, first.batch_size, len(transcript))
    table |= {"inferred": dict(inferred)} if inferred else {}
    table |= {"personal": sorted(first.personal)} if first.personal else {}
    known = first.params.keys() | first.personal
    frozen = {name: p for name, p in knowledge.model.named_parameters() if name not in known}
    state = _over("params", first.params) | _over("buffers", first.buffers) | _over("frozen", frozen)
    write_tensors(folder / "model.safetensors", state)
    for t in range(len(transcript)):
        write_tensors(round_file(folder, t), _round_tensors(transcript[t] if t else first, first))
    if knowledge.auxiliary is not None:
        write_tensors(folder / "auxiliary.safetensors", {"inputs": knowledge.auxiliary})
    write_json(folder / "knowledge.json", table)


def save_update(
    knowledge: Knowledge,
    state: Mapping[str, Tensor],
    update: Mapping[str, Tensor],
    folder: Path,
    *,
    batch_size: int | None = None,
    inferred: Mapping[str, str] | None = None,
    personal: Collection[str] = (),
) -> None:
    """Write `observed/` of one update, tensor by tensor, so that lazy mappings hold only one tensor in memory.

    Args:
        knowledge: The attacker's knowledge.
        state: `params/NAME`, `buffers/NAME` and `frozen/NAME` of the model that was sent out.
        update: `update/NAME`, and what `update_facts` gives.
        folder: The folder to write to.
        batch_size: Number of examples behind the update, if known.
        inferred: Name of each fact that was inferred instead of stated, to its source.
        personal: Names of parameters whose weights the server never saw; `state` does not have them.

    Raises:
        SeepageError: If the model has no name from which it can be rebuilt, or the disk is full.
    """
    table = _table(knowledge, batch_size, 1)
    table |= {"inferred": dict(inferred)} if inferred else {}
    table |= {"personal": sorted(personal)} if personal else {}
    write_tensors(folder / "model.safetensors", state)
    write_tensors(round_file(folder, 0), update)
    write_json(folder / "knowledge.json", table)


def _table(knowledge: Knowledge, batch_size: int | None, rounds: int) -> dict[str, Any]:
    """The content of `knowledge.json`.

    Args:
        knowledge: What the attacker knows.
        batch_size: Number of examples in a round; None: not stated.
        rounds: Number of rounds.

    Raises:
        SeepageError: For a model without a name to build it from.
    """
    if knowledge.architecture is None:
        raise SeepageError(
            "this transcript's model has no name to build it from, so it cannot be written to a folder; "
            "give architecture=Architecture('fc2') or Architecture('mymodule:factory') when recording"
        )
    return {
        "schema": SCHEMA,
        "architecture": {
            "use": knowledge.architecture.use,
            "options": dict(knowledge.architecture.options),
        },
        "client": client_options(knowledge.client),
        "input_shape": list(knowledge.input_shape),
        "num_classes": knowledge.num_classes,
        "value_range": list(knowledge.value_range),
        "known": sorted(knowledge.known),
        "defense": None if knowledge.defense is None else defense_tables(knowledge.defense),
        "batch_size": batch_size,
        "rounds": rounds,
        **({} if knowledge.target == "class" else {"target": knowledge.target}),
        **({"blocks": [list(block) for block in knowledge.blocks]} if knowledge.blocks else {}),
    }


def kind_tensor(kind: str) -> Tensor:
    """The kind of an update as a tensor `[n]`, the bytes of its name."""
    return torch.tensor(list(kind.encode()), dtype=torch.uint8)


def update_facts(
    kind: str,
    rate: float | None,
    decayed: Mapping[str, float],
    step: Step | None = None,
    rates: Mapping[str, float] | None = None,
) -> Tensors:
    """The fields of an update beside its tensors, as a round's file holds them; see `Update`."""
    known = {"kind": kind_tensor(kind)}
    if step is not None:
        known["step"] = torch.tensor([float(getattr(step, name)) for name in STEP_NUMBERS], dtype=torch.float64)
    if rate is not None:
        known["rate"] = torch.tensor(rate, dtype=torch.float64)
    for part, numbers in (("decayed", decayed), ("rates", rates or {})):
        known |= _over(part, {name: torch.tensor(one, dtype=torch.float64) for name, one in numbers.items()})
    return known


def _round_tensors(observed: Round, first: Round) -> Tensors:
    sent = observed.update
    tensors = _over("update", sent.tensors) | update_facts(sent.kind, sent.rate, sent.decayed, sent.step, sent.rates)
    tensors |= _over("returned", sent.returned)
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
    size_inferred: bool = False,
    device: str = "cpu",
    trust: bool = False,
) -> RecordedTranscript:
    """Open an `observed/` folder, which may come from a third party.

    Args:
        folder: The folder with `knowledge.json`.
        architecture: Use this model instead of the recorded one; needed where the record names user code.
        batch_size: Use this batch size where the record has none.
        size_inferred: Whether that was read off the update, as one may be that the record has.
        device: Where to put the tensors.
        trust: Whether code that it names by dotted paths, a model or a client rule, may run.

    Raises:
        SeepageError: Where a file is missing, truncated, of another schema version, or does not fit the model.
    """
    refuse_links(folder)
    facts = read_facts(folder)
    check_rounds(folder, facts.rounds)
    knowledge, first = _open_knowledge(folder, facts, architecture, device, trust)
    size, personal = _batch_size(folder, facts, batch_size), frozenset(facts.personal)
    inferred = size_inferred if batch_size is not None else "batch size" in facts.said
    return RecordedTranscript(folder, knowledge, facts.rounds, first, size, device, personal, inferred)


def _open_knowledge(
    folder: Path, facts: Facts, architecture: Architecture | None, device: str, trust: bool
) -> tuple[Knowledge, tuple[Tensors, Tensors]]:
    """The attacker's knowledge from a recorded folder, and the first round's parameters and buffers by name.

    Args:
        folder: The `observed/` folder.
        facts: Content of its `knowledge.json`.
        architecture: Use this model instead of the recorded one; None: the recorded one.
        device: Where tensors go.
        trust: Whether user code that the folder names may run.
    """
    named = _architecture(folder, facts, architecture, trust)
    shape, rule = tuple(facts.input_shape), facts.make_client(trust=trust)
    outputs = rule.num_outputs(facts.num_classes)
    path = folder / "model.safetensors"
    with no_larger_than(path):
        sketch = _sketch(named, shape, outputs)
        most = LARGEST_TENSORS if sketch is None else _bytes_of([*sketch.parameters(), *sketch.buffers()])
        state = {name: t.to(device) for name, t in read_tensors(path, most=most).items()}
        first = _under(state, "params"), _under(state, "buffers")
        model = _fitting_model(named, shape, outputs, first, _under(state, "frozen"), sketch, facts.personal)
    low, high = facts.value_range
    known = frozenset(item for item in get_args(SideInformation) if item in facts.known)
    knowledge = Knowledge(
        model=model.to(device),
        client=rule,
        input_shape=shape,
        num_classes=facts.num_classes,
        value_range=(low, high),
        known=known,
        defense=facts.make_defense(trust=trust) if "defense" in known else None,
        auxiliary=read_auxiliary(folder, shape, device) if "auxiliary" in known else None,
        architecture=named,
        target=facts.target,
        blocks=tuple((first_place, width) for first_place, width in facts.blocks),
    )
    return knowledge, first


def _architecture(folder: Path, facts: Facts, chosen: Architecture | None, trust: bool) -> Architecture:
    """The given architecture or the recorded one; a given name without options takes the recorded options."""
    recorded = facts.named
    if not trust:  # that a saved network may be read is nothing that a folder can say
        own = {name: value for name, value in recorded.options.items() if name != "trust"}
        recorded = Architecture(recorded.use, own) if is_network_file(recorded.use) else recorded
    if chosen is not None:
        return recorded if chosen.use == recorded.use and not chosen.options else chosen
    if trust or trusted(recorded):
        return recorded
    if not MODELS.is_foreign(recorded.use):
        raise unknown(f"model in {folder}", recorded.use, MODELS)
    raise SeepageError(
        f"{folder} was recorded with the model {short(recorded.use)}, which is somebody's own code and is not run "
        f"unasked; if you trust it, add --model {short(recorded.use)[1:-1]}"
        f"{' --trust' if is_network_file(recorded.use) else ''}"
    )


def _batch_size(folder: Path, facts: Facts, given: int | None) -> int | None:
    known = facts.batch_size if "batch size" not in facts.said else None
    if known is not None and given is not None and given != known:
        raise SeepageError(
            f"{folder} was recorded with batch size {facts.batch_size}, not {given}; leave out --batch-size"
        )
    check_batch_size(given, facts.input_shape, "--batch-size")
    return facts.batch_size if given is None else given


def _fitting_model(
    architecture: Architecture,
    shape: tuple[int, ...],
    num_classes: int,
    state: tuple[Tensors, Tensors],
    frozen: Tensors,
    sketch: torch.nn.Module | None,
    personal: Collection[str],
) -> torch.nn.Module:
    """Build the recorded model after a check of its size on the meta device, which allocates no memory."""

    def check(built: torch.nn.Module) -> None:
        own = dict(built.named_parameters())
        odd = next((name for name in personal if name not in own or name in state[0] or name in frozen), None)
        if odd is not None:
            raise SeepageError(f"{what} does not fit {whose}: {short(odd)} cannot be the client's own; record it again")
        known = {name: parameter for name, parameter in own.items() if name not in personal}
        check_fits(state[0] | frozen, known, what, whose)

    what, whose = "the recorded model", f"the model {short(architecture.use)}"
    if sketch is not None:
        check(sketch)
    model = build(architecture, shape, num_classes)
    wanted = dict(model.named_parameters())
    check(model)
    check_fits(state[1], dict(model.named_buffers()), what, whose)
    for name, parameter in wanted.items():
        parameter.requires_grad_(name not in frozen)
        if name in frozen:
            parameter.data.copy_(frozen[name])
    return model


@contextmanager
def no_larger_than(path: Path) -> Iterator[None]:
    """Stop a model that is being built once it has many more tensors, or modules, or bytes than a file of its weights.

    A number in an untrusted description can ask for a million layers, which take hours and gigabytes, on the meta
    device too, before anything can be compared.

    Raises:
        SeepageError: Where it has.
    """
    most_parts = PARTS_FOR_EACH * count_tensors(path) + SPARE_PARTS
    parts, room = 0, PARTS_FOR_EACH * path.stat().st_size + FILE_OVERHEAD

    def count(_module: torch.nn.Module, _name: str, part: object) -> None:
        nonlocal parts, room
        parts += 1
        room -= part.nbytes if isinstance(part, Tensor) and not is_lazy(part) and not part.is_meta else 0
        if parts > most_parts or room < 0:
            raise _TooLarge(f"the model is far larger than {path}, which holds its weights; record it again")

    hooks = [register_module_module_registration_hook(count), register_module_parameter_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _TooLarge(SeepageError):
    pass


def _sketch(architecture: Architecture, shape: tuple[int, ...], num_classes: int) -> torch.nn.Module | None:
    """The model on the meta device."""
    try:
        with on_meta():
            return build(architecture, shape, num_classes)
    except _TooLarge:
        raise
    except SeepageError:
        return None  # some networks read tensor values while they are built, which the meta device does not have


def list_transcripts(folder: Path) -> list[Path]:
    """The transcript folders at or directly below a folder: `observed/` itself, or one per case of a grid."""
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
