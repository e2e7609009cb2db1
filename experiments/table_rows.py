"""Rows of a table with words, read out of one step's update: whole rows, words and numbers, with blocks known or not.

python experiments/table_rows.py          a record for each network, optimizer, attack and batch size

The table is made up: four numbers and six columns of words, of 2 to 16 words whose shares fall as 1 / k, all tied to
the class. Three seeds of table and weights, ten batches each. `without`: the attacker knows no block. `marginals`: what
who guesses each column's commonest word and mean gets of the same rows.
"""

import csv
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from common import Clock, clocked, command, keep, kept
from ft_transformer import FTTransformer
from torch import nn

from seepage import ATTACKS, data, record
from seepage.base.nn import generator
from seepage.base.registry import Spec
from seepage.base.schema import Share
from seepage.errors import Inapplicable
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.data.tables import TableDataset
from seepage.federation.types import Reconstruction
from seepage.measure.metrics import Scores, Yardstick, score
from seepage.measure.metrics.rows import NAMES

WORDS = (2, 3, 5, 7, 9, 16)
"""Words of each column."""
SEEDS, BATCHES = 3, 10
SEARCH = "inverting_gradients"
RULES = {
    "SGD": FedSGD(), "Adam": FedAvg(lr=1e-3, optimizer="adam", steps=1), "SGD, 5 steps": FedAvg(lr=0.1, epochs=5),
}  # fmt: skip


def made_up(seed: int, rows: int = 1000) -> TableDataset:
    """A table with a class; written as a file and read as any other."""
    draw = generator(seed, "table")
    likely = torch.rand(rows, generator=draw)
    numbers = [likely / 2 + torch.rand(rows, generator=draw) / 2 for _ in range(4)]
    cells = [[f"{value:.4f}" for value in column.tolist()] for column in numbers]
    for count in WORDS:
        share = 1 / torch.arange(1, count + 1)
        word = torch.multinomial(share, rows, replacement=True, generator=draw)
        word = torch.where(torch.rand(rows, generator=draw) < 0.3 * likely, (word + 1) % count, word)
        cells.append([f"w{number:02d}" for number in word.tolist()])
    cells.append(["yes" if one > 0.5 else "no" for one in (likely + 0.3 * torch.randn(rows, generator=draw)).tolist()])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [[f"c{k}" for k in range(len(cells) - 1)] + ["class"], *zip(*cells, strict=True)]
            )
        found = data.load(str(path), label_column="class")
    assert isinstance(found, TableDataset)
    return found


def network(kind: str, table: TableDataset, seed: int) -> nn.Module:
    """Three fully connected layers, or a token for each column and two layers of attention."""
    torch.manual_seed(seed)
    (width,) = table.input_shape
    if kind == "fc":
        return nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    return FTTransformer(tuple(column.width for column in table.columns), 2)


@dataclass(frozen=True)
class Cell:
    """One row of the study."""

    kind: str
    optimizer: str
    attack: str
    size: int
    blocks: bool
    steps: int

    @property
    def name(self) -> str:
        known = "" if self.blocks else " without"
        return f"{self.kind}, {self.optimizer}, {self.attack}{known}, batch of {self.size}"

    @property
    def labels(self) -> bool:
        """Whether the attacker knows the labels."""
        return self.optimizer == "Adam" and self.attack == SEARCH

    def scores(self, clock: Clock) -> list[Scores]:
        """The scores of each batch."""
        found = []
        for seed in range(SEEDS):
            table = made_up(seed)
            model, order = network(self.kind, table, seed), generator(seed, "batches")
            options = {"steps": self.steps} if self.attack != "linear" else {}
            attack = ATTACKS.build(Spec(self.attack, options))
            for number in range(BATCHES):
                places = table.private[torch.randperm(len(table.private), generator=order)[: self.size]]
                batch = table.batch(places)
                blocks = table.blocks if self.blocks else ()
                known = ("labels",) if self.labels else ()
                seen = record(model, batch, client=RULES[self.optimizer], blocks=blocks, known=known)
                guess = Reconstruction(batch.inputs[:0])
                with clocked(clock):
                    try:
                        guess = attack(seen, seed=number)
                    except Inapplicable as refused:
                        print(refused)
                by = Yardstick(typical=table.typical, blocks=table.blocks)
                found.append(score(guess, batch, by))
        return found


def measured(cell: Cell) -> None:
    """Keep a cell's record."""
    clock = Clock()
    parts = cell.scores(clock)
    whole = Scores.concatenate(parts)
    rows, found, typical = (whole.values["exact_rows"] > 0).tolist(), whole.summaries, whole.baselines["typical"]
    share, each = Share.count(sum(rows), len(rows)), len(rows) // SEEDS
    row = {"network": cell.kind, "optimizer": cell.optimizer, "attack": cell.attack, "blocks": cell.blocks}
    row |= {"labels": cell.labels}
    row |= {"batch": cell.size, "batches": len(parts), "rows": len(rows), "steps": cell.steps}
    row |= {"by_seed": [sum(rows[seed * each :][:each]) for seed in range(SEEDS)]}
    for name in NAMES[1:]:
        row |= {name: found[name].mean, f"{name}_low": found[name].low, f"{name}_high": found[name].high}
    row |= {f"marginals_{name}": typical[name] for name in NAMES}
    row |= {"psnr": found["psnr"].mean, "psnr_marginals": typical["psnr"], "cpu_s": clock.cpu / len(parts)}
    keep("matching/tables", cell.name, "exact", {"exact": share.hits, "interval": [share.low, share.high], **row})


def cells(kinds: Sequence[str], sizes: Sequence[int], steps: int) -> list[Cell]:
    """A search behind Adam for `ft` alone, of local steps for one row of `fc`; twice the steps for 8 of `ft`."""
    found = []
    for kind in kinds:
        if kind == "fc":
            found += [Cell(kind, optimizer, "linear", size, True, 0) for optimizer in RULES for size in sizes]
            found += [Cell(kind, "SGD, 5 steps", SEARCH, 1, True, steps)]
        if kind == "ft":
            found += [Cell(kind, "Adam", SEARCH, size, True, steps) for size in sizes]
        for size in sizes:
            own = steps * (2 if (kind, size) == ("ft", 8) else 1)
            found += [Cell(kind, "SGD", SEARCH, size, blocks, own) for blocks in [True] + [False] * (size == 8)]
    return found


def main(kinds: tuple[str, ...] = ("fc", "ft"), *, sizes: tuple[int, ...] = (1, 2, 8, 32), steps: int = 500) -> None:
    there = {name for name, _ in kept("matching/tables")}
    for cell in cells(kinds, sizes, steps):
        if cell.name not in there:
            measured(cell)


if __name__ == "__main__":
    command(main)
