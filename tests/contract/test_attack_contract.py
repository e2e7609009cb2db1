"""The contract suite finds every fault that an attack may have."""

from dataclasses import dataclass, replace

import pytest
import torch

from seepage import (
    Attack,
    LinearLeak,
    Reconstruction,
    Transcript,
)
from seepage.attacks.base import Progress
from seepage.testing import check_attack


@dataclass(frozen=True, kw_only=True)
class Faulty(Attack):
    """An attack with one fault, to see that the contract finds it."""

    fault: str

    def examine(self, transcript: Transcript) -> Transcript:
        if self.fault == "crashes" and transcript[0].batch_size is None:
            raise ValueError("no such thing")
        LinearLeak().check(transcript)
        return transcript

    def run(self, transcript: Transcript, *, seed: int, progress: Progress) -> Reconstruction:
        model, observed = transcript.knowledge.model, transcript[0]
        found = LinearLeak()(transcript, seed=seed)
        first = next(model.parameters())
        match self.fault:
            case "hook":
                model.register_forward_hook(lambda *_: None)
            case "mode":
                model.eval()
            case "params":
                with torch.no_grad():
                    first.add_(1)
            case "grad":
                first.grad = torch.zeros_like(first)
            case "update":
                next(iter(observed.update.tensors.values())).mul_(2)
            case "seed":
                found = replace(found, inputs=found.inputs + 1e-7 * torch.rand(1))
            case "labels":
                found = replace(found, labels=torch.zeros(len(found)))
            case "shape":
                found = replace(found, inputs=found.inputs.flatten(1))
            case "nan":
                found = replace(found, inputs=found.inputs * torch.nan)
            case "wrong":
                found = replace(found, inputs=found.inputs * 0)
            case "peeks":
                if hasattr(transcript, "make_round"):
                    found = replace(found, inputs=found.inputs + 1e-3)
        return found


def test_the_contract_passes_a_sound_attack() -> None:
    check_attack(Faulty(fault="none"), planted_db=90)


FAULTS = {
    "crashes": "must raise Inapplicable",
    "hook": "the hooks",
    "mode": "the modes",
    "params": "the parameters",
    "grad": "the gradients",
    "update": "changed update/",
    "seed": "same seed",
    "labels": "labels must be int64",
    "shape": "have shape",
    "nan": "NaN",
    "wrong": "planted inputs were reconstructed",
    "peeks": "the recorded transcript",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_contract_finds_a_fault(fault: str) -> None:
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_attack(Faulty(fault=fault), planted_db=90)
