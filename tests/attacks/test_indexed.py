"""What rounds with known indices determine: CAFE's theorems 1 and 2, against the truth."""

import pytest
import torch

from seepage.attacks.cafe import true_representations
from seepage.attacks.exposure import exposure, indexed_rounds
from seepage.attacks.exposure.indexed import rank_of
from seepage.base.nn import frozen_randomness, state_of
from seepage.federation.clients import FedSGD
from seepage.federation.models.vertical import vertical
from seepage.federation.transcript.designs import Listed, RandomDraws, ShuffledEpochs, WholeBatch
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch, Knowledge


def parties(design, rounds, *, seed=0, known=("indices",), server=None, **options):
    """Two parties that share random images."""
    draw = torch.Generator().manual_seed(seed)
    data = Batch(
        torch.rand(design.samples, 1, 8, 8, generator=draw), torch.randint(0, 10, (design.samples,), generator=draw)
    )
    with frozen_randomness(seed):
        model = vertical((1, 8, 8), 10, parties=2, **({"hidden": 32, "channels": 4} | options))
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), (1, 8, 8), 10, known=frozenset(known))
    return IndexedVictim(knowledge, params, data, design, rounds, buffers, server=server or ServerStep())


@pytest.mark.parametrize("seed", range(3))
def test_conditions_are_those_of_the_true_gradients(seed):
    rounds = 24
    victim = parties(RandomDraws(samples=10, batch_size=3, seed=seed), rounds, seed=seed, activation="leaky_relu")
    found = indexed_rounds(victim.transcript())
    assert (found.rounds, found.batch, found.samples) == (rounds, 3, 10)
    table = torch.zeros(rounds, 10, dtype=torch.float64)
    for t in range(rounds):
        table[t, victim.design.indices(t)] = 1
    assert found.rank == torch.linalg.matrix_rank(table)
    truth = true_representations(
        victim.knowledge, victim.params, victim.buffers, victim.data.inputs, victim.data.labels
    )
    for layer, (v, _) in zip(found.layers, truth, strict=True):
        assert layer.rank == torch.linalg.matrix_rank(v.double(), rtol=1e-6)
        assert found.theorem_two(layer) == (found.rank == layer.rank == 10)


def test_too_few_rounds_and_too_narrow_layers_fail_their_condition():
    batches = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7))
    few = indexed_rounds(parties(Listed(samples=9, batch_size=3, batches=batches), 5).transcript())
    assert not few.theorem_one
    assert few.rank == 5
    assert "step I alone determines" in few.lines[0]
    narrow = indexed_rounds(parties(RandomDraws(samples=10, batch_size=3), 24, hidden=8).transcript())
    assert narrow.theorem_one
    assert not any(map(narrow.theorem_two, narrow.layers))
    assert all(layer.rank <= 8 for layer in narrow.layers)
    assert "N < d2 does not hold (10 >= 8)" in narrow.lines[1]


def test_batches_of_all_samples_and_moving_weights_say_nothing():
    whole = indexed_rounds(parties(WholeBatch(samples=3, batch_size=3), 4).transcript())
    assert whole.rank == 1
    assert "K < N does not hold" in whole.lines[0]
    moving = parties(RandomDraws(samples=6, batch_size=2), 12, server=ServerStep(optimizer="sgd", lr=0.1))
    found = indexed_rounds(moving.transcript())
    assert found.moving
    assert not found.theorem_one
    assert len(found.lines) == 1
    assert all(layer.rank is None for layer in found.layers)


def test_exposure_says_it_where_indices_are_told_and_only_there():
    known = exposure(parties(ShuffledEpochs(samples=8, batch_size=2), 20).transcript())
    (finding,) = [one for one in known.findings if one.name == "indexed-rounds"]
    assert finding.tensors[0] == "parties.0.first.weight"
    assert finding.evidence["rank"] == 8
    untold = exposure(parties(ShuffledEpochs(samples=8, batch_size=2), 20, known=()).transcript())
    assert not untold.of("indexed-rounds")


def test_rows_of_zeros_and_of_no_numbers_have_norank_of():
    v = torch.randn(5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v[3] = 1e9 * v[0] - v[1]
    v[4] = 0
    assert rank_of(v) == torch.linalg.matrix_rank(v[:3]) == 3
    assert rank_of(torch.zeros(4, 9)) == 0
    assert rank_of(torch.full((2, 3), torch.inf)) == 0
