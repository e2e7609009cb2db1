"""The layers that CAFE reads: the first fully connected layer of each party, and the network before it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.attacks.base import refuse
from seepage.base.nn import calls_in_pass, captured_calls, forward, in_mode
from seepage.federation.models.vertical import Block, VerticalModel
from seepage.federation.types import Knowledge, Tensors


@dataclass(frozen=True)
class TargetLayer:
    """The first fully connected layer of one party (or of the one model, in horizontal FL).

    Attributes:
        weight: Name of its weight, `[d2, d1]`.
        bias: Name of its bias, `[d2]`.
        block: The party's part of an example, as slices.
        before: Name of the submodule that makes the layer's input from the block, or None: the whole model is run.
        name: Name of the layer itself.
    """

    weight: str
    bias: str
    block: Block
    before: str | None
    name: str

    def features(self, model: nn.Module, params: Tensors, buffers: Tensors, blocks: Tensor) -> Tensor:
        """`[n, d1]` inputs of the layer (h of equation 4) for `[n, *block]` inputs; differentiable in them."""
        with in_mode(model, training=False):
            if self.before is None:
                return _seen_by(model, self.name, params, buffers, blocks)
            part = model.get_submodule(self.before)
            state = _below(params, self.before) | _below(buffers, self.before)
            output: Tensor = functional_call(part, state, (blocks,))
            return output


def find_target_layers(knowledge: Knowledge, params: Mapping[str, Tensor]) -> list[TargetLayer]:
    """The target layers of a model: one per party of a `VerticalModel`, else the first `nn.Linear` of any module.

    Raises:
        Inapplicable: Where there is no fully connected layer, or it has no bias.
    """
    model = knowledge.model
    if isinstance(model, VerticalModel):
        names = [(f"parties.{m}.first", f"parties.{m}.features", block) for m, block in enumerate(model.blocks)]
    else:
        first = next((name for name, module in model.named_modules() if isinstance(module, nn.Linear)), None)
        if first is None:
            raise refuse("no_linear_layer")(
                "the model has no fully connected layer, and CAFE reads the gradients of the first one",
                "use a matching attack such as inverting_gradients",
            )
        names = [(first, "", tuple(slice(None) for _ in knowledge.input_shape))]
    layers = []
    for name, before, block in names:
        prefix = f"{name}." if name else ""
        layer = TargetLayer(f"{prefix}weight", f"{prefix}bias", block, before or None, name)
        if layer.bias not in params or layer.weight not in params:
            raise refuse("no_bias")(
                f"the first fully connected layer {name!r} has no trained bias, whose gradient CAFE's step I reads",
                "use a model with a bias there, or a matching attack",
            )
        layers.append(layer)
    return layers


def block_shape(layer: TargetLayer, input_shape: Sequence[int]) -> tuple[int, ...]:
    """Shape of one party's block of an example."""
    return tuple(len(range(*part.indices(side))) for part, side in zip(layer.block, input_shape, strict=True))


def assemble(
    layers: Sequence[TargetLayer], blocks: Sequence[Tensor], input_shape: Sequence[int], fill: float
) -> Tensor:
    """Whole examples `[n, *shape]` from the parties' blocks; entries that no party holds are `fill`."""
    # Parties hold disjoint slices of an example; a slice that nobody holds stays `fill`.
    whole = blocks[0].new_full((len(blocks[0]), *input_shape), fill)
    for layer, block in zip(layers, blocks, strict=True):
        whole[(slice(None), *layer.block)] = block
    return whole


def _below(tensors: Tensors, prefix: str) -> Tensors:
    return {name[len(prefix) + 1 :]: t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _seen_by(model: nn.Module, layer: str, params: Tensors, buffers: Tensors, inputs: Tensor) -> Tensor:
    calls = calls_in_pass(model, [layer], params, inputs, buffers=buffers or None).get(layer, [])
    if len(calls) != 1 or calls[0].input.shape[0] != len(inputs) or calls[0].input.ndim != 2:
        raise refuse("not_called_once")(
            f"the layer {layer!r} is not called once per example with a flat input",
            "CAFE needs a fully connected layer on flat features; use a matching attack",
        )
    return calls[0].input


def true_representations(
    knowledge: Knowledge, params: Tensors, buffers: Tensors, inputs: Tensor, labels: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The true `(V [n, d2], H [n, d1])` of each layer, for scoring by whoever holds the data.

    `v_n` is the gradient of sample n's own loss with respect to the layer's output (equation 5 without 1/N).
    """
    found = []
    model = knowledge.model
    for layer in find_target_layers(knowledge, params):
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        with captured_calls(model, [layer.name]) as calls, in_mode(model, training=False):
            logits = forward(model, leaves, inputs, buffers=buffers or None)
        (call,) = calls[layer.name]
        loss = knowledge.client.loss_of(logits, labels, reduction="sum")
        # v_n = dL_n/du_n: with the loss summed, row n holds sample n's own gradient. [n, d2]
        (v,) = torch.autograd.grad(loss, call.output)
        found.append((v.detach(), call.input.detach()))
    return found
