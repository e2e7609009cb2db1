"""Label rules on gradients made by hand, on fresh networks, and their promises on any numbers at all."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from refusals import refusal
from torch import Tensor, nn

from seepage import Architecture, Batch, FedSGD, Update, build, record
from seepage.attacks.search.labels import (
    LABEL_RULES,
    Auto,
    BiasCount,
    Given,
    Joint,
    LabelInference,
    LastLayerMinimum,
    RowSumCount,
    SignOfLastBias,
    counts_to_labels,
    largest_remainder,
)
from seepage.federation.types import Knowledge, Round

WIDTH = 6


def observed(
    features: Tensor, labels: Tensor, classes: int, *, chances: Tensor | None = None, bias: bool = True
) -> tuple[Round, Knowledge]:
    """A round whose last-layer gradient is written down from its formula: mean over examples of (p - y) h^T."""
    p = torch.full((len(labels), classes), 1 / classes) if chances is None else chances
    slope = p - nn.functional.one_hot(labels, classes)  # [n, classes]
    weight = slope.T @ features / len(labels)
    gradient = {"weight": weight} | ({"bias": slope.mean(0)} if bias else {})
    layer = nn.Linear(features.shape[1], classes, bias=bias)
    params = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    round_ = Round(0, params, Update(gradient), batch_size=len(labels))
    return round_, Knowledge(layer, FedSGD(), (features.shape[1],), classes)


def features(n: int, seed: int = 0) -> Tensor:
    return torch.rand((n, WIDTH), generator=torch.Generator().manual_seed(seed))


def named(rule: LabelInference, case: tuple[Round, Knowledge]) -> list[int]:
    found = rule(*case)
    assert found.dtype == torch.int64
    assert found.tolist() == sorted(found.tolist())
    return found.tolist()


BATCHES = st.integers(2, 8).flatmap(
    lambda classes: st.tuples(st.lists(st.integers(0, classes - 1), min_size=1, max_size=20), st.just(classes))
)


@given(BATCHES)
def test_the_bias_count_is_exact_where_the_output_is_uniform(batch: tuple[list[int], int]) -> None:
    labels, classes = batch
    case = observed(features(len(labels)), torch.tensor(labels), classes)
    assert named(BiasCount(), case) == sorted(labels)


@given(BATCHES, st.integers(0, 99))
def test_the_bias_count_is_exact_on_fresh_networks_repeats_and_all(batch: tuple[list[int], int], seed: int) -> None:
    labels, classes = batch
    model = build(Architecture("fc2", {"hidden": 64}), (1, 4, 4), classes, seed=seed)
    inputs = torch.rand((len(labels), 1, 4, 4), generator=torch.Generator().manual_seed(seed))
    # The rule takes the mean output for uniform; a fresh network's is near enough while n times its error is below 1/2.
    with torch.no_grad():
        off = len(labels) * float((model(inputs).softmax(-1).mean(0) - 1 / classes).abs().max())
    assume(off < 0.4)
    transcript = record(model, Batch(inputs, torch.tensor(labels)))
    assert named(BiasCount(), (transcript[0], transcript.knowledge)) == sorted(labels)


@given(st.integers(2, 12), st.integers(0, 11), st.booleans(), st.integers(0, 50))
def test_the_sign_rule_is_exact_for_one_example_whatever_the_output(
    classes: int, label: int, bias: bool, seed: int
) -> None:
    label %= classes
    draw = torch.Generator().manual_seed(seed)
    chances = (5 * torch.randn((1, classes), generator=draw)).softmax(-1)
    case = observed(features(1) + 0.1, torch.tensor([label]), classes, chances=chances, bias=bias)
    assert named(SignOfLastBias(), case) == [label]


@given(st.permutations(range(6)), st.integers(1, 6))
def test_the_minimum_rule_is_exact_for_labels_that_differ(order: list[int], n: int) -> None:
    labels = sorted(order[:n])
    strongest = torch.eye(n, WIDTH) + 0.5 * features(n)
    assert named(LastLayerMinimum(), observed(strongest, torch.tensor(labels), 6)) == labels


@given(st.lists(st.integers(0, 9), min_size=1, max_size=10, unique=True))
def test_the_row_sum_count_names_the_classes_of_a_small_batch(labels: list[int]) -> None:
    assert named(RowSumCount(), observed(features(len(labels)) + 0.1, torch.tensor(labels), 10)) == sorted(labels)


def slow_row_sum_count(rows: list[list[float]], n: int) -> list[int]:
    """FedLeak's rule once more, entry by entry as the paper's formula has it, in plain Python."""
    sums = [sum(row) for row in rows]
    order = sorted(range(len(sums)), key=lambda j: sums[j])
    if n <= len(sums):
        return sorted(order[:n])
    largest = max(entry for row in rows for entry in row)
    below = [sum(entry - largest for entry in row) for row in rows]
    if sum(below) == 0:
        below = [-1.0] * len(sums)
    counts = [int((n * (b / sum(below)) + 1e-7) // 1) for b in below]
    place = 0
    while sum(counts) < n:
        counts[order[place % len(order)]] += 1
        place += 1
    return [j for j, count in enumerate(counts) for _ in range(count)]


@given(
    st.lists(st.lists(st.integers(-64, 64), min_size=3, max_size=3), min_size=2, max_size=8),
    st.integers(1, 40),
)
def test_the_row_sum_count_is_the_slow_one(numbers: list[list[int]], n: int) -> None:
    rows = [[number / 8 for number in row] for row in numbers]
    layer = nn.Linear(3, len(rows))
    params = {name: p.detach() for name, p in layer.named_parameters()}
    update = Update({"weight": torch.tensor(rows), "bias": torch.zeros(len(rows))})
    case = Round(0, params, update, batch_size=n), Knowledge(layer, FedSGD(), (3,), len(rows))
    assert named(RowSumCount(), case) == slow_row_sum_count(rows, n)


def test_the_papers_count_subtracts_the_largest_entry_of_all() -> None:
    """By hand: sums -3, 0 and 1 with largest entry 1 in two columns leave -5, -2 and -1, so shares 5/8, 2/8, 1/8."""
    rows = torch.tensor([[-2.0, -1.0], [-1.0, 1.0], [0.0, 1.0]])
    layer = nn.Linear(2, 3)
    params = {name: p.detach() for name, p in layer.named_parameters()}
    case = (
        Round(0, params, Update({"weight": rows, "bias": torch.zeros(3)}), batch_size=8),
        Knowledge(layer, FedSGD(), (2,), 3),
    )
    assert named(RowSumCount(), case) == [0] * 5 + [1] * 2 + [2]


@given(
    st.integers(2, 8).flatmap(lambda c: st.lists(st.floats(-1, 1, width=32), min_size=2 * c, max_size=2 * c)),
    st.integers(1, 30),
    st.sampled_from(["bias", "count", "minimum", "sign", "auto"]),
)
def test_on_any_gradient_a_rule_names_as_many_labels_as_examples(numbers: list[float], n: int, name: str) -> None:
    """Also under defenses: the numbers are arbitrary, so nothing is exact, but nothing may break."""
    classes = len(numbers) // 2
    layer = nn.Linear(1, classes)
    params = {key: p.detach() for key, p in layer.named_parameters()}
    halves = torch.tensor(numbers).reshape(2, classes)
    round_ = Round(0, params, Update({"weight": halves[0][:, None], "bias": halves[1]}), batch_size=n)
    case = round_, Knowledge(layer, FedSGD(), (1,), classes)
    outside = {"sign": "several_examples" if n > 1 else "", "minimum": "too_few_classes" if n > classes else ""}
    if outside.get(name):
        with refusal(outside[name]):
            LABEL_RULES[name](*case)
        return
    found = named(LABEL_RULES[name], case)
    assert len(found) == n
    assert all(0 <= label < classes for label in found)


@given(st.lists(st.floats(-10, 1e4), min_size=1, max_size=30), st.integers(0, 200))
def test_largest_remainder_gives_whole_counts_that_sum_and_stray_less_than_one(shares: list[float], total: int) -> None:
    counts = largest_remainder(torch.tensor(shares, dtype=torch.float64), total).tolist()
    assert sum(counts) == total
    assert min(counts) >= 0
    kept = [max(share, 0) for share in shares]
    if sum(kept) > 0:
        fair = [total * share / sum(kept) for share in kept]
        assert all(abs(count - f) < 1 + 1e-9 for count, f in zip(counts, fair, strict=True))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_whole_shares_stay_and_become_labels(counts: list[int]) -> None:
    assume(sum(counts) > 0)
    kept = largest_remainder(torch.tensor(counts, dtype=torch.float64), sum(counts))
    assert kept.tolist() == counts
    assert Counter(counts_to_labels(kept).tolist()) == {j: c for j, c in enumerate(counts) if c}


def test_given_labels_are_those_told_and_nothing_else() -> None:
    round_, knowledge = observed(features(3), torch.tensor([0, 2, 2]), 4)
    with refusal("no_labels", "--known"):
        Given()(round_, knowledge)
    known = Round(0, round_.params, round_.update, batch_size=3, labels=torch.tensor([1, 1, 3]))
    assert named(Given(), (known, knowledge)) == [1, 1, 3]
    assert named(Auto(), (known, knowledge)) == [1, 1, 3]


def test_joint_names_no_labels() -> None:
    assert Joint()(*observed(features(3), torch.tensor([0, 2, 2]), 4)) is None


def test_auto_is_the_sign_for_one_the_bias_for_more_and_joint_as_a_last_resort() -> None:
    one, more = torch.tensor([3]), torch.tensor([1, 1, 0])
    assert named(Auto(), observed(features(1), one, 4, bias=False)) == [3]
    assert named(Auto(), observed(features(3), more, 4)) == [0, 1, 1]
    assert Auto()(*observed(features(3), more, 4, bias=False)) is None
    conv = nn.Sequential(nn.Conv2d(1, 4, 2), nn.Flatten())
    params = {name: p.detach() for name, p in conv.named_parameters()}
    assert Auto()(Round(0, params, Update(params), batch_size=1), Knowledge(conv, FedSGD(), (1, 2, 2), 4)) is None


REFUSALS = [
    ("sign", 2, True, "several_examples"),
    ("minimum", 5, True, "too_few_classes"),
    ("bias", 2, False, "no_bias"),
]


@pytest.mark.parametrize(("name", "n", "bias", "refused"), REFUSALS)
def test_rules_refuse_what_their_condition_excludes(name: str, n: int, bias: bool, refused: str) -> None:
    case = observed(features(n), torch.arange(n) % 4, 4, bias=bias)
    with refusal(refused):
        LABEL_RULES[name](*case)


@pytest.mark.parametrize("name", ["auto", "bias", "count", "minimum", "sign"])
def test_no_rule_counts_without_the_batch_size_or_reads_the_gradient_of_another_loss(name: str) -> None:
    round_, knowledge = observed(features(1), torch.tensor([1]), 4)
    with refusal("no_batch_size", "--batch-size"):
        LABEL_RULES[name](Round(0, round_.params, round_.update), knowledge)
    other = replace(knowledge, client=FedSGD(loss="mse"))
    if name == "auto":
        assert LABEL_RULES[name](round_, other) is None
        return
    with refusal("no_softmax_gradient"):
        LABEL_RULES[name](round_, other)
