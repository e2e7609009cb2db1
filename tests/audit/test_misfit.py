"""Guesses without a truth: whether they give the update that was sent."""

import math

import pytest
import torch
from torch import Tensor, nn

from seepage import Architecture, Batch, FedAvg, FedSGD, GaussianNoise, build, record
from seepage.audit.attempt import Attempt
from seepage.audit.case import Case
from seepage.audit.caveats import misfit
from seepage.audit.row import Row
from seepage.audit.verdict import MISFITS, NEARER, verdict
from seepage.federation.types import ClientUpdate, Reconstruction, Transcript

INPUTS, LABELS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 5])


def recorded(client: ClientUpdate) -> Transcript:
    torch.manual_seed(0)
    return record(build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 10), Batch(INPUTS, LABELS), client=client)


def tried(inputs: Tensor, labels: Tensor | None) -> Attempt:
    return Attempt("ok", "any()", Reconstruction(inputs=inputs, labels=labels), None)


def test_the_private_examples_in_any_order_give_the_update_that_was_sent() -> None:
    order = torch.tensor([2, 0, 1])
    found = misfit([recorded(FedSGD())], [tried(INPUTS[order], LABELS[order])])
    assert found < 1e-6


def test_the_figure_is_the_relative_norm_over_all_that_was_sent() -> None:
    seen = recorded(FedSGD())
    guess = (INPUTS + 0.1).clamp(0, 1)
    own = seen.knowledge.client(seen.knowledge.model, seen[0].params, Batch(guess, LABELS)).tensors
    sent = seen[0].update.tensors
    factor = sum(float((own[name] * sent[name]).sum()) for name in sent)
    factor /= sum(float(own[name].square().sum()) for name in sent)
    off = math.sqrt(sum(float((factor * own[name] - sent[name]).square().sum()) for name in sent))
    size = math.sqrt(sum(float(tensor.square().sum()) for tensor in sent.values()))
    found = misfit([seen], [tried(guess, LABELS)])
    assert found == pytest.approx(off / size, rel=1e-5)
    assert found > 0.05


def test_a_clipped_update_is_given_up_to_its_size() -> None:
    torch.manual_seed(0)
    model, batch = build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 10), Batch(INPUTS, LABELS)
    seen = record(model, batch, defense=GaussianNoise(sigma=0.0, clip=0.01))
    found = misfit([seen], [tried(INPUTS, LABELS)])
    assert found < 1e-5


def test_local_steps_that_use_the_whole_batch_do_not_depend_on_its_order() -> None:
    found = misfit([recorded(FedAvg(lr=0.1, steps=3))], [tried(INPUTS.flip(0), LABELS.flip(0))])
    assert found < 1e-5


def test_without_labels_the_nearest_update_of_any_loss_is_compared() -> None:
    own, other = (misfit([recorded(FedSGD())], [tried(inputs, None)]) for inputs in (INPUTS, 1 - INPUTS))
    assert own < 1e-5 < 0.01 < other


@pytest.mark.parametrize(
    ("client", "inputs", "labels"),
    [
        (FedSGD(), INPUTS[:2], LABELS[:2]),  # fewer than there were
        (FedAvg(lr=0.1, epochs=1, batch_size=1), INPUTS, LABELS),  # who was in which step is not known
        (FedAvg(lr=0.1, steps=1000), INPUTS, LABELS),  # dear
    ],
    ids=["too few", "small steps", "many steps"],
)
def test_where_it_cannot_be_told_nothing_is_said(client: ClientUpdate, inputs: Tensor, labels: Tensor | None) -> None:
    assert misfit([recorded(client)], [tried(inputs, labels)]) is None


@pytest.mark.parametrize(("value", "said"), [(0.213, MISFITS[False]), (0.0004, MISFITS[True]), (None, None)])
def test_a_verdict_without_a_truth_says_whether_guesses_fit(value: float | None, said: str | None) -> None:
    row = Row(case="a", attack="dlg", outcome="not_scored", returned=3, space="input", misfit=value)
    level, text = verdict([row], [Case(name="a", title="net")])
    assert (level, text.partition(".")[0]) == ("unscored", "NOT SCORED")
    assert [words for words in MISFITS.values() if words in text] == ([] if said is None else [said])


def test_a_verdict_speaks_of_the_guesses_that_fit_best() -> None:
    rows = [
        Row(case="a", attack=name, outcome="not_scored", returned=3, space="input", misfit=value)
        for name, value in (("dlg", 0.5), ("gauss_newton", 0.02), ("idlg", None))
    ]
    text = verdict(rows, [Case(name="a", title="net")])[1]
    assert "gauss_newton's guesses: update off by 2 %" in text
    assert NEARER in text


def test_guesses_of_an_autoencoder_s_examples_need_no_labels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 64))
    seen = record(model, Batch(INPUTS, LABELS), client=FedSGD(loss="mse", target="input"))
    found = misfit([seen], [tried(INPUTS, None)])
    assert found < 1e-6
