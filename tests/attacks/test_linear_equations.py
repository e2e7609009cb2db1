"""Linear equations: whole batches from layers behind the first, with patterns counted by plain loops as the oracle."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from seepage import Batch, GaussianNoise, Inapplicable, LinearLeak, attack, record
from seepage.attacks import LinearEquations
from seepage.base.algebra.rows import parallel_rows
from seepage.base.nn import frozen_randomness, generator
from seepage.federation.clients import FedAvg


def network(inputs: int, hidden: int, depth: int, classes: int, *, bias: bool = True, seed: int = 0) -> nn.Sequential:
    widths = [inputs, *[hidden] * depth]
    with frozen_randomness(seed):
        steps: list[nn.Module] = []
        for read, written in itertools.pairwise(widths):
            steps += [nn.Linear(read, written, bias=bias), nn.ReLU()]
        return nn.Sequential(*steps, nn.Linear(hidden, classes, bias=bias))


def table(n: int, inputs: int, classes: int, seed: int = 0) -> Batch:
    draw = generator(seed, "table")
    return Batch(torch.rand((n, inputs), generator=draw), torch.randint(classes, (n,), generator=draw))


def error_of(found: Tensor, truth: Tensor) -> float:
    """Largest distance of a returned example to the nearest true one."""
    return float(torch.cdist(found.flatten(1), truth.flatten(1)).amin(1).max())


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 5), hidden=st.integers(2, 20), seed=st.integers(0, 100))
def test_groups_of_rows_are_the_units_that_one_example_alone_switches_on(n: int, hidden: int, seed: int) -> None:
    draw = generator(seed, "rows")
    on = torch.rand((n, hidden), generator=draw) < 0.4
    slopes = torch.randn((n, hidden), generator=draw, dtype=torch.float64) * on
    examples = torch.rand((n, 12), generator=draw, dtype=torch.float64)
    rows = slopes.T @ examples
    groups = parallel_rows(rows, 1e-6 * rows.norm(dim=1), least=2)
    # By a plain loop: which units has each example to itself? Those with two or more are the groups.
    expected = set()
    for i in range(n):
        own = [j for j in range(hidden) if on[i, j] and sum(bool(on[k, j]) for k in range(n)) == 1]
        if len(own) >= 2:
            expected.add(tuple(own))
    assert {tuple(units.nonzero()[:, 0].tolist()) for _, units, _ in groups} == expected


def test_rows_that_noise_or_rounding_hides_are_in_no_group() -> None:
    rows = torch.tensor([[1.0, 2, 3], [2, 4, 6], [3, 1, 1]], dtype=torch.float64)
    assert parallel_rows(rows, torch.tensor([0, 0.05, 0], dtype=torch.float64), least=2) == []
    # A row stated without error, far below the rounding of the others.
    noise = torch.tensor([1e-7, 1e-7, 1e-7, 0], dtype=torch.float64)
    ((_, units, _),) = parallel_rows(torch.cat([rows, 1e-12 * rows[:1]]), noise, least=2)
    assert units.tolist() == [True, True, False, False]


def own_units(model: nn.Module, batch: Batch) -> list[Tensor]:
    """`[n]` for each ReLU, first to last: how many of its units are on for this example and for no other."""
    found, x = list[Tensor](), batch.inputs
    for module in model.children():
        x = module(x)
        if isinstance(module, nn.ReLU):
            on = x > 0
            found.append((on & (on.sum(0) == 1)).sum(1))
    return found


@pytest.mark.parametrize("bias", [True, False])
def test_the_papers_condition_is_enough(bias: bool) -> None:
    """Two neurons of its own in the last hidden layer, one in each other: every such batch comes back whole."""
    met = 0
    for seed in range(12):
        model, batch = network(20, 96, 2, 5, bias=bias, seed=seed), table(3, 20, 5, seed)
        first, last = own_units(model, batch)
        if (first >= 1).all() and (last >= 2).all():
            met += 1
            found = attack(record(model, batch), LinearEquations())
            assert len(found) == 3
            assert error_of(found.inputs, batch.inputs) < 1e-3
    assert met >= 3


def test_examples_without_a_unit_of_their_own_in_the_first_layer_come_back() -> None:
    model, batch = network(300, 128, 2, 8, seed=3), table(12, 300, 8, 3)
    first, last = own_units(model, batch)
    assert (first >= 1).sum() < 12
    assert (last >= 1).any()
    seen = record(model, batch)
    found, divided = attack(seen, LinearEquations()), attack(seen, LinearLeak())
    assert len(divided) == (first >= 1).sum()
    assert len(found) == 12
    assert found.certified.all()
    assert found.labels is not None
    nearest = torch.cdist(found.inputs, batch.inputs).argmin(1)
    assert sorted(nearest.tolist()) == list(range(12))
    assert torch.equal(found.labels, batch.labels[nearest])
    assert error_of(found.inputs, batch.inputs) < 1e-3


def test_a_wide_network_behind_a_narrow_input_is_solved_by_its_weights() -> None:
    """No layer tells all, but what the second tells the first's weights turn around: 96 units on for 6 inputs."""
    model, batch = network(6, 192, 2, 4, seed=1), table(40, 6, 4, 1)
    found = attack(record(model, batch), LinearEquations())
    direct = attack(record(model, batch), LinearLeak())
    assert found.certified is not None
    assert len(found) > len(direct)
    assert error_of(found.inputs[found.certified], batch.inputs) < 1e-2


@pytest.mark.parametrize("classes", [2, 6])
@pytest.mark.parametrize("n", [24, 48])
def test_nothing_wrong_is_certified_where_no_unit_is_exclusive(classes: int, n: int) -> None:
    for seed in range(4):
        batch = table(n, 40, classes, seed)
        found = attack(record(network(40, 32, 2, classes, seed=seed), batch), LinearEquations())
        assert found.certified is not None
        sure = found.inputs[found.certified]
        assert len(sure) == 0 or error_of(sure, batch.inputs) < 1e-2


def test_noise_leaves_nothing() -> None:
    seen = record(network(20, 48, 2, 5), table(3, 20, 5), defense=GaussianNoise(sigma=1e-3))
    found = attack(seen, LinearEquations())
    assert len(found) == 0
    assert found.status == "exhausted"
    assert "no layer tells all examples" in found.notes[-1]


convolution = nn.Sequential(nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Linear(20, 5)), "has one layer"),
        (nn.Sequential(nn.Linear(20, 8), nn.Sigmoid(), nn.Linear(8, 5)), "no ReLU follows"),
        (
            convolution,
            "is a convolution",
        ),
    ],
)
def test_it_refuses_other_networks_by_name(model: nn.Module, reason: str) -> None:
    with pytest.raises(Inapplicable, match=reason):
        attack(record(model, table(2, 20, 5)), LinearEquations())


def test_it_refuses_local_steps() -> None:
    seen = record(network(20, 16, 1, 5), table(2, 20, 5), client=FedAvg(epochs=2, lr=0.1, batch_size=1))
    with pytest.raises(Inapplicable, match="mixes local steps"):
        attack(seen, LinearEquations())
