"""The closed-form leak of a fully connected layer that reads the input: weight gradient over bias gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Inapplicable, Progress, ignore
from seepage.functional import InputLayer, forward, in_mode, input_layer
from seepage.types import Knowledge, Reconstruction, Round, Tensors, Transcript


@dataclass(frozen=True, kw_only=True)
class LinearLeak(Attack):
    """Divide each row of the first layer's weight gradient by its bias gradient.

    For `y = W x + b` the chain rule gives `dL/dW = dL/dy x^T` and `dL/db = dL/dy`, so for one example every row with
    a non-zero bias gradient is that example, exactly (Phong et al. 2017; Geiping et al. 2020, proposition 3.1).

    For more examples a row is a mixture of those that activate its neuron. A row is *identifiable* when it comes from
    one example alone, and that is checked without the truth: the model's own backward pass on the divided row must
    give back the bias gradient the client sent. Only such rows are returned; mixtures are not.

    Args:
        floor: Rows whose bias gradient is below this share of the largest are left out; float32 rounding grows as
            they shrink.
        tolerance: Largest relative mismatch of the bias gradient for a row to count as identified.
        same: Two identified rows closer than this (relative Euclidean distance) are the same example.

    Example:
        >>> from seepage.attacks import LinearLeak
        >>> LinearLeak()
        LinearLeak(floor=0.0001, tolerance=0.001, same=0.01)
    """

    floor: float = 1e-4
    tolerance: float = 1e-3
    same: float = 1e-2

    def check(self, transcript: Transcript) -> None:
        self._layer(transcript[0], transcript.knowledge)

    def _layer(self, observed: Round, knowledge: Knowledge) -> tuple[InputLayer, str]:
        layer = input_layer(knowledge.model, observed.params, knowledge.input_shape)
        if layer is None:
            raise Inapplicable(
                "the model's first layer is not a fully connected one that reads the input itself",
                "use a matching attack such as inverting_gradients",
            )
        if layer.bias is None:
            raise Inapplicable(
                "the model's first fully connected layer has no bias to divide by",
                "use a matching attack such as inverting_gradients",
            )
        return layer, layer.bias

    def __call__(self, transcript: Transcript, *, seed: int, progress: Progress = ignore) -> Reconstruction:
        knowledge, observed = transcript.knowledge, transcript[0]
        layer, bias_name = self._layer(observed, knowledge)
        gradient = observed.gradient(knowledge.client)
        weight, bias = gradient[layer.weight].double(), gradient[bias_name].double()  # [m, d], [m]
        if not bias.abs().max() > 0:
            raise Inapplicable(
                "the first layer's bias gradient is zero everywhere (no neuron is active, or the loss is zero)",
                "nothing can be divided; use another round",
            )
        if observed.batch_size == 1:
            return self._single(layer, weight, bias, knowledge)
        return self._several(layer, weight, bias, observed, knowledge, bias_name)

    def _single(self, layer: InputLayer, weight: Tensor, bias: Tensor, knowledge: Knowledge) -> Reconstruction:
        # Least squares over all rows of weight = bias x^T: exact without noise, and the best average with it.
        row = bias @ weight / (bias @ bias)  # [d]
        inputs = layer.to_inputs(row[None], knowledge.input_shape)
        residual = (weight - bias[:, None] * row).norm() / weight.norm()
        note = f"rows agree to {residual:.1e}: the update comes from one example"
        if residual > self.tolerance:
            note = f"rows disagree by {residual:.1e}: the update was changed, or comes from more than one example"
        return Reconstruction(
            inputs=inputs.float(),
            objective=residual.reshape(1).float(),
            cost={"evaluations": 1},
            notes=(note,),
        )

    def _several(
        self,
        layer: InputLayer,
        weight: Tensor,
        bias: Tensor,
        observed: Round,
        knowledge: Knowledge,
        bias_name: str,
    ) -> Reconstruction:
        live = (bias.abs() > self.floor * bias.abs().max()).nonzero().squeeze(1)  # [k] neurons
        rows = weight[live] / bias[live, None]  # [k, d]
        inputs = layer.to_inputs(rows, knowledge.input_shape).float()
        low, high = knowledge.value_range
        slack = 0.01 * (high - low)
        inside = ((inputs >= low - slack) & (inputs <= high + slack)).flatten(1).all(1)
        live, inputs = live[inside], inputs[inside]
        labels, mismatch = self._certify(inputs, live, bias, observed, knowledge, bias_name)
        sure = mismatch <= self.tolerance
        keep = _distinct(inputs[sure], mismatch[sure], self.same)
        n = "?" if observed.batch_size is None else observed.batch_size
        note = (
            f"{int(sure.sum())} of {len(bias)} rows come from one example alone and identify "
            f"{len(keep)} of {n} examples; the other rows are mixtures"
        )
        return Reconstruction(
            inputs=inputs[sure][keep],
            labels=labels[sure][keep],
            objective=mismatch[sure][keep],
            cost={"evaluations": len(inputs) * knowledge.num_classes},
            notes=(note,),
        )

    def _certify(
        self,
        inputs: Tensor,
        neurons: Tensor,
        bias: Tensor,
        observed: Round,
        knowledge: Knowledge,
        bias_name: str,
    ) -> tuple[Tensor, Tensor]:
        """Best label and relative mismatch of the bias gradient, `[k]` each, for rows of the given neurons."""
        labels = torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)
        best = torch.full((len(inputs),), torch.inf, device=inputs.device)
        if len(inputs) == 0 or not knowledge.client.separable(knowledge.model):
            return labels, best
        # With the batch size unknown the rows' scale is unknown too, and nothing can be certified.
        if observed.batch_size is None:
            return labels, best
        sent = bias[neurons].to(inputs) * observed.batch_size  # [k]
        for label in range(knowledge.num_classes):
            own = _bias_gradients(inputs, label, observed, knowledge, bias_name)  # [k, m]
            mine = own.gather(1, neurons[:, None]).squeeze(1)
            mismatch = (mine - sent).abs() / sent.abs()
            labels = torch.where(mismatch < best, label, labels)
            best = torch.minimum(best, mismatch)
        return labels, best


def _bias_gradients(inputs: Tensor, label: int, observed: Round, knowledge: Knowledge, bias_name: str) -> Tensor:
    """`[k, m]`: each input's own gradient of the first layer's bias, for one assumed label."""
    params: Tensors = observed.params
    model = knowledge.model

    def loss(bias: Tensor, example: Tensor) -> Tensor:
        logits = forward(model, {**params, bias_name: bias}, example[None], buffers=observed.buffers)
        return -logits.log_softmax(-1)[0, label]

    with in_mode(model, training=False):
        gradient: Tensor = torch.vmap(torch.func.grad(loss), (None, 0))(params[bias_name], inputs)
    return gradient


def _distinct(inputs: Tensor, mismatch: Tensor, same: float) -> Tensor:
    """Places of rows that are not the same example as a better row, best first."""
    flat = inputs.flatten(1)
    kept: list[int] = []
    for i in mismatch.argsort(stable=True).tolist():
        distances = [float((flat[i] - flat[j]).norm() / flat[j].norm().clamp(min=1e-12)) for j in kept]
        if all(distance > same for distance in distances):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64, device=inputs.device)
