"""What the rank of a low-rank adapter reveals of its layer's inputs: a shadow, a part of their span, or all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.adapters import LoraLeak
from seepage.attacks.base import ignore
from seepage.attacks.exposure.finding import Finding
from seepage.base.adapters import AdaptedLayer, adapted_layers
from seepage.base.algebra.lowrank import low_rank
from seepage.base.nn import as_inputs, calls_in_pass
from seepage.errors import Inapplicable
from seepage.federation.types import Knowledge, Round, Transcript

Shows = Literal["nothing", "shadow", "part", "whole"]


@dataclass(frozen=True)
class AdapterLeak:
    """What one adapted layer reveals.

    Attributes:
        layer: Name of the module.
        tensors: Names of A and B.
        rank: r of the adapter.
        width: Entries of what the layer reads.
        inputs: Vectors that the layer reads of the batch, examples times positions; None where the size is unknown.
        shown: Directions that the gradients show above rounding.
        shows: `shadow`: B is zero, so only A x, r numbers of each input. `part`: r directions in the span of more
            inputs. `whole`: the span of all inputs, and the gradient that the frozen weight would have. `nothing`:
            both gradients are zero, or neither was sent.
    """

    layer: str
    tensors: tuple[str, str]
    rank: int
    width: int
    inputs: int | None
    shown: int
    shows: Shows

    @property
    def words(self) -> str:
        """In one line."""
        of = f"{self.inputs or 'an unknown number of'} input{'' if self.inputs == 1 else 's'}"
        if self.shows == "shadow":
            return f"A x alone, {self.rank} of {self.width} numbers of each of {of}, as B is zero"
        if self.shows == "part":
            return f"{self.shown} directions in the span of {of} of {self.width} numbers"
        if self.shows == "whole":
            return f"the span of all {of}, so as much as the frozen weight's own gradient would"
        return "nothing: its gradients are zero, or were not sent"


def adapter_leaks(observed: Round, knowledge: Knowledge, gradient: Mapping[str, Tensor]) -> list[AdapterLeak]:
    """Every layer with a low-rank adapter of which anything was sent.

    Args:
        observed: The round.
        knowledge: What the server knows.
        gradient: The update read as a gradient; only its direction counts here.
    """
    layers = [one for one in adapted_layers(knowledge.model) if one.down in gradient or one.up in gradient]
    positions = _positions(layers, observed, knowledge) if layers else {}
    return [_leak(one, observed, gradient, positions.get(one.name)) for one in layers]


def _leak(layer: AdaptedLayer, observed: Round, gradient: Mapping[str, Tensor], positions: int | None) -> AdapterLeak:
    rank, width = observed.params[layer.down].shape
    n = observed.batch_size
    inputs = None if n is None or positions is None else n * positions
    down, up = gradient.get(layer.down), gradient.get(layer.up)
    shows: Shows = "nothing"
    shown = 0
    if down is not None and bool(down.any()):
        shown = min(low_rank(down, sources=inputs if inputs is not None and inputs < rank else None).rank, rank)
        shows = "whole" if inputs is not None and inputs <= rank and up is not None else "part"
    elif up is not None and bool(up.any()):
        shown, shows = min(low_rank(up.T).rank, rank), "shadow"
    return AdapterLeak(layer.name, (layer.down, layer.up), rank, width, inputs, shown, shows)


def _positions(layers: list[AdaptedLayer], observed: Round, knowledge: Knowledge) -> dict[str, int]:
    """Vectors that each layer reads of one example."""
    like = next(iter(observed.params.values()))
    probe = torch.zeros((1, *knowledge.input_shape), dtype=like.dtype, device=like.device)
    with torch.no_grad():
        names = [layer.name for layer in layers]
        inputs = as_inputs(knowledge.model, probe)
        calls = calls_in_pass(knowledge.model, names, observed.params, inputs, buffers=observed.buffers)
    return {
        name: sum(call.input.numel() // call.input.shape[-1] for call in calls[name]) for name in names if name in calls
    }


def adapter_findings(leaks: list[AdapterLeak], transcript: Transcript) -> tuple[list[Finding], int]:
    """The adapters as findings, and how many examples the attack `lora` gives back exactly, where that takes a moment.

    Batches of several examples have to be unmixed first, which is for the attack to do.
    """
    found = [
        Finding(
            name="adapter",
            message=one.words,
            evidence={"rank": one.rank, "inputs": one.inputs, "shown": one.shown, "shows": one.shows},
            limit="" if one.shows == "whole" else "What lies outside of that is not in the two gradients.",
            tensors=one.tensors if one.shows in ("part", "whole") else (),
        )
        for one in leaks
        if one.shows != "nothing"
    ]
    if not leaks or transcript[0].batch_size != 1:
        return found, 0
    attack = LoraLeak()
    try:
        certified = attack.run(attack.prepare(transcript), seed=0, progress=ignore).certified
    except Inapplicable:
        return found, 0
    exact = 0 if certified is None else int(certified.sum())
    if exact:
        whole = tuple(name for one in leaks for name in one.tensors)
        message = "its one example exactly, from the adapters' gradients alone (lora)"
        found.append(Finding(name="adapter-example", message=message, tensors=whole))
    return found, exact
