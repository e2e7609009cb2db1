"""Noise and clip that follow a training: rules by hand, what is counted, and federations that stop and go on."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import seepage.federation.data
from seepage import Architecture, Compose, FedAvg, Update, build
from seepage.audit.recipe.plans import Federation
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.simulate.federation import CheckpointFolder, Clients, FederationState, federate
from seepage.audit.simulate.setting import Setting
from seepage.base.nn import generator, state_of
from seepage.errors import SeepageError
from seepage.federation.clients.step import Client
from seepage.federation.defenses import AdaptiveDP, GaussianNoise, Sparsify
from seepage.measure.privacy.accounting import epsilons
from seepage.measure.privacy.guarantee import guarantee_of


def test_sigma_falls_whenever_the_loss_fell_three_times_in_a_row() -> None:
    defense = AdaptiveDP(sigma=1.0, clip=1.0, decay=0.5, patience=3, floor=0.3)
    losses = [5.0, 4.0, 3.0, 3.5, 3.0, 2.0, 1.0, 0.9, 0.8, 0.7, 0.7]
    #               ^    ^    up   ^    ^    0.5  ^    ^    0.3  no
    found = [defense.begin(losses[: t + 1], None).sigma for t in range(len(losses))]
    assert found == [1.0] * 6 + [0.5] * 3 + [0.3] * 2


@pytest.mark.parametrize("seed", range(20))
def test_no_losses_let_sigma_fall_below_what_is_counted(seed: int) -> None:
    defense = AdaptiveDP(sigma=2.0, clip=1.0, decay=0.8, patience=2, floor=0.2)
    rng = np.random.default_rng(seed)
    losses = (np.arange(60, 0, -1.0) if seed == 0 else rng.normal(size=60) - rng.uniform() * np.arange(60)).tolist()
    counted = defense.mechanism(range(60)).sigma
    assert isinstance(counted, tuple)
    real = [defense.begin(losses[: t + 1], None).sigma for t in range(60)]
    assert all(now >= least - 1e-12 for now, least in zip(real, counted, strict=True))
    if seed == 0:  # a loss that falls in every round is the worst case
        assert real == pytest.approx(counted)


def test_the_epsilon_is_that_of_the_least_noise() -> None:
    defense = AdaptiveDP(sigma=4.0, clip=0.5, decay=0.5, patience=3)
    found = guarantee_of(defense, range(6))
    assert found.epsilon == pytest.approx(epsilons([4.0, 4.0, 4.0, 2.0, 2.0, 2.0])[-1])
    assert found.unit == "update"


@pytest.mark.parametrize("length", [0.3, 0.9, 5.0])
def test_the_next_clip_is_the_norm_of_the_last_update_less_its_noise(length: float) -> None:
    """Sigma 0.01 on 2,000 entries: the noise's share of the squared norm is 0.2, known to 3 %."""
    defense, entries = AdaptiveDP(sigma=0.01, clip=1.0, factor=2.0), 2_000
    exact = torch.randn(entries, generator=generator(0, "exact"))
    update = Update({"w": length * exact / exact.norm()})
    clips = []
    for i in range(20):
        sent = defense(update, None, generator=generator(i, "noise"))  # type: ignore[arg-type]
        clips.append(defense.remember(sent) or 0.0)
    assert np.mean(clips) == pytest.approx(2 * min(length, 1.0), rel=0.03)
    assert max(clips) <= 2.0


def test_a_norm_that_the_noise_hides_leaves_the_clip_as_it_is() -> None:
    """Noise alone, 3,000 draws: by chance a norm is believed once in 30,000, so hardly twice."""
    defense, believed = AdaptiveDP(sigma=1.0, clip=0.7), 0
    noise = 0.7 * torch.randn(3_000, 200, generator=generator(0, "noise"))
    for draw in noise:
        believed += defense.remember(Update({"w": draw})) != 0.7
    # Chi-square has a longer tail than the normal law: 200 entries beyond 4 deviations.
    chance = float(stats.chi2.sf(200 + 4 * math.sqrt(400), 200))
    assert believed <= stats.binom.ppf(1 - 1e-6, 3_000, chance)


def test_it_is_gaussian_noise_in_round_0() -> None:
    update = Update({"w": torch.randn(50, generator=generator(0, "u"))})
    ours, plain = AdaptiveDP(sigma=0.3, clip=0.5), GaussianNoise(sigma=0.3, clip=0.5)
    sent = [d(update, None, generator=generator(1, "n")).tensors["w"] for d in (ours, plain)]  # type: ignore[arg-type]
    assert torch.equal(*sent)


def clients(defense: AdaptiveDP | Compose) -> tuple[Clients, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    data = seepage.federation.data.load("digits", size=8)
    model = build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 10)
    parts = data.train[:80].chunk(4)
    test = data.batch(data.private[:50])
    found = Clients(model, FedAvg(lr=0.1, epochs=1, batch_size=10), parts, data.batch, defense, test)
    return found, state_of(model)


def test_a_federation_follows_its_losses_and_each_clients_own_clip() -> None:
    defense = AdaptiveDP(sigma=0.002, clip=0.3, decay=0.5, patience=2)
    whole, start = clients(defense)
    plan = Federation(rounds=5, clients=4, share=0.5)
    stages = [federate(whole, start, replace(plan, rounds=t)) for t in range(6)]
    reached = stages[-1]
    assert len(reached.losses) == 6
    assert reached.losses[-1] < reached.losses[0]
    # Again by hand: the last round's first client, with what was public before.
    before, client = stages[4], whole.chosen(4, plan)[0]
    sigma, falls = 0.002, 0
    for a, b in itertools.pairwise(before.losses):
        falls = falls + 1 if b < a else 0
        if falls == 2:
            sigma, falls = sigma / 2, 0
    assert sigma < 0.002, "the losses of this training fall"
    clip = max(before.memories.get(client, 0.3), 0.003)
    plain = Client(whole.rule, GaussianNoise(sigma=sigma, clip=clip), 0, "client defense")
    mine = plain.send(whole.model, before.params, whole.batch(client, 4, plan), buffers=before.buffers, t=4,
                      clients=2, draw=4 * 4 + client)  # fmt: skip
    found = whole.reply(before, client, plan, 0, 2)
    assert all(torch.equal(found.update.tensors[name], tensor) for name, tensor in mine.tensors.items())
    assert found.memory == pytest.approx(reached.memories[client])


def test_a_federation_that_was_killed_goes_on_with_the_same_noise(tmp_path: Path) -> None:
    whole, start = clients(Compose((AdaptiveDP(sigma=0.002, clip=0.3, patience=1),)))
    plan, folder = Federation(rounds=3, clients=4, share=0.5), CheckpointFolder(tmp_path)
    federate(whole, start, plan, checkpoints=folder)
    resumed = federate(whole, start, replace(plan, rounds=6), checkpoints=folder)
    straight = federate(whole, start, replace(plan, rounds=6))
    assert resumed.losses == straight.losses
    assert resumed.memories == straight.memories
    assert all(torch.equal(resumed.params[name], tensor) for name, tensor in straight.params.items())


@pytest.mark.slow
def test_the_audited_round_has_the_noise_of_its_stage(tmp_path: Path) -> None:
    tables = {
        "data": {"use": "digits", "size": 8},
        "model": {"use": "fc2", "hidden": 16},
        "client": {"use": "fedavg", "lr": 0.1, "batch_size": 10},
        "federation": {"clients": 10, "share": 0.5, "rounds": 8},
        "defense": [{"use": "adaptive_dp", "sigma": 0.001, "clip": 0.3, "decay": 0.5, "patience": 2}],
        "knowledge": {"known": ["defense"]},
        "attack": [{"use": "linear"}],
    }
    setting = Setting.of(resolve_cases(tables)[0]).after_federation(tmp_path)
    found = setting.recipe.make_defense()
    assert isinstance(found, AdaptiveDP)
    assert found.sigma < 0.001
    assert setting.knowledge.defense == found


def test_a_federation_without_examples_of_nobody_is_refused() -> None:
    whole, start = clients(AdaptiveDP(sigma=0.1, clip=1.0))
    alone = replace(whole, test=None)
    with pytest.raises(SeepageError, match="no client holds"):
        federate(alone, start, Federation(rounds=1, clients=4))


def test_other_defenses_are_what_they_were() -> None:
    defense = Compose((Sparsify(keep=0.5), GaussianNoise(sigma=1.0)))
    assert not defense.follows_training
    assert defense.begin([1.0], 2.0) == defense
    assert FederationState(0, {}, {}).losses == ()
