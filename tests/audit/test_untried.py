"""Which attacks that nobody asked for are ruled out."""

from typing import Any

import pytest
import torch

from seepage import Architecture, Batch, FedSGD, build, record
from seepage.attacks import ATTACKS
from seepage.audit.caveats import refusals
from seepage.base.registry import Spec
from seepage.errors import Inapplicable
from seepage.federation.types import Transcript


@pytest.fixture(scope="module")
def transcript() -> Transcript:
    model = build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 10)
    batch = Batch(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2]))
    return record(model, batch, client=FedSGD())


def test_what_cannot_apply_is_named_with_its_reason_and_what_was_asked_for_is_not(transcript: Transcript) -> None:
    found = refusals(transcript, {"rgap"})
    assert found.keys() >= {"lora", "token_sequences"}
    assert "gradient_matching" not in found
    assert "rgap" not in found  # it refuses two examples, and has a row of its own that says so
    assert "rgap" in refusals(transcript, set())


def test_an_attack_is_ruled_out_as_it_would_refuse(transcript: Transcript) -> None:
    for name, reason in refusals(transcript, {"gauss_newton"}).items():
        with pytest.raises(Inapplicable) as raised:
            ATTACKS.build(Spec(name)).check(transcript)
        assert str(raised.value) == reason


def test_a_fault_in_an_attack_rules_nothing_out(transcript: Transcript, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, transcript: Any) -> None:
        raise RuntimeError("odd sizes")

    cls = type(ATTACKS.build(Spec("lora")))
    monkeypatch.setattr(cls, "examine", fails)
    assert "lora" not in refusals(transcript, set())
