"""What attacks need is declared once, checked before anything else, and said in one sentence."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from refusals import refusal
from torch import nn

from seepage import Attack, Batch, Reconstruction, Transcript, attack, record
from seepage.attacks.base import MATCHING, Needs, Progress
from seepage.federation.clients import FedAvg, FedSGD
from seepage.federation.types import ClientUpdate, Round
from seepage.testing.watch import Changed

NETS = {
    "plain": nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)),
    "no bias": nn.Sequential(nn.Flatten(), nn.Linear(16, 12, bias=False), nn.ReLU(), nn.Linear(12, 3)),
    "convolutions": nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)),
    "batch norm": nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)),
}


def seen(net: str = "plain", n: int = 2, client: ClientUpdate | None = None) -> Transcript:
    inputs = torch.rand((n, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    return record(NETS[net], Batch(inputs, torch.arange(n) % 3), client=client or FedSGD())


def silent(observed: Round) -> Round:
    zeros = {name: torch.zeros_like(tensor) for name, tensor in observed.update.tensors.items()}
    return replace(observed, update=replace(observed.update, tensors=zeros))


@dataclass(frozen=True, kw_only=True)
class Guess(Attack):
    """Says nothing, and so needs nothing but what each case asks for."""

    needs: ClassVar[Needs] = Needs()

    def run(self, transcript: Transcript, *, seed: int, progress: Progress) -> Reconstruction:
        return Reconstruction(torch.full((1, *transcript.knowledge.input_shape), 0.5))


STEPS = FedAvg(lr=0.1, epochs=2, batch_size=1)
REFUSED = {
    "input_layer": (Needs(input_layer=True), seen("convolutions"), "input_not_read", MATCHING),
    "bias": (Needs(input_layer=True, bias="to divide by"), seen("no bias"), "no_bias", "to divide by", MATCHING),
    "linear": (
        Needs(linear_in_gradient="no row is one"),
        seen(client=FedAvg(optimizer="adam", steps=2)),
        "divided_entries",
        "no row is one",
        MATCHING,
    ),
    "gradient": (Needs(gradient="mixes steps"), seen(client=STEPS), "weight_difference", "mixes steps", MATCHING),
    "uncoupled": (Needs(uncoupled="a mixture"), seen("batch norm"), "batch_norm", "a mixture", MATCHING),
    "softmax": (
        Needs(softmax_gradient="it starts there"),
        seen(client=FedSGD(loss="mse")),
        "no_softmax_gradient",
        "it starts there",
        MATCHING,
    ),
    "batch_size": (
        Needs(batch_size="it matters"),
        Changed(seen(), lambda observed: replace(observed, batch_size=None)),
        "no_batch_size",
        "it matters",
        "--batch-size",
    ),
    "single": (Needs(single_example="it solves for one"), seen(), "several_examples", "it solves for one", 2),
    "zero": (Needs(), Changed(seen(), silent), "zero_update"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_declared_is_refused_in_a_sentence(name: str) -> None:
    needs, transcript, refused, *values = REFUSED[name]

    class Needy(Guess):
        pass

    Needy.needs = needs
    for attempt in (Needy().check, lambda transcript: Needy()(transcript, seed=0)):
        with refusal(refused, *values):
            attempt(transcript)
    Guess().check(transcript) if name != "zero" else None


def test_images_are_asked_for_with_what_gives_something_else() -> None:
    class Needy(Guess):
        needs = Needs(images="feature inversion", instead="cocktail_party")

    table = record(nn.Linear(5, 3), Batch(torch.rand(2, 5), torch.tensor([0, 1])))
    with refusal("no_images", "(5,)", "cocktail_party"):
        Needy().check(table)
    Needy().check(seen())


def test_run_is_given_what_examine_found_and_is_not_asked_without_need() -> None:
    read: list[object] = []

    class Examined(Guess):
        def examine(self, transcript: Transcript) -> int:
            read.append(transcript)
            return len(transcript)

        def run(self, count: int, *, seed: int, progress: Progress) -> Reconstruction:
            assert count == 1
            return Reconstruction(torch.zeros(count, 1, 4, 4))

    assert len(attack(seen(), Examined())) == 1
    assert len(read) == 1


@pytest.mark.parametrize("use", ["rgap", "spear"])
def test_closed_forms_of_the_cross_entropy_refuse_other_losses(use: str) -> None:
    with refusal("no_softmax_gradient"):
        attack(seen(n=1, client=FedSGD(loss="mse")), use)


def test_unmixing_needs_no_cross_entropy_and_then_certifies_nothing() -> None:
    assert attack(seen(client=FedSGD(loss="mse")), "cocktail_party").certified is None


def test_a_row_is_divided_and_certified_whatever_the_loss() -> None:
    transcript = seen(n=1, client=FedSGD(loss="mse"))
    found = attack(transcript, "linear")
    assert bool(found.certified.all())
