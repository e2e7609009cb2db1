"""What the rank of a low-rank adapter reveals of its layer's inputs: a shadow, a part of their span, or all."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.adapters import LoraLeak
from seepage.attacks.base import ignore
from seepage.attacks.exposure.finding import ClosedForm
from seepage.base.adapters import AdaptedLayer, adapted_layers
from seepage.base.algebra.lowrank import low_rank
from seepage.base.nn import as_inputs, calls_in_pass
from seepage.errors import Inapplicable
from seepage.federation.types import Knowledge, Round, Transcript

Shows = Literal["nothing", "shadow", "part", "whole"]
"""What an adapted layer reveals. `shadow`: B is zero, so only A x, r numbers of each input. `part`: r directions in the
span of more inputs. `whole`: the span of all inputs, and the gradient that the frozen weight would have. `nothing`:
both gradients are zero, or neither was sent."""


def adapter_findings(transcript: Transcript, gradient: Mapping[str, Tensor]) -> list[ClosedForm]:
    """Every layer with a low-rank adapter of which anything was sent, and what they reveal exactly together.

    With a batch of one, also that example, by the attack `lora`, which reads `transcript`; larger batches are
    not attacked here (unmixing is slow).

    Args:
        transcript: Its first round is read.
        gradient: The update read as a gradient; only its direction counts here.
    """
    observed, knowledge = transcript[0], transcript.knowledge
    layers = [one for one in adapted_layers(knowledge.model) if one.down in gradient or one.up in gradient]
    positions = _positions(layers, observed, knowledge) if layers else {}
    found = [_finding(one, observed, gradient, positions.get(one.name)) for one in layers]
    if not layers or observed.batch_size != 1:
        return found
    attack = LoraLeak()
    try:
        certified = attack.run(attack.prepare(transcript), seed=0, progress=ignore).certified
    except Inapplicable:
        return found
    if certified is not None and bool(certified.any()):
        whole = tuple(name for one in layers for name in (one.down, one.up))
        message = "its one example exactly, from the adapters' gradients alone (lora)"
        found.append(ClosedForm(name="adapter-example", message=message, tensors=whole, examples=int(certified.sum())))
    return found


def _finding(layer: AdaptedLayer, observed: Round, gradient: Mapping[str, Tensor], positions: int | None) -> ClosedForm:
    """What one layer reveals; `positions` is the number of vectors that it reads of one example, where known."""
    rank, width = observed.params[layer.down].shape
    n = observed.batch_size
    inputs = None if n is None or positions is None else n * positions
    of = f"{inputs or 'an unknown number of'} input{'' if inputs == 1 else 's'}"
    down, up = gradient.get(layer.down), gradient.get(layer.up)
    shows: Shows = "nothing"
    shown, words = 0, "nothing: its gradients are zero, or were not sent"
    if down is not None and bool(down.any()):
        shown = min(low_rank(down, sources=inputs if inputs is not None and inputs < rank else None).rank, rank)
        shows, words = "part", f"{shown} directions in the span of {of} of {width} numbers"
        if inputs is not None and inputs <= rank and up is not None:
            shows, words = "whole", f"the span of all {of}, so as much as the frozen weight's own gradient would"
    elif up is not None and bool(up.any()):
        shown, shows = min(low_rank(up.T).rank, rank), "shadow"
        words = f"A x alone, {rank} of {width} numbers of each of {of}, as B is zero"
    tensors = (layer.down, layer.up)
    numbers = {"rank": rank, "width": width, "inputs": inputs, "shown": shown, "shows": shows}
    return ClosedForm(
        name="adapter",
        message=words,
        evidence={"layer": layer.name, "tensors": tensors, **numbers},
        limit="" if shows == "whole" else "What lies outside of that is not in the two gradients.",
        tensors=tensors if shows in ("part", "whole") else (),
        lines=(f"{layer.name}: adapter of rank {rank} gives {words}",),
    )


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
