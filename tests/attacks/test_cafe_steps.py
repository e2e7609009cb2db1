"""CAFE's steps I and II: least squares, spans of few rounds, splitting of cohorts, linking of parties."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal

from seepage.attacks.cafe import Cafe, true_representations
from seepage.attacks.cafe.defense_aware import solve_column
from seepage.attacks.cafe.label_inference import infer_labels, logit_gradients
from seepage.attacks.cafe.moving import correct, drifts
from seepage.attacks.cafe.split import split
from seepage.attacks.cafe.steps import cover, open_rounds, step_one, step_two, window
from seepage.attacks.cafe.subspaces import read_gradients, round_gradient
from seepage.attacks.cafe.target_layers import find_target_layers
from seepage.base.nn import frozen_randomness, state_of
from seepage.federation.clients import FedSGD
from seepage.federation.defenses.fake_gradients import plausible
from seepage.federation.models.vertical import vertical
from seepage.federation.transcript.designs import Listed, Partitions, RandomDraws, ShuffledEpochs
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch, Knowledge, Round, Update


def make(design, rounds, *, shape=(1, 8, 8), seed=0, dark=0.3, model=None, **options):
    """Parties with random images, a share of whose pixels is dark."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(design.samples, *shape, generator=draw)
    data = Batch(x * (x > dark), torch.randint(0, 10, (design.samples,), generator=draw))
    with frozen_randomness(seed):
        model = model or vertical(shape, 10, **({"hidden": 24, "channels": 4} | options))
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), shape, 10, known=frozenset({"indices"}))
    return IndexedVictim(knowledge, params, data, design, rounds, buffers)


def truth(victim):
    return true_representations(victim.knowledge, victim.params, victim.buffers, victim.data.inputs, victim.data.labels)


@dataclass(frozen=True)
class Recorded:
    """A plain transcript: whole rounds only, changed by `change`."""

    victim: IndexedVictim
    change: object = None

    @property
    def knowledge(self):
        return self.victim.knowledge

    def __len__(self):
        return self.victim.rounds

    def __getitem__(self, t):
        found = self.victim.transcript()[t]
        return self.change(found) if self.change else found


def test_true_representations_equal_one_gradient_per_sample():
    victim = make(RandomDraws(samples=5, batch_size=2), 1)
    for m, (v, h) in enumerate(truth(victim)):
        for n in range(5):
            alone = Batch(victim.data.inputs[n : n + 1], victim.data.labels[n : n + 1])
            sent = FedSGD()(victim.knowledge.model, victim.params, alone).tensors
            assert torch.allclose(sent[f"parties.{m}.first.bias"], v[n], atol=1e-7)
            assert torch.allclose(sent[f"parties.{m}.first.weight"], torch.outer(v[n], h[n]), atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(st.integers(3, 9), st.integers(0, 10**6))
def test_step_one_equals_numpy_and_knows_what_it_does_not_know(samples, seed):
    draw = torch.Generator().manual_seed(seed)
    batches = [torch.randperm(samples, generator=draw)[: 1 + t % (samples - 1)] for t in range(samples + 1)]
    v = torch.randn(samples, 4, generator=draw, dtype=torch.float64)
    bias = torch.stack([v[b].mean(0) for b in batches])
    guess, known = step_one(batches, bias, samples)
    assert torch.allclose(guess[known], v[known], atol=1e-7)
    table = torch.zeros(len(batches), samples, dtype=torch.float64)
    for t, b in enumerate(batches):
        table[t, b] = 1 / len(b)
    # A sample is determined just where adding its own unit row does not raise the rank.
    rank = torch.linalg.matrix_rank(table)
    for n in range(samples):
        unit = torch.eye(samples, dtype=torch.float64)[n : n + 1]
        assert bool(known[n]) == bool(torch.linalg.matrix_rank(torch.cat([table, unit])) == rank)


def test_step_two_finds_the_rows_that_a_rank_deficit_leaves():
    draw = torch.Generator().manual_seed(0)
    v = torch.randn(4, 6, generator=draw, dtype=torch.float64)
    v[3] = 2 * v[2]
    h = torch.rand(4, 9, generator=draw, dtype=torch.float64)
    guess, known, _ = step_two(v, v.T @ h)
    assert known.tolist() == [True, True, False, False]
    assert torch.allclose(guess[:2], h[:2])
    wide = torch.randn(5, 3, generator=draw, dtype=torch.float64)  # more samples than neurons
    assert not step_two(wide, wide.T @ torch.rand(5, 7, dtype=torch.float64))[1].any()


def test_cover_holds_every_sample():
    batches = [RandomDraws(samples=30, batch_size=7).indices(t) for t in range(40)]
    once, twice = cover(batches, 30), cover(batches, 30, 2)
    counts = torch.bincount(torch.cat([batches[t] for t in twice]), minlength=30)
    assert torch.cat([batches[t] for t in once]).unique().numel() == 30
    assert counts.min() >= 2
    assert len(once) < 12


@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "sigmoid"])
def test_least_squares_recovers_v_and_h_of_unequal_parties(activation):
    design = RandomDraws(samples=12, batch_size=4, seed=1)
    victim = make(design, 20, activation=activation, hidden=[16, 20], parties=2)
    found = Cafe(mode="least_squares").recover(victim.transcript())
    for one, (v, h) in zip(found, truth(victim), strict=True):
        live = v.norm(dim=1) > 0
        assert torch.equal(one.known, live)
        assert (one.v - v).norm() < 1e-5 * v.norm()
        assert (one.h - h)[live].norm() < 1e-4 * h[live].norm()


def test_a_rank_deficit_is_not_a_blurred_picture():
    batches = ((0, 1), (1, 2), (0, 2), (3, 4), (2, 1))  # 3 and 4 only ever together, 5 never
    victim = make(Listed(samples=6, batch_size=2, batches=batches), 5)
    attack = Cafe(mode="least_squares", samples=6, steps=(1,), polish=0)
    found = attack.recover(victim.transcript())
    assert found[0].v_known.tolist() == [True, True, True, False, False, False]
    result = attack(victim.transcript(), seed=0)
    assert set(result.indices.tolist()) <= {0, 1, 2}
    assert any("never drawn" in note for note in result.notes)
    assert any("repeat the batch" in note for note in result.notes)


def test_three_shuffled_epochs_are_enough():
    design = ShuffledEpochs(samples=24, batch_size=4, seed=3)
    victim = make(design, 18, hidden=48, channels=8)
    found = Cafe().recover(victim.transcript())
    infer_labels(victim.knowledge.model, victim.params, find_target_layers(victim.knowledge, victim.params), found)
    for one, (_, h) in zip(found, truth(victim), strict=True):
        alone = one.known & (one.group.bincount()[one.group] == 1)
        assert alone.sum() >= 12
        assert (one.h - h)[alone].norm() < 1e-3 * h[alone].norm()


def test_cells_are_split_and_parties_linked():
    """Two partitions with cohorts of two: each party's pair comes in no order, and the parties are put together."""
    first = tuple(tuple(range(a, a + 4)) for a in (0, 4, 8, 12))
    second = ((0, 1, 4, 5), (2, 3, 6, 7), (8, 9, 12, 13), (10, 11, 14, 15))
    design = Listed(samples=16, batch_size=4, batches=first + second)
    victim = make(design, 8, shape=(1, 16, 16), dark=0.95, hidden=40, channels=16, seed=4)
    found = Cafe(mode="few_rounds").recover(victim.transcript())
    layers = find_target_layers(victim.knowledge, victim.params)
    inferred = infer_labels(victim.knowledge.model, victim.params, layers, found)
    fine = torch.stack([one.known for one in found]).all(0)
    assert fine.sum() >= 6
    guess = torch.cat([one.h for one in found], 1)
    true = torch.cat([h.double() for _, h in truth(victim)], 1)
    for n in fine.nonzero().squeeze(1).tolist():
        mate = n ^ 1
        errors = [float((guess[n] - true[k]).norm() / true[k].norm()) for k in (n, mate)]
        assert min(errors) < 1e-3  # all parties of one row belong to one sample
        assert inferred[0][n] == victim.data.labels[(n, mate)[errors.index(min(errors))]]
        assert inferred[1][n] < 1e-2


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_split_takes_sparse_rows_apart(m, seed):
    draw = torch.Generator().manual_seed(seed)
    h = torch.rand(m, 400, generator=draw, dtype=torch.float64)
    h = h * (torch.rand(m, 400, generator=draw) > 0.4)
    v = torch.randn(m, 30, generator=draw, dtype=torch.float64)
    mix = torch.randn(m, m, generator=draw, dtype=torch.float64) + 3 * torch.eye(m, dtype=torch.float64)
    own_v, own_h, certain = split(v.T @ mix.inverse(), mix @ h, mix.sum(1))
    assert certain
    order = torch.cdist(h, own_h).argmin(1)
    assert order.unique().numel() == m
    assert torch.allclose(own_h[order], h, atol=1e-5)
    assert torch.allclose(own_v[order], v, atol=1e-4)


def test_split_says_no_where_nothing_is_zero():
    draw = torch.Generator().manual_seed(0)
    h = 0.5 + torch.rand(2, 100, generator=draw, dtype=torch.float64)
    v = torch.randn(2, 9, generator=draw, dtype=torch.float64)
    assert not split(v.T, h, torch.ones(2, dtype=torch.float64))[2]


def test_logit_gradients_equal_autograd():
    z = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = logit_gradients(z)
    for y in range(5):
        leaf = z.clone().requires_grad_()
        torch.nn.functional.cross_entropy(leaf, torch.full((3,), y), reduction="sum").backward()
        assert torch.allclose(found[:, y], leaf.grad)


def test_horizontal_models_with_known_indices_work_too():
    with frozen_randomness(0):
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 20)
        )
        model.append(torch.nn.ReLU()).append(torch.nn.Linear(20, 10))
    victim = make(RandomDraws(samples=8, batch_size=3), 14, shape=(1, 4, 4), model=model)
    found = Cafe().recover(victim.transcript())
    ((_, h),) = truth(victim)
    assert (found[0].h - h)[found[0].known].norm() < 1e-4 * h.norm()
    assert not list(model[3]._forward_pre_hooks)


def test_tables_are_recovered_by_steps_one_and_two_alone():
    victim = make(RandomDraws(samples=20, batch_size=5), 26, shape=(11,), parties=3)
    result = Cafe()(victim.transcript(), seed=0)
    true = victim.data.inputs[result.indices]
    assert len(result) >= 18
    assert (result.inputs - true).abs().max() < 1e-3
    assert torch.equal(result.labels, victim.data.labels[result.indices])


def _without_indices(found):
    return Round(found.t, found.params, found.update, found.buffers, found.batch_size)


def _with_indices(indices):
    def change(found):
        return Round(
            found.t, found.params, found.update, found.buffers, found.batch_size, indices=torch.tensor(indices)
        )

    return change


@pytest.mark.parametrize(
    ("change", "name", "numbers"),
    [
        (_without_indices, "no_indices", []),
        (_with_indices([1, 1, 2]), "wrong_indices", []),
        (_with_indices([0, 1, 99]), "wrong_indices", [99]),
        (_with_indices([-1, 1, 2]), "wrong_indices", [-1]),
    ],
)
def test_bad_indices_are_named(change, name, numbers):
    victim = make(RandomDraws(samples=8, batch_size=3), 10)
    with refusal(name, *numbers):
        Cafe(samples=8).check(Recorded(victim, change))


def test_bad_models_and_rounds_are_named():
    design = RandomDraws(samples=8, batch_size=3)
    flat = torch.nn.Flatten
    no_layer = torch.nn.Sequential(torch.nn.Conv2d(1, 10, 4), flat())
    no_bias = torch.nn.Sequential(flat(), torch.nn.Linear(16, 6, bias=False), torch.nn.ReLU(), torch.nn.Linear(6, 10))
    for model, name in ((no_layer, "no_linear_layer"), (no_bias, "no_bias")):
        with refusal(name):
            Cafe().check(make(design, 10, shape=(1, 4, 4), model=model).transcript())
    everything = Listed(samples=9, batch_size=8, batches=(tuple(range(8)),) * 3)
    with refusal("whole_batches", 8):
        Cafe().check(make(everything, 3).transcript())
    with refusal("too_few_rounds", 2, 8):
        Cafe(mode="least_squares").recover(make(design, 2).transcript())
    once = Listed(samples=8, batch_size=4, batches=((0, 1, 2, 3), (4, 5, 6, 7)))
    with refusal("too_few_rounds", 2):
        Cafe(mode="few_rounds").recover(make(once, 2).transcript())
    narrow = make(ShuffledEpochs(samples=24, batch_size=8), 9, hidden=6)
    with refusal("full_span", 6):
        Cafe(mode="few_rounds").recover(narrow.transcript())


def test_weights_that_move_too_far_are_refused():
    victim = make(RandomDraws(samples=8, batch_size=3), 10)

    def moved(found: Round) -> Round:
        params = {name: p * (1 + 0.1 * found.t) for name, p in found.params.items()}
        return Round(found.t, params, Update(found.update.tensors), indices=found.indices)

    with refusal("weights_change"):
        Cafe().check(Recorded(victim, moved))


@pytest.mark.slow
@pytest.mark.parametrize("moving", [False, True])
def test_simulated_and_recorded_rounds_give_the_same_bits(moving):
    victim = training(1e-3) if moving else make(RandomDraws(samples=8, batch_size=3), 12)
    attack = Cafe(steps=(5,), corrections=2)
    simulated, recorded = attack(victim.transcript(), seed=1), attack(Recorded(victim), seed=1)
    assert torch.equal(simulated.inputs, recorded.inputs)
    assert torch.equal(simulated.indices, recorded.indices)


def test_forged_rounds_of_moving_weights_are_refused():
    with refusal("weights_change"):
        Cafe(entries="unforged").check(training(1e-3).transcript())


def test_two_classes_need_all_rounds_together():
    """With two classes V has a small rank inside every batch, and step II is solved over all rounds at once."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 9, generator=draw), torch.randint(0, 2, (40,), generator=draw)
    with frozen_randomness(1):
        model = vertical((9,), 2, parties=3, hidden=32, activation="leaky_relu")
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), (9,), 2, known=frozenset({"indices"}))
    design = RandomDraws(samples=40, batch_size=16)
    victim = IndexedVictim(knowledge, params, Batch(x, y), design, 60, buffers)
    assert all(torch.linalg.matrix_rank(v[:16], rtol=1e-5) < 16 for v, _ in truth(victim))
    result = Cafe()(victim.transcript(), seed=0)
    right = (result.inputs - x[result.indices]).abs().amax(1) < 1e-2
    assert right.sum() >= 36
    assert bool(right[result.objective < 1e-3].all())
    assert torch.equal(result.labels, y[result.indices])


def test_a_silent_sample_is_named_and_not_certain():
    """Black tiles leave no trace in a ReLU network without bias; others whose units are all dead do not either."""
    victim = make(RandomDraws(samples=10, batch_size=3), 16, hidden=20)
    victim.data.inputs[4] = 0
    result = Cafe(steps=(5,))(victim.transcript(), seed=0)
    place = result.indices.tolist().index(4)
    assert torch.equal(result.inputs[place], torch.zeros(1, 8, 8))
    assert result.objective[place] == 1
    assert any("silent" in note for note in result.notes)


def test_a_sample_whose_rounds_all_hold_another_does_not_spoil_either():
    """Samples 0 and 1 share rounds 0 and 1; sample 1 is in round 4 too, so the spans of 0's rounds meet in a plane."""
    batches = ((0, 1, 2, 3), (0, 1, 4, 5), (2, 4, 6, 7), (3, 5, 6, 8), (1, 7, 8, 9), (2, 5, 7, 9), (3, 4, 8, 9))
    victim = make(Listed(samples=10, batch_size=4, batches=batches), 7, shape=(1, 16, 16), hidden=48, channels=8)
    found = Cafe(mode="few_rounds").recover(victim.transcript())
    for one, (v, h) in zip(found, truth(victim), strict=True):
        assert bool(one.known[:2].all())
        assert (one.h - h)[one.known].norm() < 1e-4 * h.norm()
        assert (one.v - v)[one.known].norm() < 1e-3 * v.norm()


def test_shapes_equal_the_singular_value_decomposition():
    draw = torch.Generator().manual_seed(0)
    matrix = torch.rand(40, 5, generator=draw).double() @ torch.rand(5, 90, generator=draw).double()
    shape = round_gradient(matrix / 5, torch.zeros(40), 5)
    left = torch.linalg.svd(matrix)[0][:, :5]
    assert torch.allclose(shape.left @ shape.left.T, left @ left.T, atol=1e-8)
    assert torch.allclose(shape.left @ shape.core, matrix)


def training(lr, *, rounds=12, optimizer="sgd"):
    """Parties that train while three partitions of nine samples are drawn."""
    victim = make(Partitions(samples=16, batch_size=4), rounds, shape=(1, 16, 16), hidden=48, channels=8)
    fields = ("knowledge", "params", "data", "design", "rounds", "buffers")
    return IndexedVictim(**{n: getattr(victim, n) for n in fields}, server=ServerStep(optimizer=optimizer, lr=lr))


def test_known_drifts_are_taken_out_of_h():
    """With the true inputs the drifts are exact, and so h at the first weights soon is too."""
    victim = training(1e-2)
    transcript = victim.transcript()
    seen = open_rounds(transcript, None)
    batches = [victim.design.indices(t) for t in range(12)]
    rounds_seen = read_gradients(seen)
    found = Cafe(mode="few_rounds").recover(transcript)
    blocks = [victim.data.inputs[(slice(None), *layer.block)] for layer in seen.layers]
    moves = drifts(seen, blocks)
    for m, (one, (_, h)) in enumerate(zip(found, truth(victim), strict=True)):
        before = (one.h - h).norm(dim=1) / h.norm(dim=1)
        one.h = correct(one, rounds_seen[m], batches, moves[m])
        once = (one.h - h).norm(dim=1) / h.norm(dim=1)
        one.h = correct(one, rounds_seen[m], batches, moves[m])
        twice = (one.h - h).norm(dim=1) / h.norm(dim=1)
        assert once.median() < 0.3 * before.median()
        assert twice.median() < 0.1 * before.median()


def test_the_window_draws_most_samples_often_enough_and_alone():
    batches = [RandomDraws(samples=40, batch_size=8).indices(t) for t in range(90)]

    def fine(length):
        held = [set(batch.tolist()) for batch in batches[:length]]
        own = [[batch for batch in held if n in batch] for n in range(40)]
        return sum(len(rounds) >= 3 and set.intersection(*rounds) == {n} for n, rounds in enumerate(own))

    length = window(batches, 40)
    assert fine(length - 1) < 38 <= fine(length)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_a_column_of_v_is_found_in_spite_of_forged_rounds(seed):
    from scipy.sparse import csr_array

    draw = torch.Generator().manual_seed(seed)
    table = torch.stack([(torch.randperm(20, generator=draw) < 5).double() / 5 for _ in range(90)])
    v = torch.randn(20, generator=draw).double()
    target = table @ v
    target[torch.randperm(90, generator=draw)[:3]] = -0.7
    found = solve_column(csr_array(table.numpy()), target.numpy())
    assert torch.allclose(torch.from_numpy(found), v, atol=1e-6)


def test_plausible_entries_are_no_larger_than_the_largest_positive_one():
    sent = torch.randn(500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(plausible(sent), sent.abs() <= sent[sent > 0].max())
    assert not plausible(-sent.abs()).any()


def test_rounds_with_nan_are_named():
    victim = make(RandomDraws(samples=8, batch_size=3), 12)
    victim.data.inputs[3] = torch.nan
    with refusal("not_finite"):
        Cafe(samples=8).recover(victim.transcript())


@pytest.mark.parametrize(("body", "classes"), [("logistic", 10), ("logistic", 2), ("flat", 10)])
def test_without_convolutions_steps_one_and_two_give_the_data_themselves(body, classes):
    """Where the first layer reads the data, H is the data; for logistic regression V has one row per class at most."""
    design = RandomDraws(samples=14, batch_size=4, seed=2)
    draw = torch.Generator().manual_seed(3)
    x = torch.rand(14, 9, generator=draw)
    with frozen_randomness(0):
        model = vertical((9,), classes, parties=3, body=body, hidden=48, activation="leaky_relu")
    params, buffers = state_of(model)
    data = Batch(x, torch.randint(0, classes, (14,), generator=draw))
    knowledge = Knowledge(model, FedSGD(), (9,), classes, known=frozenset({"indices"}))
    victim = IndexedVictim(knowledge, params, data, design, 30, buffers)
    result = Cafe()(victim.transcript(), seed=0)
    assert result.indices.tolist() == list(range(14))
    assert (result.inputs - x).abs().max() < 1e-3
    assert bool(result.certified.all())
