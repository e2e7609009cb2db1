"""Validate the files of a recorded folder, which may come from a third party, before anything is allocated."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from seepage.base.blocks import check_blocks
from seepage.base.registry import Spec, is_dotted
from seepage.base.signatures import bind, problems_with
from seepage.base.storage import check_schema, read_json, read_tensors
from seepage.errors import SeepageError, short, unknown
from seepage.federation.clients import CLIENTS, make_client
from seepage.federation.clients.losses import check_target
from seepage.federation.defenses import DEFENSES, joined
from seepage.federation.measured import Step
from seepage.federation.sent_tensors import LARGEST_VALUE, largest_value
from seepage.federation.types import Architecture, ClientUpdate, Defense, SideInformation, Target, Tensors

MAX_INPUT_VALUES = 2**28
"""Largest number of values in one batch; larger ones are refused before anything is allocated."""
MAX_FACTS_BYTES = 2**20
"""Largest accepted size of `knowledge.json`, in bytes."""
MAX_SENTENCE, MAX_SENTENCES = 1000, 24
"""Largest length of a sentence on an inferred fact, and largest number of them; the rest is cut."""
MAX_CLASSES = 10**6
"""Largest accepted number of classes: more than any vocabulary, which is the largest kind of class list."""
MAX_CLIENTS = 10**6
"""Largest accepted number of clients behind one update."""
MAX_DEFENSES = 64
"""Largest accepted number of stages of a defense; each is built before it is checked."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The content of `knowledge.json`; the annotations are its schema, and further keys are ignored."""

    architecture: dict[str, Any]
    client: dict[str, Any]
    input_shape: list[int]
    num_classes: int
    value_range: list[float]
    known: list[str]
    rounds: int
    batch_size: int | None = None
    defense: list[dict[str, Any]] | None = None
    inferred: dict[str, Any] | None = None
    personal: list[str] = field(default_factory=list)
    target: Target = "class"
    blocks: list[list[int]] = field(default_factory=list)

    @property
    def said(self) -> dict[str, str]:
        """Name of each fact that was inferred instead of stated, to its source."""
        texts = {name: text for name, text in (self.inferred or {}).items() if isinstance(text, str)}
        return {name[:MAX_SENTENCE]: text[:MAX_SENTENCE] for name, text in list(texts.items())[:MAX_SENTENCES]}

    @property
    def named(self) -> Architecture:
        return Architecture(self.architecture["use"], dict(self.architecture["options"]))

    def make_client(self, *, trust: bool = False) -> ClientUpdate:
        """The client's rule; one that is user code, or has such a loss, only where that is trusted."""
        spec = Spec.of(self.client)
        if CLIENTS.is_foreign(spec.use) and not trust:
            raise SeepageError(
                f"the update was recorded with the client rule {short(spec.use)}, which is somebody's own code and is "
                "not run unasked; if you trust it, add --trust"
            )
        own = own_losses(spec.options)
        if own and not trust:
            raise SeepageError(
                f"the update was recorded with the loss {short(own[0])}, which is somebody's own code and is not run "
                "unasked; if you trust it, add --trust"
            )
        return make_client(spec)

    def make_defense(self, *, trust: bool = False) -> Defense | None:
        """The defense that the attacker knows of; as for the rule, user code only where it is trusted."""
        parts = [Spec.of(table) for table in self.defense or []]
        own = next((part.use for part in parts if DEFENSES.is_foreign(part.use)), None)
        if own is not None and not trust:
            raise SeepageError(
                f"the attacker knows of the unknown defense {short(own)}, which is somebody's own code and is not "
                "run unasked; if you trust it, add --trust"
            )
        return joined([DEFENSES.build(part) for part in parts])


def read_facts(folder: Path) -> Facts:
    """Read `folder/knowledge.json`, which may come from a third party.

    Raises:
        SeepageError: If it is missing, damaged, of another schema version, or contains impossible values.
    """
    path = folder / "knowledge.json"
    if not path.exists():
        raise SeepageError(
            f"{folder} has no knowledge.json, so it is no recorded update; "
            "name a folder that seepage record or seepage audit wrote (…/observed)"
        )
    record = read_json(path, MAX_FACTS_BYTES)
    check_schema(record, path)
    known = {one.name: record[one.name] for one in fields(Facts) if one.name in record}
    problems = [problem.removeprefix("it: ") for problem in problems_with(Facts, known, "it")]
    if problems:
        raise SeepageError(f"{path} is damaged: {'; '.join(problems)}; record it again")
    facts = Facts(**known)
    _check_sizes(facts, path)
    _check_names(facts, path)
    return facts


def _check_sizes(facts: Facts, path: Path) -> None:
    shape, classes, size = facts.input_shape, facts.num_classes, facts.batch_size
    if not shape or min(shape) < 1 or len(shape) > 8 or math.prod(shape) > MAX_INPUT_VALUES:
        raise SeepageError(f"{path} names inputs of shape {short(shape)}, which cannot be; record it again")
    if not 1 <= classes <= MAX_CLASSES:
        raise SeepageError(f"{path} names {classes} classes, which cannot be; record it again")
    check_batch_size(size, shape, str(path))
    if len(facts.value_range) != 2 or not facts.value_range[0] < facts.value_range[1]:
        raise SeepageError(f"{path} names the value range {short(facts.value_range)}, not [low, high]; record it again")
    if any(len(block) != 2 for block in facts.blocks):
        raise SeepageError(f"{path} names one-hot blocks that are no pairs of place and width; record it again")
    check_blocks([(first, width) for first, width in facts.blocks], shape)
    if facts.rounds < 1:
        raise SeepageError(f"{path} names {facts.rounds} rounds, and one is the least there can be; record it again")


def check_batch_size(size: int | None, shape: list[int], where: str) -> None:
    """Raise for a batch size that cannot be; None, unknown, can."""
    if size is not None and not 1 <= size <= MAX_INPUT_VALUES // math.prod(shape):
        raise SeepageError(f"{where} names the batch size {size}, which cannot be; give the right one")


def _check_names(facts: Facts, path: Path) -> None:
    """Raise `SeepageError` for names and options of an untrusted `knowledge.json` that are unknown or do not fit."""
    architecture, client = facts.architecture, dict(facts.client)
    if not isinstance(architecture.get("use"), str) or not isinstance(architecture.get("options"), dict):
        raise SeepageError(f"{path} is damaged: architecture needs a name `use` and a table `options`; record it again")
    rule = client.pop("use", None)
    if not isinstance(rule, str) or not (rule in CLIENTS or CLIENTS.is_foreign(rule)):
        raise SeepageError(f"{path} names the unknown client rule {short(rule)}; use the seepage version that wrote it")
    clients = client.pop("clients", 1)
    if not isinstance(clients, int) or not 1 <= clients <= MAX_CLIENTS:
        raise SeepageError(f"{path} names {short(clients)} clients behind one update, which cannot be; record it again")
    if rule in CLIENTS:  # user code is not imported before it is trusted
        bind(CLIENTS[rule].make, client, f"the client rule {rule!r} of {path}")
        facts.make_client(trust=True)  # its own checks; a user-defined loss is imported once it is called
        loss, weights = str(client.get("loss", "cross_entropy")), client.get("class_weights", ())
        check_target(loss, facts.target, facts.num_classes, weights)
    _check_defense(facts, path)
    for item in facts.known:
        if item not in get_args(SideInformation):
            raise unknown(f"side information in {path}", item, get_args(SideInformation))


def own_losses(options: Mapping[str, Any]) -> list[str]:
    """Options of a rule that name user code: its loss."""
    return [value for value in options.values() if isinstance(value, str) and is_dotted(value)]


def _check_defense(facts: Facts, path: Path) -> None:
    if len(facts.defense or []) > MAX_DEFENSES:
        raise SeepageError(f"{path} names more than {MAX_DEFENSES} defenses, which no update has; record it again")
    for table in facts.defense or []:
        options = dict(table)
        use = options.pop("use", None)
        if not isinstance(use, str) or not (use in DEFENSES or DEFENSES.is_foreign(use)):
            raise SeepageError(f"{path} names the unknown defense {short(use)}; use the seepage version that wrote it")
        if use in DEFENSES:  # user code is not imported before it is trusted
            bind(DEFENSES[use].make, options, f"the defense {use!r} of {path}")
            DEFENSES.build(Spec.of(table))  # its own checks


def round_file(folder: Path, t: int) -> Path:
    """Path of the file of round `t`."""
    return folder / "rounds" / f"{t:06d}.safetensors"


def check_rounds(folder: Path, rounds: int) -> None:
    """Compare the stated number of rounds with the existing files, before any work is done per round."""
    found = {path.name for path in (folder / "rounds").glob("*.safetensors")}
    missing = next((t for t in range(rounds) if round_file(folder, t).name not in found), None)
    if missing is not None:
        raise SeepageError(
            f"{folder} names {rounds} rounds and {round_file(folder, missing)} is missing; copy or record it again"
        )


def read_kind(tensors: Tensors, path: Path) -> Literal["gradient", "delta"]:
    """The kind of update in a file; files that do not state one hold gradients."""
    stored = tensors.get("kind")
    if stored is None:
        return "gradient"
    readable = stored.dtype == torch.uint8 and stored.ndim == 1
    kind = bytes(stored.tolist()).decode(errors="replace") if readable else "?"
    if kind not in ("gradient", "delta"):
        raise SeepageError(f"{path} holds an update of kind {kind!r}; it must be 'gradient' or 'delta'")
    return "gradient" if kind == "gradient" else "delta"


def read_rate(tensors: Tensors, path: Path) -> float | None:
    """The learning rate that a difference of weights was divided by to make the gradient in a file, if there is one."""
    stored = tensors.get("rate")
    return None if stored is None else _positive(stored, path)


def read_rates(rates: Tensors, update: Tensors, path: Path) -> dict[str, float]:
    """The rates of tensors in a file over their common one, by name."""
    if not rates.keys() <= update.keys():
        raise SeepageError(f"{path} holds a learning rate of a tensor that was not sent; record it again")
    return {name: _positive(stored, path) for name, stored in rates.items()}


def _positive(stored: Tensor, path: Path) -> float:
    if stored.dtype != torch.float64 or stored.numel() != 1 or not 0 < float(stored) < math.inf:
        raise SeepageError(f"{path} holds a learning rate that is no number above 0; record it again")
    return float(stored)


STEP_NUMBERS = ("rate", "floor", "gain", "eps", "coupled", "limit", "scaled", "roundings")
"""The numbers of a `Step`, in the order of a file."""
MOST_ROUNDINGS = 100
"""More than any optimizer's step rounds."""


def read_step(tensors: Tensors, path: Path) -> Step | None:
    """The step of an optimizer that a gradient in a file is the inverse of, if there is one."""
    stored = tensors.get("step")
    if stored is None:
        return None
    damaged = f"{path} holds an optimizer's step that cannot be; record it again"
    if stored.dtype != torch.float64 or stored.shape != (len(STEP_NUMBERS),) or bool(stored.isnan().any()):
        raise SeepageError(damaged)
    rate, floor, gain, eps, coupled, limit, scaled, roundings = stored.tolist()
    if not 0 <= roundings <= MOST_ROUNDINGS:
        raise SeepageError(damaged)
    try:
        return Step(
            name="an optimizer", rate=rate, floor=floor, gain=gain, eps=eps, coupled=coupled, limit=limit,
            scaled=bool(scaled), roundings=roundings,
        )  # fmt: skip
    except SeepageError as error:
        raise SeepageError(f"{damaged} ({error})") from error


def read_decayed(shares: Tensors, update: Tensors, path: Path) -> dict[str, float]:
    """The shares of the weights in a file that weight decay took off them, by name."""
    wrong = next((name for name, share in shares.items() if name not in update or not _is_share(share)), None)
    if wrong is not None:
        raise SeepageError(
            f"{path} holds a weight decay of {short(wrong)} that is no share of a weight that was sent; record it again"
        )
    return {name: float(share) for name, share in shares.items()}


def _is_share(stored: Tensor) -> bool:
    return stored.dtype == torch.float64 and stored.numel() == 1 and 0 <= float(stored) < 1


def like_model(tensors: Tensors, model: Mapping[str, Tensor], path: Path, *, finite: bool = True) -> Tensors:
    """Tensors in the model's order and type, which files need not preserve.

    The order matters, since sums over tensors must round exactly as in the simulation.
    """
    places = {name: place for place, name in enumerate(model)}
    out = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: places.get(item[0], len(places))):
        dtype = model[name].dtype if name in model else tensor.dtype
        if dtype.is_floating_point != tensor.is_floating_point() or tensor.is_complex():
            raise SeepageError(
                f"{path} holds {short(name)} as {tensor.dtype}, and the model as {dtype}; record it again"
            )
        out[name] = tensor.to(dtype)
        largest = largest_value(out[name]) if finite else 0.0
        if largest > LARGEST_VALUE:
            values = "NaN or infinite values" if largest == math.inf else f"values of {largest:.2g}"
            raise SeepageError(
                f"the model of {path} holds {values} in {short(name)}, so no update of it says anything; "
                "check the training for overflow and record again"
            )
    return out


def read_auxiliary(folder: Path, shape: tuple[int, ...], device: str) -> Tensor:
    """Auxiliary public examples `[m, *shape]`."""
    path = folder / "auxiliary.safetensors"
    inputs = read_tensors(path, ["inputs"], most=8 * MAX_INPUT_VALUES).get("inputs")
    if inputs is None or inputs.shape[1:] != shape or not inputs.is_floating_point() or not inputs.isfinite().all():
        raise SeepageError(f"{path} holds no finite inputs of shape {shape}; record it again")
    return inputs.to(device)
