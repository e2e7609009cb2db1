"""What two checkpoints of one step show by themselves: codes of columns, labels at places, columns behind a norm.

python experiments/read_at_once.py          a record for each network, optimizer and batch; three minutes

Three seeds of weights, ten batches each, one local step but where more are said. `codes`: five columns of 2 to 50
codes, an embedding for each; the distinct codes of a batch that are named, of several clients those that one of them
alone has. `tags` and `next tokens`: the classes of labels at places, and these labels with the right count, proven or
estimated for the stated batch. `columns`:
30 measurements of patients behind a batch norm; both values of two rows, else mean and deviation, right to 1 % of the
column's range. `rows`: whole rows of these behind the norm and a layer of 256 neurons. False: named and not there;
values that are further off than is said. `known columns`: rows of a batch, scaled to 0 to 1, of which 15 of the 30 are
known, completed by the gradient of a layer of 64 neurons; false: of 20 others each, completed, too.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from common import command, keep, kept
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from seepage import Batch, observe
from seepage.attacks.exposure.analysis import UpdateAnalysis
from seepage.attacks.exposure.attributes import completed_rows
from seepage.attacks.exposure.columns import column_findings
from seepage.attacks.exposure.running_statistics import batch_statistics, two_row_errors
from seepage.attacks.exposure.text import code_findings
from seepage.base.nn import frozen_randomness, generator
from seepage.base.schema import Share
from seepage.errors import Inapplicable
from seepage.federation.clients import gradient_behind
from seepage.federation.measured import Step
from seepage.federation.types import Tensors, Transcript, Update

STUDY, SEEDS, BATCHES = "captured/at-once", 3, 10
WIDTHS = (2, 7, 16, 30, 50)
"""Codes of each column."""
TAGS, WORDS, PLACES = 9, 100, 12
OTHERS = 20
"""Strangers whose columns are known, too."""
WITHIN = 0.01
"""Share of a column's range up to which a value is right."""
RATE = {"SGD": 0.1, "AdamW": 1e-3}
MADE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, RATE["SGD"]),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, RATE["AdamW"], weight_decay=0.01),
}


class Codes(nn.Module):
    """Columns of codes, each in a table of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(width, 8) for width in WIDTHS)
        self.body = nn.Sequential(nn.Linear(8 * len(WIDTHS), 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, codes: Tensor) -> Tensor:
        read = [table(codes[:, place]) for place, table in enumerate(self.columns)]
        return self.body(torch.cat(read, 1))


class Tagger(nn.Module):
    """A class at each place of a text: `[n, classes, places]`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words, self.body, self.head = (
            nn.Embedding(WORDS, 16),
            nn.GRU(16, 32, batch_first=True),
            nn.Linear(32, classes),
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.words(ids))[0]).transpose(1, 2)


def zipf(width: int, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Numbers below `width`, whose shares fall as 1 / k."""
    count = torch.Size(shape).numel()
    return torch.multinomial(1 / torch.arange(1, width + 1), count, replacement=True, generator=draw).reshape(shape)


def after(model: nn.Module, batch: Batch, optimizer: str, steps: int = 1) -> nn.Module:
    """The client's network after its steps in train mode."""
    own = copy.deepcopy(model).train()
    made = MADE[optimizer](own.parameters())
    for _ in range(steps):
        made.zero_grad()
        F.cross_entropy(own(batch.inputs), batch.labels).backward()
        made.step()
    return own


def weights(model: nn.Module) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@dataclass(frozen=True)
class Setting:
    """One row of the study."""

    what: str
    optimizer: str
    size: int
    steps: int = 1
    clients: int = 1

    @property
    def name(self) -> str:
        more = f", {self.steps} steps" * (self.steps > 1) + f", {self.clients} clients' mean" * (self.clients > 1)
        return f"{self.what}, {self.optimizer}{more}, batch of {self.size}"


Counts = tuple[int, int, int]
"""Right, of so many, and named though they are not there."""


def codes(setting: Setting, seed: int, draw: torch.Generator) -> Counts:
    """Distinct codes of all columns; of several clients those that one of them alone has."""
    with frozen_randomness(seed):
        model = Codes()
    held, states = list[set[tuple[int, int]]](), list[Tensors]()
    for _ in range(setting.clients):
        inputs = torch.stack([zipf(width, (setting.size,), draw) for width in WIDTHS], 1)
        batch = Batch(inputs, torch.randint(3, (setting.size,), generator=draw))
        held.append({(place, int(code)) for row in inputs.tolist() for place, code in enumerate(row)})
        states.append(weights(after(model, batch, setting.optimizer, setting.steps)))
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    change = Update.from_states(weights(model), mean)
    seen = observe(model, change, (len(WIDTHS),), lr=RATE[setting.optimizer])
    found = code_findings(seen.knowledge, seen[0], None)
    named = {(int(one.evidence["table"].rpartition(".")[2]), row) for one in found for row in one.evidence["rows"]}
    touched = Counter(code for own in held for code in own)
    wanted = {code for code, times in touched.items() if times == 1} if setting.clients > 1 else set(touched)
    return len(named & wanted), len(wanted), len(named - set(touched))


def seen_step(model: nn.Module, own: nn.Module, shape: tuple[int, ...], setting: Setting) -> Transcript:
    """One step as an attacker reads it, who knows optimizer, rate and batch size."""
    before, rate = weights(model), RATE[setting.optimizer]
    change = Update.from_states(before, weights(own))
    if setting.optimizer == "SGD":
        return observe(model, change, shape, lr=rate, batch_size=setting.size)
    update, _ = gradient_behind(before, change, Step.adam(rate), dict.fromkeys(before, rate * 0.01))
    return observe(model, update, shape, batch_size=setting.size)


def at_places(setting: Setting, seed: int, draw: torch.Generator) -> Counts:
    """Classes of the labels at places; or the labels, with their counts: where these are not read, none is right."""
    tags, counted = setting.what.startswith("tags"), setting.what.endswith("counts")
    classes = TAGS if tags else WORDS
    with frozen_randomness(seed):
        model = Tagger(classes)
    inputs = zipf(WORDS, (setting.size, PLACES), draw)
    labels = zipf(TAGS, inputs.shape, draw)
    if not tags:
        labels = torch.cat([inputs[:, 1:], torch.full_like(inputs[:, :1], -100)], 1)
    seen = seen_step(model, after(model, Batch(inputs, labels), setting.optimizer), (PLACES,), setting)
    leak, true = UpdateAnalysis(seen).labels, Counter(labels[labels >= 0].tolist())
    named = Counter[int]()
    if leak is not None and leak.believed:
        named = Counter(dict.fromkeys(leak.present, 1))
        if counted:
            named = Counter(dict(enumerate(leak.counts))) if leak.counts else Counter()
    true = true if counted else Counter(dict.fromkeys(true, 1))
    return (named & true).total(), true.total(), (named - true).total()


def patients(setting: Setting, seed: int, draw: torch.Generator, neurons: int) -> tuple[Batch, nn.Module, Tensor]:
    """A batch of measurements, a network with a norm in front, and the range of each column."""
    table = load_breast_cancer()
    rows, labels = torch.tensor(table.data, dtype=torch.float32), torch.tensor(table.target)
    places, d = torch.randperm(len(rows), generator=draw)[: setting.size], rows.shape[1]
    with frozen_randomness(seed):
        model = nn.Sequential(nn.BatchNorm1d(d), nn.Linear(d, neurons), nn.ReLU(), nn.Linear(neurons, 2))
    return Batch(rows[places], labels[places]), model, rows.amax(0) - rows.amin(0)


def columns(setting: Setting, seed: int, draw: torch.Generator) -> Counts:
    """Values of two rows, or mean and deviation of each column."""
    batch, model, span = patients(setting, seed, draw, 16)
    own, inputs = after(model, batch, setting.optimizer), batch.inputs
    (found,) = batch_statistics(model, dict(model.named_buffers()), dict(own.named_buffers()))
    deviation = found.variance.clamp(min=0).sqrt()
    if setting.size == 2:
        half = deviation / 2**0.5
        said, true = torch.stack([found.mean - half, found.mean + half]), inputs.sort(0).values
        off = two_row_errors(model.get_submodule(found.norm), found)
    else:
        said, true = torch.stack([found.mean, deviation]), torch.stack([inputs.mean(0), inputs.std(0)])
        off = WITHIN * span
    error = (said - true).abs()
    return int((error <= WITHIN * span).sum()), error.numel(), int((error > off).sum())


def whole_rows(setting: Setting, seed: int, draw: torch.Generator) -> Counts:
    """Whole rows behind a norm and a layer of 256 neurons."""
    batch, model, span = patients(setting, seed, draw, 256)
    own = after(model, batch, setting.optimizer)
    (seen,) = (transcript := seen_step(model, own, tuple(batch.inputs.shape[1:]), setting))
    seen = replace(seen, update=replace(seen.update, returned=dict(own.named_buffers())))
    (found,) = column_findings(transcript.knowledge, seen, setting.size)
    if "rows" not in found.evidence:
        return 0, setting.size, 0
    named, errors = (torch.tensor(found.evidence[name], dtype=torch.float64) for name in ("rows", "errors"))
    gaps = (named[:, None] - batch.inputs.double()).abs()
    near = (gaps <= WITHIN * span).all(2).any(0)
    return int(near.sum()), setting.size, int((gaps > errors[:, None]).any(2).all(1).sum())


def completed(setting: Setting, seed: int, draw: torch.Generator) -> Counts:
    """Rows whose other columns follow from 15 that are known."""
    table = torch.tensor(load_breast_cancer().data, dtype=torch.float32)
    rows = (table - table.amin(0)) / (table.amax(0) - table.amin(0))
    order, d = torch.randperm(len(rows), generator=draw), rows.shape[1]
    inputs, labels = rows[order[: setting.size]], torch.tensor(load_breast_cancer().target)[order[: setting.size]]
    with frozen_randomness(seed):
        model = nn.Sequential(nn.Linear(d, 64), nn.Tanh(), nn.Linear(64, 2))
    own = after(model, Batch(inputs, labels), setting.optimizer)
    known = rows[order[: setting.size + OTHERS]].clone()
    known[:, torch.randperm(d, generator=draw)[d // 2 :]] = torch.nan
    try:
        found = completed_rows(seen_step(model, own, (d,), setting), known)
    except Inapplicable:
        return 0, setting.size, 0
    gaps = [None if one is None else (one.values - x).abs() for one, x in zip(found, inputs, strict=False)]
    right = sum(gap is not None and bool((gap <= WITHIN).all()) for gap in gaps)
    off = sum(gap is not None and bool((gap > one.errors).any()) for one, gap in zip(found, gaps, strict=False))
    return right, setting.size, off + sum(one is not None for one in found[setting.size :])


LABELS = ("tags", "tags with counts", "next tokens", "next tokens with counts")
HOW = {
    "codes": codes,
    **dict.fromkeys(LABELS, at_places),
    "columns": columns,
    "rows": whole_rows,
    "known columns": completed,
}


def settings() -> Iterator[Setting]:
    for optimizer in MADE:
        for size in (2, 8, 64):
            yield Setting("codes", optimizer, size)
        yield Setting("codes", optimizer, 8, steps=5)
        yield Setting("codes", optimizer, 8, clients=4)
        for what in LABELS:
            for size in (1, 4, 16):
                yield Setting(what, optimizer, size)
        for size in (2, 8, 32):
            yield Setting("columns", optimizer, size)
        for size in (2, 3, 4, 8):
            yield Setting("rows", optimizer, size)
        for size in (1, 2, 4, 8):
            yield Setting("known columns", optimizer, size)


def main() -> None:
    there = {name for name, _ in kept(STUDY)}
    for setting in settings():
        if setting.name in there:
            continue
        counts = [
            HOW[setting.what](setting, seed, draw)
            for seed in range(SEEDS)
            for draw in [generator(seed, f"batches of {setting.name}")]
            for _ in range(BATCHES)
        ]
        right, of, false = (sum(part) for part in zip(*counts, strict=True))
        whole, share = sum(got == all_ for got, all_, _ in counts), Share.count(right, of)
        row = {"what": setting.what, "optimizer": setting.optimizer, "batch": setting.size, "steps": setting.steps}
        row |= {"clients": setting.clients, "of": of, "false": false, "whole": whole, "batches": len(counts)}
        keep(STUDY, setting.name, "right", {"right": right, "interval": [share.low, share.high], **row})


if __name__ == "__main__":
    command(main)
