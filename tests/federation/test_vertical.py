"""The vertical model, the designs of batches, and rounds made anew from (seed, t)."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.base.nn import frozen_randomness, state_of
from seepage.errors import SeepageError
from seepage.federation.clients import Aggregate, FedSGD
from seepage.federation.models.vertical import vertical
from seepage.federation.transcript.designs import Listed, Partitions, RandomDraws, ShuffledEpochs, check_rounds
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch, Knowledge


def _victim(design, rounds=6, *, server=None, seed=0, keep=64):
    draw = torch.Generator().manual_seed(seed)
    data = Batch(
        torch.rand(design.samples, 1, 8, 8, generator=draw),
        torch.randint(0, 3, (design.samples,), generator=draw),
    )
    with frozen_randomness(seed):
        model = vertical((1, 8, 8), 3, hidden=12, channels=2)
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), (1, 8, 8), 3, known=frozenset({"indices"}))
    return IndexedVictim(knowledge, params, data, design, rounds, buffers, server=server or ServerStep(), keep=keep)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 12, 12), {"parties": 4}),
        ((1, 12, 12), {"parties": 16}),
        ((1, 6, 10), {"parties": 5}),
        ((11,), {"parties": 3}),
    ],
)
def test_parties_share_every_value_once(shape, options):
    model = vertical(shape, 3, hidden=5, channels=2, **options)
    count = torch.zeros(shape)
    for block in model.blocks:
        count[block] += 1
    assert torch.equal(count, torch.ones(shape))
    assert model(torch.rand(2, *shape)).shape == (2, 3)


def test_model_equals_the_sum_written_out():
    """The same numbers from plain tensor code, party by party."""
    with frozen_randomness(3):
        model = vertical((1, 4, 6), 3, parties=2, hidden=[5, 7], channels=2)
    assert [party.first.out_features for party in model.parties] == [5, 7]
    x = torch.rand(4, 1, 4, 6, generator=torch.Generator().manual_seed(0))
    outputs = []
    for m, columns in enumerate((slice(0, 3), slice(3, 6))):
        p = {n.removeprefix(f"parties.{m}."): q for n, q in model.named_parameters() if f"parties.{m}." in n}
        y = x[..., columns]
        for i in (0, 3):
            y = torch.conv2d(y, p[f"features.{i}.weight"], p[f"features.{i}.bias"], padding=2).clamp(min=0)
            y = torch.nn.functional.pad(y, (0, y.shape[3] % 2, 0, y.shape[2] % 2))  # zeros, as ReLU outputs are >= 0
            y = torch.stack([y[..., a::2, b::2] for a in (0, 1) for b in (0, 1)]).amax(0)
        u = y.flatten(1)
        for layer in ("first", "rest.1", "rest.3"):
            u = (u @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]).clamp(min=0)
        outputs.append(u)
    expected = torch.cat(outputs, 1) @ model.head.weight.T + model.head.bias
    assert torch.allclose(model(x), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "options", "says"),
    [
        ((1, 9, 8), {"parties": 4}, "do not tile"),
        ((1, 8, 8), {"hidden": [3, 4]}, "one width or 4"),
        ((3,), {"parties": 4}, "cannot share"),
        ((8, 8), {}, "images"),
        ((1, 8, 8), {"activation": "gelu"}, "activation"),
    ],
)
def test_wrong_shapes_are_refused_in_a_sentence(shape, options, says):
    with pytest.raises(SeepageError, match=says):
        vertical(shape, 3, **options)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.data())
def test_designs_draw_without_repeats(samples, data):
    size = data.draw(st.integers(1, samples - 1))
    designs = [kind(samples=samples, batch_size=size) for kind in (RandomDraws, ShuffledEpochs, Partitions)]
    for design in designs:
        drawn = [design.indices(t) for t in range(design.per_epoch)]
        assert all(len(b.unique()) == len(b) and b.min() >= 0 and b.max() < samples for b in drawn)
        if not isinstance(design, RandomDraws):
            assert torch.cat(drawn).sort().values.tolist() == list(range(samples))
    assert all(len(designs[0].indices(t)) == size for t in range(3))


def test_three_partitions_tell_800_samples_apart_and_two_leave_pairs():
    design = Partitions(samples=800, batch_size=40)
    table = torch.stack([torch.zeros(800).bool().index_fill(0, design.indices(t), True) for t in range(60)]).T
    assert len(table.unique(dim=0)) == 800
    cohorts = table[:, :40].unique(dim=0, return_counts=True)[1]
    assert cohorts.tolist() == [2] * 400
    assert check_rounds(design, 61)
    assert not check_rounds(design, 60)


def test_batches_as_large_as_the_data_are_refused():
    with pytest.raises(SeepageError, match="smaller than the data set"):
        RandomDraws(samples=4, batch_size=4)


@pytest.mark.parametrize("server", [ServerStep(), ServerStep(optimizer="adam", lr=1e-2)])
def test_rounds_are_the_same_in_any_order_and_select_is_part_of_them(server, monkeypatch):
    monkeypatch.setattr("seepage.federation.transcript.vertical.MOST_SNAPSHOTS", 2)
    victim = _victim(RandomDraws(samples=9, batch_size=4, seed=2), 9, server=server, keep=1)
    transcript = victim.transcript()
    first = transcript[5]
    transcript[8]
    assert len(victim._states) <= 3, "two snapshots and the last one asked for"
    transcript[1]
    again = transcript[5]
    assert all(torch.equal(first.update.tensors[n], again.update.tensors[n]) for n in first.params)
    names = ["parties.1.first.weight", "parties.3.first.bias"]
    some = transcript.select(5, names)
    assert sorted(some) == sorted(names)
    assert all(torch.equal(some[n], first.update.tensors[n]) for n in names)
    assert torch.equal(first.indices, transcript.indices(5))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weights_move_as_torchs_optimizers_move_them(optimizer):
    design = ShuffledEpochs(samples=8, batch_size=4)
    victim = _victim(design, 5, server=ServerStep(optimizer=optimizer, lr=1e-2))
    model = victim.knowledge.model
    kind = torch.optim.SGD(model.parameters(), lr=1e-2)
    if optimizer == "adam":
        kind = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-7)
    for t in range(4):
        kind.zero_grad()
        batch = victim.batch(t)
        torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
        kind.step()
    late = victim.params_at(4)
    early = victim.params_at(2)  # going back starts again from what is kept
    for name, p in model.named_parameters():
        moved = (late[name] - victim.params[name]).norm()
        assert (late[name] - p.detach()).norm() <= 2e-2 * moved + 1e-6
    assert any(not torch.equal(early[n], late[n]) for n in early)
    assert all(torch.equal(late[n], victim.params_at(4)[n]) for n in late)


def test_indices_are_only_shown_where_they_are_told():
    victim = _victim(Listed(samples=5, batch_size=2, batches=((0, 1), (2, 3))), 2)
    knowledge = Knowledge(victim.knowledge.model, FedSGD(), (1, 8, 8), 3)
    blind = IndexedVictim(knowledge, victim.params, victim.data, victim.design, 2, victim.buffers).transcript()
    assert blind[0].indices is None
    assert blind.indices(0) is None


def test_a_design_for_other_data_is_refused():
    victim = _victim(RandomDraws(samples=9, batch_size=4))
    with pytest.raises(SeepageError, match="draws from 8 samples"):
        IndexedVictim(victim.knowledge, victim.params, victim.data, RandomDraws(samples=8, batch_size=4), 3)


def test_a_rule_that_sums_clients_is_refused():
    victim = _victim(RandomDraws(samples=6, batch_size=2))
    summed = replace(victim.knowledge, client=Aggregate(rule=FedSGD(), clients=2))
    with pytest.raises(SeepageError, match=r"client\.clients"):
        replace(victim, knowledge=summed)


def test_logistic_regression_over_parties_is_one_linear_map():
    model = vertical((7,), 3, parties=3, body="logistic")
    x = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))
    whole = torch.cat([party.first.weight for party in model.parties], 1)
    assert torch.allclose(model(x), x @ whole.T, atol=1e-6)  # biases start at zero
    assert sum(p.numel() for p in model.parameters()) == 7 * 3 + 3 * 3


def test_flat_parties_read_the_tile_itself_and_batch_norm_stands_before_the_activation():
    flat = vertical((1, 4, 4), 3, hidden=5, body="flat")
    assert [tuple(party.first.weight.shape) for party in flat.parties] == [(5, 4)] * 4
    kinds = [type(part).__name__ for part in vertical((1, 8, 8), 3, channels=2, batch_norm=True).parties[0].features]
    assert kinds[:4] == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    norm = vertical((1, 8, 8), 3, channels=2, batch_norm=True).parties[0].features[1]
    assert torch.equal(norm.weight, torch.ones(2))
    assert torch.equal(norm.running_mean, torch.zeros(2))
    with pytest.raises(SeepageError, match="body must"):
        vertical((1, 4, 4), 3, body="round")
