"""Each preset is the composition that its paper states."""

from dataclasses import replace

import pytest
import torch
from refusals import refusal
from victims import CLASSES, FC2, SHAPE, victim

import seepage.federation.data
from seepage import Architecture, Batch, GaussianNoise, GradientMatching, attack, build, record
from seepage.attacks import bayes, dlg, fedleak, fedleak_released, grad_inversion, idlg, inverting_gradients, sapag
from seepage.attacks.search.adaptive import DefenseAware
from seepage.attacks.search.directions import Blended, Langevin, LookAhead, Plain, Sign
from seepage.attacks.search.distances import L1, L2, Cosine, GaussianKernel, PerTensor
from seepage.attacks.search.generator import UntrainedGenerator
from seepage.attacks.search.labels import (
    Auto,
    BiasCount,
    Joint,
    LastLayerMinimum,
    Refined,
    RowSumCount,
    SignOfLastBias,
)
from seepage.attacks.search.layers import ActivationSize, BatchNormStatistics
from seepage.attacks.search.optimizers import LBFGS, Adam
from seepage.attacks.search.parameters import Pixels
from seepage.attacks.search.partial import GaussianLikelihood, TopMagnitude
from seepage.attacks.search.priors import GroupConsistency, SquaredNorm, TotalVariation
from seepage.testing import planted_inputs, recovered_db
from seepage.testing.watch import Changed

PAPERS = {
    "dlg": (
        dlg(),
        GradientMatching(
            distance=L2(), optimizer=LBFGS(lr=1.0, inner=20, history=100), steps=300, labels=Joint(), project=False
        ),
    ),
    "idlg": (
        idlg(),
        GradientMatching(distance=L2(), optimizer=LBFGS(lr=1.0), steps=300, labels=SignOfLastBias()),
    ),
    "inverting_gradients": (
        inverting_gradients(),
        GradientMatching(
            distance=DefenseAware(Cosine()),
            priors=(TotalVariation(1e-4, unit=0.25),),
            optimizer=Adam(lr=0.1),
            steps=24_000,
            schedule="step",
            direction=Sign(),
            labels=Auto(),
            parameters=Pixels(start_from="normal", mean=0.5, std=0.25),
            project=True,
        ),
    ),
    "grad_inversion": (
        grad_inversion(),
        GradientMatching(
            distance=1e-4 * PerTensor(L2(root=True)),
            priors=(
                TotalVariation(1e-4, unit=0.25),
                SquaredNorm(5e-7, unit=0.25),
                GroupConsistency(0.01, unit=0.25),
                BatchNormStatistics(0.1),
            ),
            optimizer=Adam(lr=0.1),
            steps=20_000,
            schedule="warmup_cosine",
            direction=Langevin(0.2),
            labels=LastLayerMinimum(),
            parameters=Pixels(start_from="normal", mean=0.5, std=0.25),
            project=True,
            restarts=4,
        ),
    ),
    "bayes": (
        bayes(),
        GradientMatching(
            distance=GaussianLikelihood(),
            priors=(TotalVariation(1.0, unit=0.25),),
            optimizer=Adam(lr=0.1),
            steps=2_000,
            schedule="cosine",
            parameters=Pixels(mean=0.5, std=0.25),
            project=True,
        ),
    ),
    "fedleak": (
        fedleak(),
        GradientMatching(
            distance=DefenseAware(TopMagnitude(inner=L1("sum") + Cosine(), ratio=0.5, by="global")),
            priors=(TotalVariation(1e-5, reduce="sum"), ActivationSize(1e-4)),
            optimizer=Adam(lr=1e-4),
            steps=10_000,
            direction=Blended(weight=0.7, k=1e-3),
            labels=Refined(RowSumCount()),
            parameters=Pixels(start_from="uniform"),
            project=True,
        ),
    ),
    "fedleak_released": (
        fedleak_released(),
        GradientMatching(
            distance=DefenseAware(PerTensor(TopMagnitude(inner=L1("mean") + Cosine(), ratio=0.5))),
            priors=(TotalVariation(1e-5),),
            optimizer=Adam(lr=1e-2, weight_decay=0.01),
            steps=10_000,
            schedule="cosine",
            direction=LookAhead(weight=0.3, signed=True),
            parameters=UntrainedGenerator(latent=128),
        ),
    ),
    "sapag": (
        sapag(),
        GradientMatching(
            distance=GaussianKernel(),
            optimizer=Adam(lr=0.05, weight_decay=0.01),
            steps=2_000,
            schedule="cosine",
            parameters=Pixels(mean=0.5, std=0.25),
            project=True,
        ),
    ),
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_preset_is_its_papers_composition(name: str) -> None:
    preset, spelled_out = PAPERS[name]
    assert preset == spelled_out


def test_presets_pass_their_options_on() -> None:
    assert inverting_gradients(tv=0.0, signed=False).priors == ()
    assert inverting_gradients(tv=0.0, signed=False).direction == Plain()
    assert inverting_gradients(labels="bias", microbatch=8, restarts=3).labels == BiasCount()
    assert dlg(start="uniform", lr=0.5, line_search=True).optimizer == LBFGS(lr=0.5, line_search=True)
    assert sapag(microbatch=8, restarts=3, labels="joint").microbatch == 8
    assert fedleak(tv=0.0, activation=0.0, weight=0.0).priors == ()
    assert fedleak(weight=0.0).direction == Plain()
    assert fedleak(by="tensor", l1="sum", ratio=0.2, sample=99).distance == DefenseAware(
        TopMagnitude(inner=L1("sum") + Cosine(), ratio=0.2, by="tensor", sample=99)
    )
    assert fedleak_released(tv=0.0, width=7).parameters == UntrainedGenerator(width=7)
    assert grad_inversion(batch_norm=0.0, group=0.0, noise=0.0).priors == (
        TotalVariation(1e-4, unit=0.25),
        SquaredNorm(5e-7, unit=0.25),
    )
    assert bayes(sigma=0.2, tv=0.0).distance == GaussianLikelihood(sigma=0.2)


def test_the_bayes_attack_uses_the_noise_it_is_told_of() -> None:
    """At the truth the objective is then half the number of entries, as a normal log-density's is."""
    model, batch = build(FC2, SHAPE, CLASSES), Batch(planted_inputs(1, SHAPE), torch.tensor([1]))
    transcript = record(model, batch, defense=GaussianNoise(sigma=0.02))
    known = Changed(transcript, lambda seen: seen)
    knowing = replace(transcript.knowledge, defense=GaussianNoise(sigma=0.02))
    entries = sum(tensor.numel() for tensor in transcript[0].params.values())
    objective = bayes(tv=0.0)._objective(known[0], knowing).value_at(batch.inputs, batch.labels)
    assert objective == pytest.approx(entries / 2, rel=0.15)
    assert bayes(tv=0.0).objective_at(known, batch.inputs, batch.labels) < 0.1 * objective  # not known: sigma 0.1


def test_idlg_is_for_one_example() -> None:
    with refusal("several_examples", 2):
        attack(victim(2)[0], "idlg")


@pytest.mark.full
def test_dlg_from_grey_needs_a_tenth_of_the_paper_s_budget_on_its_own_network() -> None:
    """LeNet at 32 pixels, 600 evaluations: a grey start with a line search is there, the paper's start is not."""
    data = seepage.federation.data.load("photos", size=32)
    batch = data.batch(data.private[:1])
    seen = record(build(Architecture("lenet"), (3, 32, 32), len(data.classes), seed=0), batch)
    reached = {}
    for name, it in (("paper", dlg(steps=30)), ("grey", dlg(steps=30, start="grey", line_search=True))):
        found = attack(seen, it, seed=0)
        assert found.cost["evaluations"] <= 30 * 25
        reached[name] = float(recovered_db(found, batch.inputs))
    assert reached["grey"] > 25
    assert reached["paper"] < 17
