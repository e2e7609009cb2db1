"""Averaging over rounds: the noise's own law, what is known of what is left, weights that move, and refusals."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from refusals import refusal

import seepage.federation.data
from seepage import Architecture, FedSGD, SeepageError, attack, build, record, score
from seepage.attacks import Averaged, LinearLeak, averaged
from seepage.attacks.averaged import _average
from seepage.attacks.search.adaptive import known_noise
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.plans import Rounds
from seepage.audit.recipe.resolve import resolve_cases
from seepage.audit.summary import _guarantee
from seepage.base.nn import generator, state_of
from seepage.federation.clients import FedAvg
from seepage.federation.defenses import (
    DPSGD,
    Compose,
    DecayingNoise,
    GaussianNoise,
    LaplaceNoise,
    Quantize,
    UnitNormNoise,
)
from seepage.federation.transcript.designs import WholeBatch
from seepage.federation.transcript.simulated import SimulatedTranscript
from seepage.federation.transcript.vertical import IndexedVictim, ServerStep
from seepage.federation.types import Batch, ClientView, Defense, Knowledge, Round, Transcript
from seepage.measure.privacy.accounting import epsilon
from seepage.measure.privacy.guarantee import guarantee_of

NOISE = GaussianNoise(sigma=0.02, clip=1.0)
FC2 = Architecture("fc2", {"hidden": 64})


def digits(count: int = 1) -> Batch:
    data = seepage.federation.data.load("digits", size=8)
    drawn = data.batch(data.private[:count])
    return Batch(drawn.inputs, drawn.labels, torch.arange(count))


def rounds_of(
    count: int, defense: Defense | None = NOISE, *, seed: int = 0, known: tuple[str, ...] = ("indices",)
) -> Transcript:
    model = build(FC2, (1, 8, 8), 10)
    return record(model, [digits()] * count, defense=defense, known=known, seed=seed)  # type: ignore[arg-type]


def error(transcript: Transcript, use: str, **options: Any) -> float:
    """Root mean square error of the guess of the one digit."""
    found = attack(transcript, use, options=options).inputs
    return float((found - digits().inputs).square().mean().sqrt())


@cache
def one_round() -> tuple[Transcript, Round, ClientView]:
    batch, model = digits(), build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 10)
    bare = record(model, batch, known=["indices"])
    return bare, bare[0], ClientView(model, bare[0].params, batch, FedSGD())


def quick_rounds(count: int, defense: Defense, seed: int) -> Transcript:
    """Rounds of one gradient, computed once, with noise of their own."""
    bare, seen, view = one_round()

    def make(t: int) -> Round:
        return replace(seen, t=t, update=defense(seen.update, view, generator=generator(seed, "defense", t)))

    return SimulatedTranscript(bare.knowledge, make, count)


@pytest.mark.full
def test_the_error_falls_with_the_root_of_the_rounds() -> None:
    """Closed form, so nothing but the noise is between guess and truth: 16 times the rounds, a quarter of the error.

    Little noise: what dividing by a noisy bias gradient adds falls with 1 / T and is of second order. The error has one
    part that all pixels share, so it takes several draws to see the law: 30 know the ratio to some 10 %.
    """
    noise = GaussianNoise(sigma=3e-4, clip=1.0)
    few, many = (sum(error(quick_rounds(t, noise, s), "averaged") ** 2 for s in range(30)) ** 0.5 for t in (2, 32))
    assert few / many == pytest.approx(4.0, rel=0.3)


@pytest.mark.parametrize(
    "defense", [GaussianNoise(sigma=0.1, clip=1.0), LaplaceNoise(scale=0.1), DPSGD(sigma=0.1), UnitNormNoise(sigma=0.1)]
)
def test_the_noise_in_the_average_falls_with_the_root_of_the_rounds(defense: Defense) -> None:
    """Over 5,000 entries the deviation of what is left is known to 1 %."""
    true = record(build(FC2, (1, 8, 8), 10), [digits()] * 2, defense=replace(defense, **without(defense)))
    name = weight_name()
    left = [_average(rounds_of(t, defense))[0].update.tensors[name] - true[0].update.tensors[name] for t in (2, 18)]
    assert float(left[0].std() / left[1].std()) == pytest.approx(3.0, rel=0.05)


def without(defense: Defense) -> dict[str, float]:
    """Options that leave the noise out."""
    return {"scale": 0.0} if isinstance(defense, LaplaceNoise) else {"sigma": 0.0}


def test_noise_that_stops_one_round_does_not_stop_many() -> None:
    """One round is of no use; of 200 the digit is read. What 200 rounds spend is said by the accountant."""
    one, many = rounds_of(1), rounds_of(200)
    assert (score(attack(one, "linear"), digits()).psnr or 0) < 12
    assert (score(attack(many, "averaged"), digits()).psnr or 0) > 20
    spent = [guarantee_of(NOISE, range(t)) for t in (1, 200)]
    assert spent[0] is not None
    assert spent[1].epsilon == epsilon(sigma=0.02, rounds=200) > 100 * spent[0].epsilon  # type: ignore[operator]


def test_nothing_is_gained_where_the_noise_does_not_change() -> None:
    """Rounding is the same in every round, so the mean of many is as far off as one."""
    one, many = (rounds_of(t, Quantize(bits=4)) for t in (1, 9))
    assert error(many, "averaged") == pytest.approx(error(one, "linear"), rel=1e-3)


def test_an_average_of_equal_rounds_is_one_of_them() -> None:
    many = rounds_of(5, None)
    one = _average(many)
    for name, tensor in many[0].update.tensors.items():
        assert torch.allclose(one[0].update.tensors[name], tensor, rtol=1e-6, atol=1e-9)
    assert torch.allclose(attack(many, "averaged").inputs, attack(many, "linear", t=2).inputs, atol=1e-5)


def test_rounds_of_less_noise_weigh_more_where_it_is_known() -> None:
    """By one over the variance: the deviation left is (sum of 1 / sigma_t^2) ** -1/2, checked on the noise itself."""
    fading = DecayingNoise(sigma=0.5, decay=0.5, floor=0.01)
    left = (sum(fading.sigma_at(t) ** -2 for t in range(6))) ** -0.5
    truth = rounds_of(1, None)[0].update.tensors[weight_name()]
    off = {}
    for knows in (True, False):
        known = ("indices", "defense") if knows else ("indices",)
        mean = _average(rounds_of(6, fading, known=known))
        off[knows] = float((mean[0].update.tensors[weight_name()] - truth).std())
        if knows:
            noise = known_noise(mean.knowledge, mean[0])
            assert noise.deviation == pytest.approx(left, rel=1e-6)
    assert off[True] == pytest.approx(left, rel=0.05)
    assert off[False] > 5 * off[True]


def test_noise_that_decays_to_nothing_leaves_its_last_rounds() -> None:
    """Deviations of 1 to 1e-297: the squares of their inverses are beyond any float."""
    fading = DecayingNoise(sigma=1.0, decay=1e-99)
    mean = _average(rounds_of(6, fading, known=("indices", "defense")))
    truth = rounds_of(1, None)[0].update.tensors[weight_name()]
    assert torch.allclose(mean[0].update.tensors[weight_name()], truth, atol=1e-6)


def test_what_is_left_is_a_share_of_the_first_round_that_was_seen() -> None:
    """Rounds 3 to 5 of a recording: their noise is what counts, not that of round 0."""
    fading = DecayingNoise(sigma=0.5, decay=0.5)
    whole = rounds_of(6, fading, known=("indices", "defense"))
    mean = _average(SimulatedTranscript(whole.knowledge, lambda t: whole[t + 3], 3))
    noise = known_noise(mean.knowledge, mean[0])
    assert noise is not None
    left = sum(fading.sigma_at(t) ** -2 for t in (3, 4, 5)) ** -0.5
    assert noise.deviation == pytest.approx(left, rel=1e-6)
    share = f"falls to {left / fading.sigma_at(3):.2g} of the first one's"
    assert share in mean.notes[0]


def weight_name() -> str:
    model = build(FC2, (1, 8, 8), 10)
    return next(name for name, parameter in model.named_parameters() if parameter.ndim == 2)


@pytest.mark.parametrize(
    ("defense", "left"),
    [
        (GaussianNoise(sigma=0.4, clip=2.0), GaussianNoise(sigma=0.1, clip=2.0)),
        (DPSGD(sigma=0.4), DPSGD(sigma=0.1)),
        (UnitNormNoise(sigma=0.4), UnitNormNoise(sigma=0.1)),
        (LaplaceNoise(scale=0.4), LaplaceNoise(scale=0.1)),
        (Compose((DPSGD(sigma=0.4), Quantize(bits=8))), Compose((DPSGD(sigma=0.1), Quantize(bits=8)))),
        (Quantize(bits=8), Quantize(bits=8)),
    ],
    ids=str,
)
def test_the_inner_attack_is_told_what_is_left_of_the_noise(defense: Defense, left: Defense) -> None:
    known = _average(rounds_of(16, defense, known=("indices", "defense"))).knowledge.defense
    assert known is not None
    assert str(rounded(known)) == str(rounded(left))


def rounded(defense: Defense) -> Defense:
    if isinstance(defense, Compose):
        return Compose(tuple(rounded(part) for part in defense.parts))
    changes = {key: round(getattr(defense, key), 9) for key in ("sigma", "scale") if hasattr(defense, key)}
    return replace(defense, **changes)  # type: ignore[type-var]


class Looks(LinearLeak):
    """An inner attack that keeps what it was given."""

    seen: list[Transcript] = []  # noqa: RUF012 - a test's own notebook

    def examine(self, transcript: Transcript) -> Any:
        self.seen.append(transcript)
        return super().examine(transcript)


def moving(count: int, lr: float, defense: Defense | None) -> Transcript:
    model = build(FC2, (1, 8, 8), 10)
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), (1, 8, 8), 10, known=frozenset({"indices"}))
    design, server = WholeBatch(samples=1, batch_size=1), ServerStep(optimizer="sgd", lr=lr)
    return IndexedVictim(knowledge, params, digits(), design, count, buffers, defense, 0, server).transcript()


@pytest.mark.slow
def test_a_slowly_moving_model_gains_almost_as_much_and_the_note_says_how_far_it_went() -> None:
    frozen, slow = error(rounds_of(100), "averaged"), error(moving(100, 1e-3, NOISE), "averaged")
    assert slow == pytest.approx(frozen, rel=0.2)
    assert "at frozen weights" in attack(rounds_of(3), "averaged").notes[0]
    assert "while the weights moved" in attack(moving(3, 1e-3, NOISE), "averaged").notes[0]


def test_the_average_stands_at_the_mean_weights() -> None:
    Looks.seen.clear()
    transcript = moving(3, 0.1, None)
    Averaged(inner=Looks())(transcript, seed=0)
    name = weight_name()
    mean = torch.stack([transcript[t].params[name] for t in range(3)]).mean(0)
    assert torch.allclose(Looks.seen[0][0].params[name], mean, atol=1e-7)


@pytest.mark.slow
def test_local_steps_average_too() -> None:
    model = build(FC2, (1, 8, 8), 10)
    client, noise = FedAvg(lr=0.1, steps=2, batch_size=1), DPSGD(sigma=0.05)
    many = record(model, [digits()] * 200, client=client, defense=noise, known=["indices"])
    one = record(model, digits(), client=client, defense=noise, known=["indices"])
    assert error(many, "averaged") < error(one, "linear") / 4


def test_one_round_is_refused() -> None:
    with refusal("too_few_rounds"):
        attack(rounds_of(1), "averaged")


def test_rounds_that_are_not_told_to_be_the_same_are_refused() -> None:
    with refusal("no_indices", "'whole'"):
        attack(rounds_of(3, known=()), "averaged")


def test_rounds_of_different_examples_are_refused() -> None:
    model, both = build(FC2, (1, 8, 8), 10), digits(2)
    parts = [Batch(both.inputs[i : i + 1], both.labels[i : i + 1], torch.tensor([i])) for i in (0, 1)]
    with refusal("rounds_differ", 0, 1, "cafe"):
        attack(record(model, parts, known=["indices"]), "averaged")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attack": "liner"}, "did you mean 'linear'"),
        ({"attack": "linear", "options": {"florr": 1.0}}, "floor"),
        ({"attack": "cafe"}, "reads many"),
        ({"attack": "linear", "options": {"floor": "x"}}, "floor must be"),
    ],
)
def test_mistakes_in_the_inner_attack_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SeepageError, match=words):
        averaged(**options)


# --- in a recipe ---------------------------------------------------------------------------------------------------

TABLES: dict[str, Any] = {
    "data": {"use": "digits", "size": 8},
    "batch": {"size": 4},
    "rounds": {"design": "whole", "count": 25, "samples": 4},
    "knowledge": {"known": ["indices", "labels"]},
    "defense": [{"use": "gaussian_noise", "sigma": 0.01, "clip": 1.0}],
    "attack": [{"use": "averaged", "attack": "inverting_gradients", "options": {"steps": 3}}],
}


def only(tables: dict[str, Any]) -> Recipe:
    (recipe,) = resolve_cases(tables)
    return recipe


def test_a_recipe_can_say_it() -> None:
    recipe = only(TABLES)
    assert recipe.rounds == Rounds(design="whole", count=25, samples=4)
    attack_made = recipe.make_attack(recipe.attack[0])
    assert isinstance(attack_made, Averaged)


@pytest.mark.parametrize("size", [3, 5])
def test_the_batch_must_be_the_whole(size: int) -> None:
    with pytest.raises(SeepageError, match="4 samples"):
        resolve_cases({**TABLES, "batch": {"size": size}})


def test_all_rounds_are_counted() -> None:
    """The sample that takes part most often is the one that is counted."""
    recipe = only(TABLES)
    assert recipe.rounds.drawn(4, 0).busiest(25) == list(range(25))
    random = Rounds(design="random", count=30, samples=10).drawn(3, 0)
    times = [sum(bool((random.indices(t) == n).any()) for t in range(30)) for n in range(10)]
    assert len(random.busiest(30)) == max(times)


@pytest.mark.parametrize("noise", [{"use": "gaussian_noise", "clip": 1.0}, {"use": "dp_sgd"}])
def test_an_update_is_counted_in_every_round_and_an_example_in_its_own(noise: dict[str, Any]) -> None:
    rounds = {"design": "random", "count": 30, "samples": 12}
    recipe = only({**TABLES, "rounds": rounds, "defense": [{**noise, "sigma": 8.0}], "attack": [{"use": "cafe"}]})
    found, drawn = _guarantee(recipe), Rounds(**rounds).drawn(4, recipe.seed)  # type: ignore[arg-type]
    assert found is not None
    times = [sum(bool((drawn.indices(t) == n).any()) for t in range(30)) for n in range(12)]
    assert found.rounds == {"update": 30, "example": max(times)}[found.unit]
    assert max(times) < 30
