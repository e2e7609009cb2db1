"""Inner activations of every example of a batch, from the last convolutions' weight gradients."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from seepage.attacks.activations.batch_norm import BatchNorm, common_factor, factors_of, solve_coupled
from seepage.attacks.activations.deconvolution import (
    NEGATIVE,
    REMEDY,
    Deconvolved,
    deconvolve,
    negative_share,
    rectified,
    solve_read,
)
from seepage.attacks.gauss_newton.linearize import LayerUse
from seepage.core.nn import LayerCall, captured_calls, forward, generator, in_mode, last_linear
from seepage.errors import Inapplicable
from seepage.types import Knowledge, Round, Tensors

PROBES = 16
"""Random images that show the slope of each channel."""
UNEXPLAINED = 1e-2
"""Share of a weight gradient that a solution may leave unexplained."""
FAINT = 1e-3
"""A channel whose slope is a smaller share of the median one counts as off for an example."""
ITERATIONS = 30
"""Iterations of the fixed point that tells each example's factor."""
SCALINGS = 2
"""Times that activations behind batch norm are solved: the second time with the scale that the first one told."""
MAX_DISAGREEMENT = 1e-2
"""Relative difference of softmax minus label, as solved and as the network has it, up to which they agree."""


@dataclass(frozen=True)
class InnerActivations:
    """What the last block of a network read and gave for each example.

    Attributes:
        layer: Name of the convolution that reads `activations`: the first one of the last block.
        activations: `[n, C, H, W]` float64.
        head: Name of the last fully connected layer.
        features: `[n, k]` float64, what that layer read.
        labels: `[n]` of each example, ascending.
        probabilities: `[n, classes]` float64.
        misfit: Largest relative difference of `probabilities` minus label from what the gradient says it is.
        leveled: `[C]` whether the level of a channel of `activations` is known, too.
    """

    layer: str
    activations: Float[Tensor, "n C H W"]
    head: str
    features: Float[Tensor, "n k"]
    labels: Int[Tensor, " n"]
    probabilities: Float[Tensor, "n C"]
    misfit: float
    leveled: Bool[Tensor, " C"]


def inner_activations(observed: Round, knowledge: Knowledge) -> InnerActivations:
    """Solve for what the last block of a residual network read, for every example, from two weight gradients.

    1. The last convolution's gradient is taken apart (`deconvolve`): what it read, behind a ReLU, and the gradient D of
       its outputs, up to one factor per example.
    2. Where an output is on, D is the gradient of the loss in a feature times a constant of the channel. The former is
       `A W`, with A the slopes of the loss in the logits: least squares give A up to the factor, and so the label,
       whose entry alone is negative.
    3. D goes back through the last convolution and the ReLU in front of it, whose mask is now known, to the outputs of
       the convolution before, whose weight gradient then gives what that one read (`solve_read`).
    4. The network's tail on these activations has class probabilities, which must be those of A: that tells the
       factors.

    This needs neither labels nor fewer examples than classes, only more channels than the batch has positions.

    With batch norm in train mode step 1 is the same. The factors are then those with which the slopes sum to zero over
    the batch, up to one for all, which the gradient of the first norm's bias tells. Steps 2 and 3 go through the norms
    by the gradients of their weights and biases (`batch_norm`); A has its own size, and the scale of what was read
    follows from the bias of the norm in front. In step 4 the class probabilities are a check alone.

    Args:
        observed: A round whose update is one plain gradient of cross-entropy.
        knowledge: What the attacker knows.

    Raises:
        Inapplicable: Where the last layer does not read a pooled map, the batch has too many positions for the
            channels, or the solution contradicts the network; with batch norm in train mode also where the last block
            is not convolution, norm, ReLU, convolution and norm, behind another norm and a ReLU.

    Example:
        >>> from seepage import Architecture, Batch, FedSGD, build, record
        >>> model = build(Architecture("resnet", {"width": 8}), (3, 16, 16), 10)
        >>> images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> private = Batch(images, torch.tensor([1, 1, 7]))
        >>> seen = record(model, private, client=FedSGD(mode="eval"))
        >>> found = inner_activations(seen[0], seen.knowledge)
        >>> found.layer, tuple(found.activations.shape), found.labels.tolist()
        ('stages.3.conv1', (3, 32, 4, 4), [1, 1, 7])
    """
    block = _Block.of(observed, knowledge)
    gradients = observed.gradient(knowledge.client)
    assert observed.batch_size is not None  # `_Block.of` refused it
    last = deconvolve(block.use(block.last), gradients[f"{block.last}.weight"], observed.batch_size)
    if knowledge.client.batch_coupled(knowledge.model):
        return _of_coupled(block, last, gradients)
    logits = block.logit_slopes(last.slopes, block.last)
    read = block.read_before(last, gradients[f"{block.before}.weight"])
    return _scaled(block, logits, read)


@dataclass(frozen=True, eq=False)
class _Block:
    """The end of a network: a convolution, a ReLU, the last convolution, pooling and the head.

    Attributes:
        observed: The round.
        knowledge: What is known.
        head: Name of the last fully connected layer.
        last: Name of the last convolution.
        before: Name of the convolution whose outputs, normalized and behind a ReLU, the last one reads.
        source: Name of the module whose output `before` reads.
        calls: All calls on random images, with their graph.
    """

    observed: Round
    knowledge: Knowledge
    head: str
    last: str
    before: str
    source: str
    calls: Mapping[str, LayerCall]

    @classmethod
    def of(cls, observed: Round, knowledge: Knowledge) -> "_Block":
        """Read off one pass on random images.

        Raises:
            Inapplicable: Where the network does not end so.
        """
        names = last_linear(knowledge.model, knowledge.num_outputs)
        if names is None:
            raise Inapplicable("the model has no last linear layer", REMEDY)
        if observed.batch_size is None:
            raise Inapplicable("the batch size is unknown", "name it with --batch-size")
        client = knowledge.client
        if not (knowledge.softmax_labels and client.single_gradient):
            raise Inapplicable("the update is not one gradient of cross-entropy", REMEDY)
        head = names[0].removesuffix(".weight")
        calls = _calls(observed, knowledge)
        sent = observed.gradient(client)
        layers = {name: knowledge.model.get_submodule(name) for name in calls if f"{name}.weight" in sent}
        convolutions = [name for name, layer in layers.items() if _is_usable(layer)]
        plain = [name for name in convolutions if _is_plain(layers[name])]
        if not plain or head not in calls or calls[head].input.shape[1:] != (calls[plain[-1]].output.shape[1],):
            raise Inapplicable("the last layer does not read the pooled outputs of a convolution", REMEDY)
        last = plain[-1]
        for before in reversed(convolutions[: convolutions.index(last)]):
            source = _source(calls, calls[before].input)
            if _feeds(calls[before], calls[last].input) and source is not None:
                return cls(observed, knowledge, head, last, before, source, calls)
        raise Inapplicable("the last convolution does not read another one behind a ReLU", REMEDY)

    def use(self, name: str) -> LayerUse:
        """A layer's call as the linear algebra wants it."""
        layer, call = self.knowledge.model.get_submodule(name), self.calls[name]
        assert isinstance(layer, nn.Conv2d)
        geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return LayerUse(self.observed.params[f"{name}.weight"], geometry, call.input.detach(), call.output.detach())

    @cached_property
    def _weight(self) -> Float[Tensor, "C k"]:
        return self.observed.params[f"{self.head}.weight"].double().cpu()

    def logit_slopes(self, slopes: Float[Tensor, "n O h w"], name: str) -> Float[Tensor, "n C"]:
        """A, slopes of the loss in the logits, each row times the example's factor.

        Args:
            slopes: Gradients of a layer's outputs: `D[i, o, p] = top[o] (A_i W)[o]` where output o is on, else 0.
            name: That layer.
        """
        top = _slope_of_channels(self.calls[self.head].input, self.calls[name].output)  # [O]
        rows = []
        for each in slopes.flatten(2):  # [O, positions]
            largest = each.gather(1, each.abs().argmax(1, keepdim=True))[:, 0]
            on = (largest.abs() > FAINT * largest.abs().median()) & (top != 0)
            rows.append(torch.linalg.lstsq(self._weight[:, on].T, (largest / top)[on, None]).solution[:, 0])
        found = torch.stack(rows)
        # Of softmax minus label the label's entry alone is negative, and as long as all others together.
        if bool((found.gather(1, found.abs().argmax(1, keepdim=True)) > 0).any()):
            raise Inapplicable("the gradients of the last convolution's outputs are those of no label", REMEDY)
        return found

    def read_before(self, last: Deconvolved, gradient: Tensor) -> Float[Tensor, "n C H W"]:
        """What the convolution in front of the last one read, over the examples' factors."""
        after, before = self.use(self.last), self.use(self.before)
        constant = _slope_of_channels(self.calls[self.last].input, self.calls[self.before].output)
        # W^T D, through the mask of the ReLU and the constants of the normalization.
        back = conv2d_input(last.read.shape, after.weight.double().cpu(), last.slopes, *after.geometry)
        solved = solve_read(before, back * (last.read > 0) * constant[:, None, None], gradient)
        if solved is None:
            raise Inapplicable("the last block reads more positions than its gradient tells", REMEDY)
        read, off = solved
        if not (off < UNEXPLAINED and negative_share(read) < NEGATIVE):
            raise Inapplicable("the gradients of the last two convolutions contradict each other", REMEDY)
        return rectified(read)

    def tail(self, read: Float[Tensor, "n C H W"]) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n C"]]:
        """Features and class probabilities where the last block reads this."""
        model, like = self.knowledge.model, next(iter(self.observed.params.values()))
        module = model.get_submodule(self.source)
        inputs = torch.zeros(len(read), *self.knowledge.input_shape).to(like)
        replaced = module.register_forward_hook(lambda *_: read.to(like))
        try:
            with torch.no_grad(), captured_calls(model, [self.head]) as calls, in_mode(model, training=False):
                logits = forward(model, self.observed.params, inputs, buffers=self.observed.buffers)
        finally:
            replaced.remove()
        return calls[self.head][0].input.double().cpu(), logits.double().cpu().softmax(1)

    def _normalizes(self, layer: str) -> str | None:
        """Name of the batch norm that reads a layer's outputs."""
        return next((name for name in self._norms if self.calls[name].input is self.calls[layer].output), None)

    @cached_property
    def _norms(self) -> list[str]:
        return [name for name in self.calls if isinstance(self.knowledge.model.get_submodule(name), nn.BatchNorm2d)]

    def norms(self, gradients: Mapping[str, Tensor]) -> tuple[BatchNorm, tuple[str, BatchNorm], BatchNorm]:
        """The batch norms behind the convolution before, behind the last one with its name, and in front of both.

        Raises:
            Inapplicable: Where one of them is missing.
        """
        model, read = self.knowledge.model, self.calls[self.source].output
        front = next((name for name in reversed(self._norms) if _feeds(self.calls[name], read)), None)
        behind = [self._normalizes(self.before), self._normalizes(self.last)]
        names = [name for name in (*behind, front) if name is not None]
        if len(names) < 3:
            raise Inapplicable("the last block is not made of convolutions with batch norms behind them", REMEDY)
        first, final, before = (BatchNorm.of(model, name, self.observed.params, gradients) for name in names)
        return first, (names[1], final), before

    def coupled_tail(
        self, read: Float[Tensor, "n C H W"], labels: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n C"], Float[Tensor, "n C H W"]]:
        """`tail` in train mode, and the gradient of the mean loss in what the last block reads, in float64."""
        model, leaf = self.knowledge.model, read.clone().requires_grad_()
        state = {**dict(model.named_parameters()), **self.observed.params}
        params = {name: weight.detach().double().cpu() for name, weight in state.items()}
        buffers = {name: _double(buffer.cpu()) for name, buffer in self.observed.buffers.items()}
        inputs = torch.zeros(len(read), *self.knowledge.input_shape, dtype=torch.float64)
        replaced = model.get_submodule(self.source).register_forward_hook(lambda *_: leaf)
        try:
            with captured_calls(model, [self.head]) as calls, in_mode(model, training=True):
                logits = forward(model, params, inputs, buffers=buffers)
        finally:
            replaced.remove()
        (slopes,) = torch.autograd.grad(nn.functional.cross_entropy(logits, labels), leaf)
        return calls[self.head][0].input.detach(), logits.detach().softmax(1), slopes


def _scaled(block: _Block, slopes: Float[Tensor, "n C"], read: Float[Tensor, "n C H W"]) -> InnerActivations:
    """Activations at the scale at which the network has the class probabilities that its gradient says."""
    n, labels = len(slopes), slopes.argmin(1)
    length = -slopes.gather(1, labels[:, None])[:, 0]  # [n] of the label's entry
    chance = torch.full_like(length, 1 / slopes.shape[1])
    for _ in range(ITERATIONS):
        # n A_y = P_y - 1 gives the factor t; activations are over it, and give P_y anew.
        factor = (1 - chance) / (n * length)
        features, probabilities = block.tail(read / factor[:, None, None, None])
        chance = probabilities.gather(1, labels[:, None])[:, 0]
    wanted = probabilities - nn.functional.one_hot(labels, slopes.shape[1])
    off = (n * factor[:, None] * slopes - wanted).norm(dim=1) / wanted.norm(dim=1).clamp(min=1e-12)
    if not float(off.max()) < MAX_DISAGREEMENT:
        raise Inapplicable("the solved activations contradict the network's own class probabilities", REMEDY)
    order = labels.argsort(stable=True)
    return InnerActivations(
        block.before,
        (read / factor[:, None, None, None])[order],
        block.head,
        features[order],
        labels[order],
        probabilities[order],
        float(off.max()),
        torch.ones(read.shape[1], dtype=torch.bool),
    )


def _of_coupled(block: _Block, last: Deconvolved, gradients: Mapping[str, Tensor]) -> InnerActivations:
    """Activations, their scale and labels through batch norms in train mode."""
    first, (behind, final), front = block.norms(gradients)
    after, before = block.use(block.last), block.use(block.before)
    each = factors_of(last.slopes)[:, None, None, None]
    read, slopes = last.read / each, last.slopes * each
    # W^T D where the units between the convolutions are on; its sum over the batch is the gradient of beta.
    back = conv2d_input(read.shape, after.weight.double().cpu(), slopes, *after.geometry) * (read > 0)
    size, off = common_factor(back.sum((0, 2, 3)), first.bias_gradient)
    if not (off < UNEXPLAINED and size > 0):
        raise Inapplicable("the gradients of the last block's layers contradict each other", REMEDY)
    read, slopes, back = read / size, slopes * size, back * size
    x, deviation = final.normalized(nn.functional.conv2d(read, after.weight.double().cpu(), None, *after.geometry))
    logits = block.logit_slopes(final.slopes_out(slopes, x, deviation), behind)
    labels = logits.argmin(1)
    wanted = len(labels) * logits  # softmax minus label

    on = (read > 0) & (first.weight != 0)[:, None, None]
    given = torch.where(on, (read - first.bias[:, None, None]) / first.weight[:, None, None], 0.0)
    reading, scale = None, 1.0
    for _ in range(SCALINGS):
        solved = solve_coupled(
            before, first, back, given, on, gradients[f"{block.before}.weight"], scale=scale, before=reading
        )
        if solved is None:
            raise Inapplicable("the last block reads more positions than its gradient tells", REMEDY)
        reading = solved
        if not (solved.off < UNEXPLAINED and negative_share(solved.read) < NEGATIVE):
            raise Inapplicable("the gradients of the last two convolutions contradict each other", REMEDY)
        inner = rectified(solved.read)
        features, probabilities, arriving = block.coupled_tail(inner, labels)
        # Slopes go with one over the scale of what is read, and sum to the gradient of the beta in front.
        factor, off = common_factor((arriving * (inner > 0)).sum((0, 2, 3)), front.bias_gradient)
        if not (off < UNEXPLAINED and factor > 0):
            raise Inapplicable("the solved activations contradict the gradient of the batch norm in front", REMEDY)
        scale = 1 / factor
    assert reading is not None
    misfit = (wanted - probabilities + nn.functional.one_hot(labels, logits.shape[1])).norm(dim=1)
    misfit = misfit / wanted.norm(dim=1).clamp(min=1e-12)
    if not float(misfit.max()) < MAX_DISAGREEMENT:
        raise Inapplicable("the solved activations contradict the network's own class probabilities", REMEDY)
    order = labels.argsort(stable=True)
    return InnerActivations(
        block.before,
        scale * inner[order],
        block.head,
        features[order],
        labels[order],
        probabilities[order],
        float(misfit.max()),
        reading.leveled,
    )


def _calls(observed: Round, knowledge: Knowledge) -> dict[str, LayerCall]:
    """Calls of the layers that are used once, on random images, in the order of the calls, with their graph."""
    model, like = knowledge.model, next(iter(observed.params.values()))
    low, high = knowledge.value_range
    images = torch.rand((PROBES, *knowledge.input_shape), generator=generator(0, "probe images"))
    leaves = [name for name, module in model.named_modules() if not list(module.children())]
    weights: Tensors = {name: weight.detach() for name, weight in observed.params.items()}
    with captured_calls(model, leaves) as calls, in_mode(model, training=False):
        inputs = (low + (high - low) * images).to(like).requires_grad_()
        forward(model, weights, inputs, buffers=observed.buffers)
    return {name: several[0] for name, several in calls.items() if len(several) == 1}


def _double(buffer: Tensor) -> Tensor:
    return buffer.double() if buffer.is_floating_point() else buffer


def _is_usable(layer: nn.Module) -> bool:
    """Whether it is a convolution of one group that reads zeros beyond the border."""
    if not isinstance(layer, nn.Conv2d):
        return False
    return layer.groups == 1 and isinstance(layer.padding, tuple) and layer.padding_mode == "zeros"


def _is_plain(layer: nn.Module) -> bool:
    """Whether a convolution has a kernel of several entries, moved by one position."""
    assert isinstance(layer, nn.Conv2d)
    return layer.stride == (1, 1) and min(layer.kernel_size) > 1


def _source(calls: Mapping[str, LayerCall], read: Tensor) -> str | None:
    """Name of the module that gave this very tensor."""
    return next((name for name, call in calls.items() if call.output is read), None)


def _feeds(call: LayerCall, read: Tensor) -> bool:
    """Whether `read` is this layer's output behind an affine map of each channel and a ReLU."""
    if call.output.shape != read.shape:
        return False
    (slope,) = torch.autograd.grad(read.sum(), call.output, retain_graph=True, allow_unused=True)
    return slope is not None and bool(((slope != 0) == (read > 0)).all())


def _slope_of_channels(after: Tensor, before: Tensor) -> Float[Tensor, " O"]:
    """Derivative of `after` in each channel of `before` where units are on; 0 for a channel that never is."""
    (slope,) = torch.autograd.grad(after.sum(), before, retain_graph=True)
    flat = slope.transpose(0, 1).flatten(1).double().cpu()  # [O, images positions]
    return flat.gather(1, flat.abs().argmax(1, keepdim=True))[:, 0]
