"""What an expert reads at once of nine small networks, by name and number, with the truth beside."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.clients.test_generated import RATE, Small, drawn, facts, numbers, step
from torch import Tensor, nn

from seepage import Batch, build, record
from seepage.attacks.exposure import completed_rows
from seepage.audit.capture import Capture
from seepage.audit.checking import Check, Look, check_capture
from seepage.federation.types import Architecture


def ordered() -> nn.Module:
    def run(s: Any, x: Tensor) -> Any:
        added = s.n(s.word(x) + s.pos(torch.arange(x.shape[1])))
        return s.h(s.g(F.dropout(added, 0.1, s.training))[0][:, -1])

    return Small(run, word=nn.Embedding(60, 24), pos=nn.Embedding(16, 24), n=nn.LayerNorm(24),
                 g=nn.GRU(24, 24, batch_first=True), h=nn.Linear(24, 4))  # fmt: skip


def words_last() -> nn.Module:
    return Small(lambda s, x: s.h(s.body(s.words(x))[0][:, -1]), body=nn.GRU(16, 16, batch_first=True),
                 words=nn.Embedding(100, 16), h=nn.Linear(16, 4))  # fmt: skip


def code_beside() -> nn.Module:
    return Small(lambda s, x: s.h(torch.cat([s.e(x[:, 0].long()), s.n(x[:, 1:])], 1)), e=nn.Embedding(12, 4),
                 n=nn.LayerNorm(2), h=nn.Linear(6, 3))  # fmt: skip


def two_tables() -> nn.Module:
    def run(s: Any, x: Tensor) -> Any:
        read = [s.num(x[:, :3]), s.job(x[:, 3].long()), s.town(x[:, 4].long())]
        return s.h(s.a(torch.cat(read, 1)).relu())

    return Small(run, num=nn.Linear(3, 8), job=nn.Embedding(15, 4), town=nn.Embedding(40, 4), a=nn.Linear(16, 32),
                 h=nn.Linear(32, 2))  # fmt: skip


def tied() -> nn.Module:
    made = Small(lambda s, x: s.out(s.g(s.emb(x))[0]).transpose(1, 2), emb=nn.Embedding(80, 16),
                 g=nn.GRU(16, 16, batch_first=True), out=nn.Linear(16, 80))  # fmt: skip
    made.out.weight = made.emb.weight
    return made


def places() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(16, 9)


def tags() -> nn.Module:
    return Small(
        lambda s, x: F.log_softmax(s.h(s.e(x)), -1).transpose(1, 2), e=nn.Embedding(50, 16), h=nn.Linear(16, 9)
    )


def one_hot() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def columns() -> nn.Module:
    return Small(lambda s, x: s.h(s.a(s.n(x)).relu()), n=nn.BatchNorm1d(6), a=nn.Linear(6, 32), h=nn.Linear(32, 3))


def dropping() -> nn.Module:
    return Small(lambda s, x: s.h(s.a(F.dropout(s.n(x), 0.5, s.training)).relu()), n=nn.BatchNorm1d(6),
                 a=nn.Linear(6, 32), h=nn.Linear(32, 3))  # fmt: skip


PEOPLE = torch.tensor([[23, 1.62, 55, 3, 1200, 0.2], [67, 1.81, 92, 1, 3500, 0.9]])
ROW = torch.cat([numbers(12, 4, 1).float(), drawn(4, 2)], 1)
TOWNS = torch.cat([drawn(8, 3), numbers(15, 8, 1).float(), numbers(40, 8, 1).float()], 1)
WORDS = torch.cat([drawn(2, 4), F.one_hot(torch.tensor([1, 0]), 3), F.one_hot(torch.tensor([4, 0]), 5)], 1)
TAGGED = numbers(9, 2, 6)


@dataclass(frozen=True)
class Example:
    """One network with its batch, and the numbers behind the words that are said of it, by the fact's name."""

    network: Callable[[], nn.Module]
    x: Tensor
    y: Tensor
    said: dict[str, list[int]]
    loss: Callable[[Any, Tensor], Tensor] = F.cross_entropy
    known: dict[str, Any] = field(default_factory=dict)


TEXT, TEXTS = numbers(60, 1, 10), numbers(100, 2, 7)
NINE = (
    Example(ordered, TEXT, torch.tensor([2]), {"tokens": TEXT.unique().tolist(), "places": TEXT[0].tolist()}),
    Example(words_last, TEXTS, torch.tensor([0, 3]), {"tokens": TEXTS.unique().tolist()}),
    Example(code_beside, ROW, torch.tensor([0, 1, 2, 1]), {"codes in e": ROW[:, 0].unique().int().tolist()}),
    Example(two_tables, TOWNS, torch.arange(8) % 2, {"codes in job": TOWNS[:, 3].unique().int().tolist(),
                                                     "codes in town": TOWNS[:, 4].unique().int().tolist()}),
    Example(tied, numbers(80, 2, 24), numbers(80, 2, 24), {"labels": []}),
    Example(places, drawn(2, 6, 16), TAGGED, {"labels": []}, lambda o, t: F.cross_entropy(o.transpose(1, 2), t)),
    Example(tags, numbers(50, 2, 6), TAGGED, {"tokens": numbers(50, 2, 6).unique().tolist(), "labels": []}, F.nll_loss),
    Example(one_hot, WORDS, torch.tensor([0, 1]), {"block 4:3": [0, 1], "block 7:5": [0, 4]},
            known={"blocks": ((4, 3), (7, 5))}),
    Example(columns, PEOPLE, torch.tensor([0, 2]), {"columns": []}, known={"batch_size": 2}),
)  # fmt: skip


def looked(home: Path, one: Example, *, passes: int = 1, **known: Any) -> Check:
    net = one.network()
    before, after, _ = step(net, one.x, one.y, one.loss)
    for _ in range(passes - 1):
        after = step(net, one.x, one.y, one.loss)[1]
    paths = {"before": home / "before.pt", "after": home / "after.pt"}
    torch.save(before, paths["before"])
    torch.save(after, paths["after"])
    shape = tuple(one.x.shape[1:])
    name = Architecture(f"{__name__}:{one.network.__name__}")
    capture = Capture(**paths, lr=RATE, architecture=name, input_shape=shape, **{**one.known, **known})
    return check_capture(capture, Look()).cases[0]


def listed(value: str) -> list[int]:
    """The numbers at the end of a fact; of many the first twelve are named."""
    words = value.rpartition(": ")[2] if ": " in value else value.removeprefix("words ").removesuffix(" are there")
    return [int(word) for word in words.partition(" and ")[0].split(", ")]


@pytest.mark.parametrize("one", NINE, ids=lambda one: one.network.__name__)
def test_it_is_printed_by_number_and_true(tmp_path: Path, one: Example) -> None:
    found = looked(tmp_path, one)
    said = facts(found)
    assert set(one.said) <= set(said)
    for name, truth in one.said.items():
        if truth:
            assert listed(said[name][0]) == truth[: max(12, len(one.x[0]) * (name == "places"))]
    for labels in found.exposure.of("labels"):
        assert set(labels.evidence["present"]) <= set(one.y.unique().tolist())
    assert "labels" not in one.said or found.exposure.of("labels")[0].evidence["present"]
    order = [name for name in said if name in ("tokens", "places", "labels", "columns")]
    assert order == [name for name in ("tokens", "places", "labels", "columns") if name in order]


def truth_of(found: Check, rows: Tensor) -> bool:
    """Whether all rows that are named are there, within their errors."""
    (one,) = found.exposure.of("columns")
    named, errors = (torch.tensor(one.evidence[name], dtype=torch.float64) for name in ("rows", "errors"))
    near = ((named[:, None] - rows.double()).abs() <= errors[:, None]).all(2)  # [n, n]
    return bool((near.sum(0) == 1).all() and (near.sum(1) == 1).all())


@pytest.mark.parametrize("count", [2, 3])
def test_rows_behind_a_norm_are_read_whole(tmp_path: Path, count: int) -> None:
    """Of three rows, two have a neuron of their own, and the third is what is left of the mean."""
    rows = torch.cat([PEOPLE, torch.tensor([[41, 1.7, 70, 0, 900, 0.4]])])[:count]
    found = looked(tmp_path, Example(columns, rows, torch.arange(count), {}), batch_size=count)
    assert truth_of(found, rows)
    assert found.exposure.examples == count
    unsure = looked(tmp_path, Example(columns, rows, torch.arange(count), {}))
    (one,) = unsure.exposure.of("columns")  # copies of each row would leave the same directions
    assert one.examples == 0
    assert not one.evidence["stated"]


@pytest.mark.parametrize(
    ("network", "rows", "known", "passes"),
    [
        (dropping, PEOPLE, {}, 1),  # each example has its own mask
        (columns, PEOPLE.repeat(2, 1), {"batch_size": 4}, 1),  # twice each, so that another n makes other values
        (columns, drawn(12, 6, most=9), {}, 1),  # no neuron is one row's
        (columns, PEOPLE, {"steps": 3}, 3),  # statistics of three passes
    ],
)
def test_no_row_is_read_where_sums_do_not_hold(
    tmp_path: Path, network: Callable[[], nn.Module], rows: Tensor, known: dict[str, int], passes: int
) -> None:
    found = looked(tmp_path, Example(network, rows, torch.arange(len(rows)) % 3, {}), passes=passes, **known)
    assert not any("rows" in one.evidence for one in found.exposure.of("columns"))


def known_of(rows: Tensor, count: int) -> Tensor:
    """The same rows, of which the first columns are known."""
    known = rows.clone()
    known[:, count:] = torch.nan
    return known


@pytest.mark.parametrize(("count", "people"), [(1, 4), (3, 6), (5, 8)])
def test_the_rest_of_a_row_follows_from_columns_that_are_known(count: int, people: int) -> None:
    rows, strangers = drawn(people + 20, 20).split([people, 20])
    seen = record(build(Architecture("fc2", {"hidden": 64}), (20,), 4), Batch(rows[:count], torch.arange(count) % 4))
    found = completed_rows(seen, known_of(torch.cat([rows, strangers]), 12))
    assert all(one is not None for one in found[:count])
    assert not any(found[count:])
    for row, one in zip(rows[:count].double(), found[:count], strict=True):
        assert one is not None
        assert bool(((one.values - row).abs() <= one.errors).all())
        assert float(one.errors.max()) < 0.01


@pytest.mark.parametrize(("batch", "columns"), [(drawn(14, 20), 12), ((drawn(5, 20) > 0.5).float(), 12)])
def test_no_row_follows_from_too_few_columns_or_from_zeros_and_ones(batch: Tensor, columns: int) -> None:
    seen = record(build(Architecture("fc2", {"hidden": 64}), (20,), 4), Batch(batch, torch.arange(len(batch)) % 4))
    assert not any(completed_rows(seen, known_of(batch, columns)))


@pytest.mark.slow
@pytest.mark.parametrize("one", NINE, ids=lambda one: one.network.__name__)
def test_a_check_takes_less_than_ten_seconds_of_a_core(tmp_path: Path, one: Example) -> None:
    looked(tmp_path, one)
    known = {"shape": ",".join(map(str, one.x.shape[1:])), "lr": str(RATE)}
    known |= {"blocks": "4:3,7:5"} if "blocks" in one.known else {}
    options = [word for name, value in known.items() for word in (f"--{name}", value)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, "-m", "seepage", "check", "before.pt", "after.pt"]
    command += ["--model", f"{__name__}:{one.network.__name__}", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=_path())
    assert done.returncode == 0, done.stderr
    assert all(f"\n{name} " in done.stdout for name in one.said)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10


def _path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
