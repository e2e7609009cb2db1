"""Exclusive neurons: counted as the plain double loop counts them, and what they mean for the closed form."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from seepage import Architecture, Batch, Inapplicable, LinearLeak, attack, build, record
from seepage.attacks.exposure import exclusivity
from seepage.base.nn import generator, state_of


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 5), hidden=st.integers(1, 12), seed=st.integers(0, 100))
def test_it_counts_as_a_loop_does(n: int, hidden: int, seed: int) -> None:
    model = build(Architecture("mlp3", {"hidden": hidden}), (6,), 3, seed=seed)
    inputs = torch.rand((n, 6), generator=generator(seed, "inputs"))
    report = exclusivity(model, state_of(model)[0], Batch(inputs, torch.zeros(n, dtype=torch.int64)))
    assert [layer.name for layer in report] == ["2", "4"]
    for layer, upto in zip(report, (3, 5), strict=True):
        values = model[:upto](inputs).tolist()
        expected = [0] * n
        for j in range(hidden):
            firing = [i for i in range(n) if values[i][j] > 0]
            if len(firing) == 1:
                expected[firing[0]] += 1
        assert layer.counts.tolist() == expected
        assert layer.neurons == hidden
        assert layer.having(1) == sum(count >= 1 for count in expected)


def test_the_closed_form_returns_those_with_a_neuron_of_their_own_in_the_first_layer() -> None:
    model = build(Architecture("fc2", {"hidden": 64}), (20,), 10)
    batch = Batch(torch.rand((8, 20), generator=generator(3, "inputs")), torch.arange(8))
    first = exclusivity(model, state_of(model)[0], batch)[0]
    found = attack(record(model, batch), LinearLeak())
    near = torch.cdist(found.inputs, batch.inputs).argmin(1)
    assert 0 < first.having(1) < 8
    assert sorted(near.tolist()) == first.counts.nonzero()[:, 0].tolist()


def test_it_refuses_a_network_without_a_relu_behind_a_fully_connected_layer() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2))
    with pytest.raises(Inapplicable, match="followed by a ReLU"):
        exclusivity(model, state_of(model)[0], Batch(torch.rand(2, 4), torch.tensor([0, 1])))
