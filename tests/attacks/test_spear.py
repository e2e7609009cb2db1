"""SPEAR: exact on planted batches of any kind, silent where it cannot know, and plain about what it refuses."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal
from torch import Tensor, nn

import seepage.federation.data
from seepage import Architecture, Batch, FedSGD, GaussianNoise, Inapplicable, Transcript, attack, build, record
from seepage.attacks import Spear
from seepage.attacks.spear.lifted_linearization import determined, lifted, parted
from seepage.attacks.spear.neighbor_units import NeighborUnits
from seepage.attacks.spear.sparse_columns import FoundDirections, Span, refined, reweighted, sampled
from seepage.base.nn import generator
from seepage.federation.clients import FedAvg
from seepage.federation.types import Update
from seepage.testing.watch import Changed


def table(n: int, d: int, seed: int = 0, classes: int = 10) -> Batch:
    return Batch(torch.rand((n, d), generator=generator(seed, "table")), torch.arange(n) % classes)


def seen_of(batch: Batch, hidden: int, classes: int = 10, seed: int = 0) -> Transcript:
    return record(
        build(Architecture("fc2", {"hidden": hidden}), tuple(batch.inputs.shape[1:]), classes, seed=seed), batch
    )


def planted(p: int, n: int, seed: int) -> tuple[Span, Tensor]:
    """A span with orthogonal columns and the sparse columns `[p, n]` that it was made of."""
    draw = generator(seed, "planted columns")
    columns = torch.randn((p, n), generator=draw, dtype=torch.float64).relu()
    columns = columns * (1 - 2 * torch.randint(2, (p, 1), generator=draw))
    return Span(torch.linalg.qr(columns).Q * p**0.5, torch.zeros(n).double()), columns


def agreement(span: Span, directions: Tensor, columns: Tensor) -> Tensor:
    """`[n]` largest cosine of each planted column with any found."""
    found = torch.nn.functional.normalize(span.rows @ directions.T, dim=0)
    return (torch.nn.functional.normalize(columns, dim=0).T @ found).abs().amax(1)


@pytest.mark.parametrize("by", ["sampled", "reweighted"])
def test_planted_sparse_columns_are_found(by: str) -> None:
    span, columns = planted(120, 6, seed=1)
    draw = generator(0, "test")
    known = torch.zeros(0, 6).double()
    candidates = sampled(span, 2048, draw) if by == "sampled" else reweighted(span, 200, draw, 100, known)
    found = FoundDirections(span, 0.25, lambda direction: 0.0)
    assert found.add(candidates)
    assert agreement(span, found.independent(), columns).min() > 1 - 1e-10


def linear_behind(p: int, n: int, errors: int, seed: int) -> tuple[Span, Tensor, Tensor]:
    """A span, the columns `[p, n]` it was made of, and the basis `[p, errors]` that each is, where it is not zero."""
    draw = generator(seed, "planted behind a linear layer")
    behind, own = (torch.randn(shape, generator=draw).double() for shape in ((p, errors), (errors, n)))
    columns = (torch.rand((p, n), generator=draw) < 0.5) * (behind @ own)
    return Span(torch.linalg.qr(columns).Q * p**0.5, torch.zeros(n).double()), columns, behind


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 9), errors=st.integers(1, 5), seed=st.integers(0, 99))
def test_lifted_equations_give_every_column_where_units_determine_them(n: int, errors: int, seed: int) -> None:
    span, columns, behind = linear_behind(3 * n * (n + errors), n, errors, seed)
    assert determined(n, errors, len(columns))
    assert agreement(span, parted(lifted(span, behind), generator(0, "test")), columns).min() > 1 - 1e-9


@pytest.mark.parametrize(("units", "enough"), [(28 + 8 * 5, True), (28 + 8 * 5 - 4, False)])
def test_the_number_of_units_that_lifted_equations_need_is_the_stated_one(units: int, enough: bool) -> None:
    """`n (n - 1) / 2 + n errors` for 8 columns; with 4 fewer some combination of wrong ones solves them too."""
    span, columns, behind = linear_behind(units, 8, 5, seed=1)
    assert determined(8, 5, units) == enough
    assert (agreement(span, parted(lifted(span, behind), generator(0, "test")), columns).min() > 1 - 1e-6) == enough


def alike(n: int, seed: int) -> tuple[NeighborUnits, Tensor]:
    """Examples near one line, so that few sets of them are on together, with the columns `[p, n]` of their own."""
    draw = generator(seed, "alike")
    inputs = torch.linspace(-1, 1, n)[:, None] + 0.05 * torch.randn((n, 40), generator=draw)
    weight, behind = (torch.randn(shape, generator=draw) for shape in ((200, 40), (200,)))
    inputs, weight, behind = (part.double() for part in (inputs, weight, behind))

    def errors(outputs: Tensor) -> Tensor:
        chance = (outputs.relu() @ behind / 200).sigmoid()
        return torch.stack([chance, chance - 1]) / n  # [2, k]

    def own(outputs: Tensor, error: Tensor) -> Tensor:
        return error[:, None] * (outputs > 0) * behind

    bias = 8 * torch.randn(200, generator=draw).double()
    labels = torch.randint(2, (n,), generator=draw)
    outputs = inputs @ weight.T + bias
    columns = own(outputs, errors(outputs)[labels, torch.arange(n)]).T  # [p, n]
    sums = torch.cat([columns @ inputs, columns.sum(1, keepdim=True)], 1) / behind[:, None]
    reached = columns.abs().sum(1) > 0
    spread = torch.linalg.qr(columns[reached])
    # The coordinates here are those of the inputs themselves: any basis of what the examples span will do.
    span = Span(spread.Q * len(spread.Q) ** 0.5, torch.zeros(n).double())
    shown = lambda z, error: own(z, error)[:, reached]  # noqa: E731
    return NeighborUnits(span, sums[reached], weight.T, bias, errors, shown), columns[reached]


@pytest.mark.parametrize("seed", range(4))
def test_units_that_differ_by_one_example_give_all_of_them(seed: int) -> None:
    """Of 45 + 10 products that the lifted equations have fewer sets of examples are on together."""
    units, columns = alike(10, seed)
    assert len(torch.unique(columns != 0, dim=0)) < 55
    found = units.directions()
    assert found.shape == (10, 10)
    assert agreement(units.span, found, columns).min() > 1 - 1e-9


def test_units_that_differ_by_two_examples_give_none() -> None:
    """With each example there twice, under two names, no difference is one example's own."""
    units, _ = alike(6, seed=0)
    assert replace(units, sums=2 * units.sums).directions().shape == (0, 6)


def test_twenty_rows_of_a_table_from_a_third_of_the_units_that_the_lifted_equations_need() -> None:
    """64 units, where the equations need 210 and a drawn submatrix would be right by one chance in 2^19."""
    data = seepage.federation.data.load("breast_cancer")
    batch = data.batch(data.private[torch.randperm(len(data.private), generator=generator(101, "rows"))[:20]])
    found = attack(seen_of(batch, 64, classes=2, seed=101), Spear())
    assert found.status == "ok"
    assert found.cost["tries"] == 20
    assert torch.cdist(found.inputs, batch.inputs).amin(1).max() < 1e-4


def test_twenty_four_noise_images_come_back_from_512_units_without_a_search() -> None:
    """A drawn submatrix would have to be right by one chance in 2^23 for each of them."""
    inputs = torch.rand((24, 3, 16, 16), generator=generator(5, "noise"))
    found = attack(seen_of(Batch(inputs, torch.arange(24) % 10), 512), Spear())
    assert found.status == "ok"
    assert found.cost["tries"] <= 48
    assert torch.cdist(found.inputs.flatten(1), inputs.flatten(1)).amin(1).max() < 1e-4


def test_each_drawn_direction_has_the_zeros_it_was_drawn_for() -> None:
    span, _ = planted(9, 4, seed=2)
    drawn = sampled(span, 50, generator(0, "test"))
    zeros = (drawn @ span.rows.T).abs() < 1e-9
    assert torch.allclose(drawn.norm(dim=1), torch.ones(len(drawn)).double())
    assert (zeros.sum(1) >= 2).all()  # of three rows drawn two may be the same one


def test_entries_that_are_only_small_do_not_spoil_the_fit() -> None:
    span, columns = planted(60, 4, seed=3)
    columns[:3, 0] = 5e-3
    span = Span(torch.linalg.qr(columns).Q * 60**0.5, span.rounding)
    exact = torch.linalg.lstsq(span.rows, columns[:, 0]).solution
    exact = exact / exact.norm()
    off = torch.nn.functional.normalize(exact + 1e-4 * torch.ones(4).double(), dim=0)
    fine, share = refined(span, off)
    assert (fine @ exact).abs() > 1 - 1e-12
    assert share == (columns[:, 0] == 0).double().mean()


@settings(max_examples=5, deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 5), classes=st.sampled_from([2, 5]))
def test_tables_come_back_exactly_or_are_not_certified(n: int, seed: int, classes: int) -> None:
    batch = table(n, 40, seed, classes)
    found = attack(seen_of(batch, 16 * n + 32, classes, seed), Spear(starts=64))
    assert found.certified is not None
    apart = torch.cdist(found.inputs[found.certified], batch.inputs)
    assert not len(apart) or apart.amin(1).max() < 1e-2


@pytest.mark.parametrize("mode", ["fast", "published"])
def test_noise_images_come_back_with_their_labels(mode: str) -> None:
    inputs = torch.rand((7, 3, 8, 8), generator=generator(1, "noise"))
    batch = Batch(inputs, torch.tensor([3, 1, 4, 1, 5, 9, 2]))
    found = attack(seen_of(batch, 120), Spear(mode=mode))
    assert found.status == "ok"
    assert found.certified.all()
    apart = torch.cdist(found.inputs.flatten(1), inputs.flatten(1))
    assert apart.amin(1).max() < 1e-4
    assert found.labels is not None
    assert torch.equal(found.labels, batch.labels[apart.argmin(1)])


def test_two_classes_whose_columns_differ_in_their_zeros_alone() -> None:
    """Differences of columns then have more zeros than columns."""
    rows = 0.5 + 0.2 * torch.randn((4, 30), generator=generator(2, "rows"))
    found = attack(seen_of(Batch(rows, torch.tensor([0, 1, 0, 1])), 300, classes=2), Spear())
    assert found.certified.sum() == 4
    assert torch.cdist(found.inputs, rows).amin(1).max() < 1e-3


def test_the_rank_tells_an_unknown_batch_size() -> None:
    batch = table(5, 40)
    unknown = Changed(seen_of(batch, 100), lambda observed: replace(observed, batch_size=None))
    found = Spear()(unknown, seed=0)
    assert len(found) == 5
    assert any("rank of the gradient says 5" in note for note in found.notes)
    assert torch.cdist(found.inputs, batch.inputs).amin(1).max() < 1e-3


def test_an_inner_layer_gives_its_embeddings() -> None:
    model = build(Architecture("mlp3", {"hidden": 96}), (40,), 10)
    batch = table(4, 40)
    found = attack(record(model, batch), Spear(layer="4"))
    truth = model[:4](batch.inputs).detach()
    assert found.space == "feature"
    assert torch.cdist(found.inputs, truth).amin(1).max() < 1e-3


def test_nothing_is_certified_under_noise() -> None:
    model = build(Architecture("fc2", {"hidden": 64}), (40,), 10)
    found = attack(record(model, table(4, 40), defense=GaussianNoise(sigma=0.1)), Spear(starts=64))
    assert not found.certified.any()
    assert found.status == "exhausted"


def test_a_budget_that_is_too_small_says_so() -> None:
    found = attack(seen_of(table(14, 60), 160), Spear(mode="published", samples=1000))
    assert found.status == "exhausted"
    assert len(found) == 0
    assert "from 1,000 submatrices" in found.notes[0]


def refused(model: nn.Module, batch: Batch, spear: Spear = Spear(), **how: object) -> str:  # noqa: B008
    transcript = record(model, batch, **how)  # type: ignore[arg-type]
    with pytest.raises(Inapplicable) as caught:
        spear.check(transcript)
    assert caught.value.remedy
    return caught.value.name


def fully(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *layers)


def test_it_says_where_it_does_not_apply() -> None:
    batch = table(3, 20, classes=4)
    plain = build(Architecture("fc2", {"hidden": 32}), (20,), 4)
    assert refused(fully(nn.Linear(20, 32, bias=False), nn.ReLU(), nn.Linear(32, 4)), batch) == "no_bias"
    assert refused(fully(nn.Linear(20, 32), nn.Sigmoid(), nn.Linear(32, 4)), batch) == "no_relu"
    assert refused(plain, batch, client=FedAvg(optimizer="adam", steps=2)) == "divided_entries"
    assert refused(plain, batch, client=FedAvg(epochs=3, batch_size=2)) == "weight_difference"
    assert refused(build(Architecture("fc2", {"hidden": 3}), (20,), 4), batch) == "too_many_examples"
    normed = fully(nn.Linear(20, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))
    assert refused(normed, batch, client=FedSGD(mode="train")) == "batch_norm"
    silent = Changed(
        record(plain, batch),
        lambda seen: replace(seen, update=Update({k: torch.zeros_like(v) for k, v in seen.update.tensors.items()})),
    )
    with refusal("zero_update"):
        Spear().check(silent)


def test_a_layer_whose_outputs_are_joined_with_others_is_refused() -> None:
    """One party of a vertically split network: the network behind it needs the other parties' outputs, too."""
    model = build(Architecture("vertical", {"channels": 16, "hidden": 64}), (1, 8, 8), 10)
    batch = Batch(torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 3, 3]))
    with refusal("not_separable"):
        Spear()(record(model, batch), seed=0)
