"""Exact batches through convolutions: features from the head, then Gauss-Newton on what they make linear."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.base import Attack, Checkpoint, Inapplicable, Needs, Progress
from seepage.attacks.decoding import AT_ONCE, Decoder, NaturalSpectrum
from seepage.attacks.gauss_newton.contrast import with_contrast
from seepage.attacks.gauss_newton.equations import FLOOR, ROUNDED_FLOOR, Equations, Known, Structure
from seepage.attacks.gauss_newton.levels import to_levels
from seepage.attacks.gauss_newton.linearize import Held, VictimNetwork
from seepage.attacks.gauss_newton.peeling import Peeled, peel
from seepage.attacks.gauss_newton.preconditioner import BlockCirculant
from seepage.attacks.gauss_newton.search import Search, Stage
from seepage.attacks.head import HeadFeatures, head_features
from seepage.attacks.network.evidence import multiple_words
from seepage.core.checkpoint import history_in, run_steps
from seepage.core.nn import generator, last_linear, norm
from seepage.registry import attacks
from seepage.types import Batch, Knowledge, Reconstruction, Round, Status, Tensors, Transcript

if TYPE_CHECKING:
    from seepage.attacks.activations import InnerActivations

CERTAIN = 1e-1
"""An image is certified where the whole gradient is off by less than this share of what a change of it would make."""
CERTAIN_TOGETHER = 1e-2
"""The same where batch norm ties examples together, of what the update owes to an image's not being flat."""
CHANGE = 0.01
"""That change: a standard deviation, of black to white. It is 40 dB, where a recovered image counts as exact."""
FREE = 0.7
"""Share of a random change of a few neighboring values from which on they count as free to change."""
CERTAIN_CURVED = 1e-4
"""The same where slopes are not known from the features: sigmoids give far images gradients that differ by 1e-4."""
ROUNDED = 1e-4
"""The same below which images rounded to 8 bits are taken to be the client's own, but for a few values."""
TO_ROUNDING = 2e-6
"""The same below which nothing but the rounding of float32 is left, and the search ends."""
NEAR_ROUND = 4e-3
"""Root mean square of a last change, in units of the value range, below which rounding is tried: about one step."""
OFF, ON = 0.5, 4.0
"""A ReLU's feature below, or above, so many times its error is off, or on; between them its side is open."""
CLOSE = 5e-2
"""The same below which a search that came to rest is near the images, and goes on with what is known of them."""
FACTS = (
    "damping", "iterations", "passes", "steps_without_progress", "reopenings", "stage", "rounding_radius",
    "steps_since_rounding",
)  # fmt: skip
"""Numbers of a search that its checkpoint keeps."""


@dataclass(frozen=True)
class Seen:
    """What the attack works on: the round, and what its head gives away.

    Attributes:
        knowledge: What is known.
        observed: The round, its update divided by the head's `share`.
        network: The network.
        structure: Where the known quantities lie in it.
        head: What the head gives away, or what was read further down in its place.
        known: The same as equations.
        held: Activations that are known.
        center: Where the update does not show the batch's contrast (batch norm in train mode), the image from which
            distances are known up to one factor; else None.
    """

    knowledge: Knowledge
    observed: Round
    network: VictimNetwork
    structure: Structure
    head: HeadFeatures
    known: Known
    held: Mapping[int, Held] = field(default_factory=dict)
    center: Tensor | None = None

    def images(self, unit: Tensor) -> Tensor:
        """Images in [0, 1] from where a search stands."""
        unit = unit.detach()
        return unit.clamp(0, 1) if self.center is None else with_contrast(unit, self.center)


@attacks.register(
    "gauss_newton",
    needs="convolutions with a fully connected layer behind them; fewer examples than classes, or residual blocks",
    paper="none; its equations are in the docs",
    cost="seconds to minutes",
    family="gradient matching",
    slow_check=True,
)
@dataclass(frozen=True, kw_only=True)
class GaussNewton(Attack):
    """Reads whole batches out of one gradient of a convolutional network, exactly where the equations suffice.

    1. The head's gradient gives each example's features and class probabilities (`head_features`), and with them the
       gradient of the loss in the features.
    2. Through the last activation, whose mask the features show, this signal reaches the outputs of the last
       convolution. Its weight gradient is then linear in what that layer reads.
    3. Features and this gradient are more equations than a batch has pixels, as long as it is small (see `exposure`):
       nonlinear least squares in the images, started from a linear decoder that is fitted on made-up images, and
       solved by Gauss-Newton with whitened equations (`equations`, `search`).
    4. The gradients of all other layers were not used: where the network's whole gradient at the result is the one
       that was observed, and no part of an image is free to change, the images are certified. Where images rounded to
       8 bits explain the gradient to rounding, these are returned.
    5. An update that was rounded itself, such as the difference of two checkpoints, leaves the search near the images
       alone. Values that are surely those of 8 bits are then set, and the others solved anew (`levels`).

    Where a ReLU's units are averaged in front of the head, as in residual networks, activations are first read layer by
    layer from there down (`peeling`), and the deepest known one takes the place of the features. Then there may also be
    as many examples as classes, or more.

    Batch norm in train mode ties the examples together. What the last block of a wide residual network read is solved
    all the same, through its batch norms, whose own gradients tell what the batch shares (`inner_activations`); images
    follow from these activations alone, all together. The update does not show their contrast: it is taken from their
    being 8-bit pictures, without which nothing is certified.

    The update may be any multiple of the gradient, such as one clipped to a norm: the head tells which.

    No publication has this. Networks: chains of convolutions and residual blocks, with ReLU, leaky ReLU or a smooth
    activation, strides, pooling, batch norm in eval mode (in train mode: residual blocks of two convolutions), ended by
    one fully connected layer. Where slopes depend on the images (other pooling, curved activations) they are renewed in
    each step, which converges less well.

    Args:
        steps: Gauss-Newton steps, at most.
        inner: Iterations of the conjugate gradients in one step, at most.
        layers: Use the weight gradients of so many layers in front of the head, the last one first. Those further to
            the front depend on masks that are known only near the solution.
        rounding: Whether to try 8-bit values, all together and one after the other.

    Example:
        >>> GaussNewton(steps=20).inner
        600
    """

    needs: ClassVar[Needs] = Needs(
        text="convolutions with a fully connected layer behind them; fewer examples than classes, or residual blocks",
        images="inversion through convolutions",
        differentiable=True,
        linear_in_gradient="its features cannot be read off the head",
        softmax_gradient="the features are solved from softmax minus label",
        batch_size="the features of each example are unknowns of their own",
    )

    steps: int = 40
    inner: int = 600
    layers: int = 1
    rounding: bool = True

    @property
    def passes(self) -> int:
        return self.steps * self.inner  # two passes each, forth and back, none of which differentiates twice

    def examine(self, transcript: Transcript) -> Seen:
        knowledge, observed = transcript.knowledge, transcript[0]
        head = last_linear(knowledge.model, knowledge.num_outputs)
        low, high = knowledge.value_range
        network = VictimNetwork(knowledge.model, observed.params, observed.buffers, low, high - low)
        if knowledge.client.batch_coupled(knowledge.model):
            return _coupled(observed, knowledge, replace(network, training=True))
        middle = torch.rand((1, *knowledge.input_shape), generator=generator(0, "probe image"))
        structure = None if head is None else Structure.of(network, head[0], middle, self.layers)
        if head is None or structure is None:
            raise Inapplicable(
                "the model is no chain of convolutions ended by a fully connected layer of one output per class (a "
                "transformer, a mixer or ConvNeXt has fully connected layers at each position)",
                "use patch_embedding for one image of a vision transformer, linear or cocktail_party where the first "
                "layer is fully connected, else gradient_matching",
            )
        try:
            features = head_features(observed, knowledge)
        except Inapplicable as refused:
            # As many examples as classes, or more: a residual network's last block may tell them apart.
            told = _of_last_block(observed, knowledge)
            if told is None:
                raise refused from None
            features = told
        observed = observed.over(features.share)
        if not bool(features.known.any()):
            raise Inapplicable(
                f"the features of no example could be solved from the head: {features.doubt}",
                "look at the update of an earlier round, or at a smaller batch",
            )
        like = next(iter(observed.params.values()))
        known = known_of(features, structure, like)
        if not bool(known.signal.any()):
            raise Inapplicable(
                "no gradient passes from the head to the layers in front: its weights are zero, or no unit is on",
                "look at the update of a later round",
            )
        seen = Seen(knowledge, observed, network, structure, features, known)
        sent = observed.gradient(knowledge.client)
        _ = [sent[name] for name in structure.names]  # refuses a frozen or withheld one
        if structure.activation is None:
            gradients = observed.gradient(knowledge.client)
            peeled = peel(network, head[0], features, gradients, knowledge.input_shape)
            # Pooled features alone leave images open.
            if peeled is None and len(features.labels) >= knowledge.num_classes:
                raise Inapplicable(
                    "there are as many examples as classes, or more, and the last block's activations lead no further",
                    "record a smaller batch",
                )
            return seen if peeled is None else _further_down(seen, peeled, like)
        return seen

    def run(self, seen: Seen, *, seed: int, progress: Progress) -> Reconstruction:
        gradients = seen.observed.gradient(seen.knowledge.client)
        like = next(iter(seen.observed.params.values()))
        wanted = [gradients[name].to(like) for name in seen.structure.names]
        equations = Equations(replace(seen.network, held=seen.held), seen.structure, seen.known, wanted)
        spectrum = NaturalSpectrum(seen.knowledge.input_shape).to(like)
        kept = progress.load()
        history: list[tuple[int, float]] = []
        if kept is None:
            draw = generator(seed, "made-up images")
            at_once = AT_ONCE if seen.center is None else len(seen.head.labels)
            decoder = Decoder(lambda x: _features(seen, x), seen.knowledge.input_shape, draw, at_once)
            guess = decoder(_placed(seen.head.features.to(like), seen.structure))
            search = Search(equations, spectrum, equations.start(guess), self.inner)
        else:
            search, history = _resumed(kept, equations, spectrum, self.inner)
        search.center = seen.center
        error = float("inf")

        def advance(step: int) -> float:
            nonlocal error
            value = search.step()
            if self.rounding and (search.stage or search.last_change < NEAR_ROUND):
                error = self._error(seen, to_levels(seen.images(search.point.x)))
            return value

        def ended() -> bool:
            if error < TO_ROUNDING or not search.ended:
                return error < TO_ROUNDING
            # Of another contrast all values would be others, and far from the images none is sure.
            if not self.rounding or seen.center is not None:
                return True
            near = ROUNDED < self._error(seen, seen.images(search.point.x)) < CLOSE
            return not ((near or search.stage == Stage.ROUNDING) and search.go_on())

        def record(step: int, value: float) -> None:
            history.append((step, value))
            progress.report(step, self.steps, value)
            progress.save(_kept(search, step, history))

        first = 0 if kept is None else int(kept.facts["step"])
        step, interrupted = run_steps(first, self.steps, advance, record, every=1, ended=ended)
        return self._result(seen, search, step, interrupted, history)

    def _update(self, seen: Seen, unit: Tensor, labels: Tensor) -> Tensors:
        """The update that a client with these images would have sent."""
        knowledge, observed = seen.knowledge, seen.observed
        batch = Batch(seen.network.low + seen.network.span * unit, labels.to(unit.device))
        return knowledge.client(knowledge.model, observed.params, batch, buffers=observed.buffers).tensors

    def _error(self, seen: Seen, unit: Tensor) -> float:
        """Relative difference of the update that these images give from the observed one.

        Examples whose features are not known have left no trace in the update, if all is as it seems: they count as 0.
        """
        known, wanted = seen.head.known, seen.observed.update.tensors
        update = self._update(seen, unit[known.to(unit.device)], seen.head.labels[known])
        # A multiple that was solved for has an error of its own: the one that explains most stands in for it.
        clipped = seen.head.share != 1
        part = _inner(update, wanted) / _inner(update, update) if clipped else float(known.double().mean())
        return float(norm({name: part * update[name] - wanted[name] for name in wanted}) / norm(wanted))

    def _certified(self, seen: Seen, search: Search, unit: Tensor, error: float) -> Tensor:
        """`[n]` whether the observed update vouches for each image.

        The layers in front of the matched one were not fitted to, so that the whole update comes out right vouches for
        the images that it depends on. What a small change of an image adds to it must stand out from what is left
        unexplained: one whose loss is near 0 could be any image, and so could one that hardly reaches the weights. No
        part of an image may be free to change. Behind a curved activation, far images give nearly the same update.
        """
        probe = torch.randn(unit.shape, generator=generator(0, "change")).to(unit)
        if seen.center is not None:
            certain = self._certified_together(seen, unit, error)
        else:
            limit = CERTAIN if seen.structure.activation is not None else CERTAIN_CURVED
            off = error * float(norm(seen.observed.update.tensors))
            own = []
            changed = (unit + CHANGE * probe).split(1)
            for one, other, label in zip(unit.split(1), changed, seen.head.labels.split(1), strict=True):
                # The update is the mean of what the examples would send alone.
                first, second = self._update(seen, one, label), self._update(seen, other, label)
                own.append(float(norm({name: second[name] - first[name] for name in first})) / len(unit))
            certain = (seen.head.known & (off < limit * torch.tensor(own))).to(unit.device)
        if not bool(certain.any()):
            return certain  # what is free need not be looked for
        return certain & (search.undetermined(probe) < FREE).to(unit.device)

    def _certified_together(self, seen: Seen, unit: Tensor, error: float) -> Tensor:
        """The same where batch norm ties the examples together: what the update owes to an image is how it changes with
        that image a flat one. Of another contrast the update would be the same, so only 8-bit values are vouched for.
        """
        if not (error < ROUNDED and bool((unit == to_levels(unit)).all())):
            return torch.zeros(len(unit), dtype=torch.bool, device=unit.device)
        whole = self._update(seen, unit, seen.head.labels)
        own = []
        for i in range(len(unit)):
            without = unit.clone()
            without[i] = unit[i].mean((1, 2), keepdim=True)
            changed = self._update(seen, without, seen.head.labels)
            own.append(float(norm({name: whole[name] - changed[name] for name in whole})))
        off = error * float(norm(seen.observed.update.tensors))
        return torch.tensor([off < CERTAIN_TOGETHER * share for share in own], device=unit.device)

    def _result(
        self,
        seen: Seen,
        search: Search,
        step: int,
        interrupted: bool,
        history: list[tuple[int, float]],
    ) -> Reconstruction:
        unit = seen.images(search.point.x)
        error, rounded = self._error(seen, unit), to_levels(unit)
        error_rounded = self._error(seen, rounded) if self.rounding else float("inf")
        found = error_rounded < (ROUNDED if search.stage == Stage.ROUNDING else min(error, ROUNDED))
        if found:
            unit, error = rounded, error_rounded
        elif search.before:
            # Set values that do not explain the update are wrong somewhere, and spoil the others.
            several = [seen.images(x) for x in search.before] + [unit] * (search.stage < 2)
            error, unit = min(((self._error(seen, one), one) for one in several), key=lambda pair: pair[0])
        rows = search.point.residuals[0].flatten(1).norm(dim=1)
        status: Status = "interrupted" if interrupted else "ok" if found or search.ended else "exhausted"
        notes = [
            f"the update at these images differs from the observed one by {error:.1e} of its size",
            f"{search.equations.count:,} equations for {unit.numel():,} pixel values",
        ]
        if found:
            notes.append("rounded to 8 bits, the images explain the update to rounding")
        elif seen.center is not None:
            notes.append("the update does not show the contrast of the batch; it was set so as to fill the value range")
        if seen.head.share != 1:
            notes.append(multiple_words(seen.head.share))
        if seen.head.doubt is not None:
            notes.append(f"features: {seen.head.doubt}")
        return Reconstruction(
            inputs=seen.network.low + seen.network.span * unit,
            labels=seen.head.labels.to(unit.device),
            objective=rows,
            certified=self._certified(seen, search, unit, error),
            status=status,
            history=tuple(history),
            cost={"steps": step, "evaluations": search.passes},
            notes=tuple(notes),
        )


def _coupled(observed: Round, knowledge: Knowledge, network: VictimNetwork) -> Seen:
    """What the last block read, where batch norm in train mode ties the examples together.

    Raises:
        Inapplicable: Where that cannot be solved for.
    """
    # Imported here: that package reads layers as this one does.
    from seepage.attacks.activations import inner_activations

    try:
        found = inner_activations(observed, knowledge)
    except Inapplicable as refused:
        raise Inapplicable(
            f"batch norm in train mode makes each example's features depend on the whole batch, and {refused.reason}",
            refused.remedy,
        ) from None
    like = next(iter(observed.params.values()))
    # Of black images all activations may be zero, and so alike.
    two = torch.rand((2, *knowledge.input_shape), generator=generator(0, "probe image")).to(like)
    observed = observed.over(found.share)
    structure = Structure.reading(network, f"{found.layer}.weight", two)
    known = Known.of_reading(found.activations.to(like), found.offset_known)
    head = replace(_as_head(found, observed, knowledge), features=found.activations.flatten(1))
    return Seen(knowledge, observed, network, structure, head, known, center=network.zero(two))


def _of_last_block(observed: Round, knowledge: Knowledge) -> HeadFeatures | None:
    """What the head's gradient would say if it told examples apart, from the last block of a residual network."""
    # Imported here: that package reads layers as this one does.
    from seepage.attacks.activations import inner_activations

    try:
        return _as_head(inner_activations(observed, knowledge), observed, knowledge)
    except Inapplicable:
        return None


def _as_head(found: "InnerActivations", observed: Round, knowledge: Knowledge) -> HeadFeatures:
    """What the last block gave, in the form of what the head's gradient says."""
    head = last_linear(knowledge.model, knowledge.num_outputs)
    assert head is not None  # `inner_activations` refused it
    n, weight = len(found.labels), observed.params[head[0]].double().cpu()
    slopes = (found.probabilities - F.one_hot(found.labels, knowledge.num_classes)) / n
    size = found.features.square().mean(1).sqrt()
    return HeadFeatures(
        features=found.features,
        labels=found.labels,
        probabilities=found.probabilities,
        signal=slopes @ weight,
        noise=found.misfit * size,
        misfit=found.misfit,
        spread=0.0,
        rounding=found.misfit,
        known=torch.ones(n, dtype=torch.bool),
        doubt=None,
        share=found.share,
    )


def _further_down(seen: Seen, peeled: Peeled, like: Tensor) -> Seen:
    """The same with a deeper activation in the place of the head's features."""
    with torch.no_grad():
        shown = seen.network.run(torch.zeros((1, *seen.knowledge.input_shape)))
    names = seen.network.names(shown)
    read = shown.activations[peeled.place].input
    structure = replace(
        seen.structure,
        activation=peeled.place,
        slope=0.0,
        direct=peeled.direct,
        fixed=True,
        matched=peeled.matched,
        names=tuple(names[place] for place in peeled.matched),
        shape=tuple(read.shape[1:]),
    )
    features = peeled.value.flatten(1).double().cpu()
    signal = peeled.signal.flatten(1).double().cpu()
    head = replace(seen.head, features=features, signal=signal, noise=peeled.noise)
    held = {place: Held(one.on.to(read.device)) for place, one in peeled.held.items()}
    return replace(seen, structure=structure, head=head, known=known_of(head, structure, like), held=held)


def known_of(head: HeadFeatures, structure: Structure, like: Tensor) -> Known:
    """What the head's features say about the quantity that the structure names.

    Behind a ReLU, a positive feature is what the ReLU read. Behind a leaky ReLU of slope a, so is a negative one over
    a. Otherwise the features themselves are what is known, and their slopes follow from the images.

    All of it has the type and the device of `like`.
    """
    features = head.features.unflatten(1, structure.shape)
    signal = head.signal.unflatten(1, structure.shape)
    example = (-1, *(1,) * len(structure.shape))
    weight = head.known.double().view(example)
    on = torch.ones_like(features, dtype=torch.bool)
    open_ = near = torch.zeros_like(on)
    slope = structure.slope
    if structure.activation is not None:
        # An error of a feature is at least what its negative values show, which a ReLU has none of.
        error = 2 * head.noise
        if slope == 0:
            error = torch.maximum(error, -head.features.amin(1))
        error = error.nan_to_num(posinf=float(features.abs().max())).view(example)
        size = features if slope == 0 else features.abs()
        on = size > ON * error
        # Where the matched layer's units are not the known ones, nothing can stand for the open ones.
        open_ = (size > OFF * error) & ~on if structure.direct else open_
        near = ~on & (slope == 0) if structure.direct else near
        on = on if structure.direct else size > error
        negative = features < 0
        signal = torch.where(negative, slope * signal, signal)
        features = torch.where(negative, features / slope if slope else torch.zeros_like(features), features)
        signal = torch.where(on, signal, torch.zeros_like(signal))
    on, open_, near = on.to(like.device), open_.to(like.device), near.to(like.device)
    return Known(features.to(like), on, open_, near, signal.to(like), weight.to(like), one_sided=slope == 0)


def _features(seen: Seen, unit: Tensor) -> Tensor:
    """`[n, *shape]` features of images, behind the last activation, padded to `[n, c, h, w]`."""
    return _placed(seen.structure.output(seen.network.run(unit)), seen.structure)


def _placed(features: Tensor, structure: Structure) -> Tensor:
    """Flat features with their positions: `[n, c, h, w]`, `[n, c, 1, 1]` where they have none."""
    shape = structure.shape if len(structure.shape) == 3 else (*structure.shape, 1, 1)
    return features.view(len(features), *shape)


def _inner(one: Tensors, other: Tensors) -> float:
    """Inner product of the tensors that `other` has."""
    return sum(float((one[name].double() * other[name].double()).sum()) for name in other)


def _kept(search: Search, step: int, history: list[tuple[int, float]]) -> Checkpoint:
    """All that the next step depends on."""
    assert search.preconditioner is not None
    open_ = search.equations.known.open
    tensors = {"images": search.point.x.detach(), "free": search.point.free, "moved": search.moved, "open": open_}
    tensors |= {"fixed": search.fixed} | {f"before/{i}": images for i, images in enumerate(search.before)}
    tensors |= {f"preconditioner/{name}": value for name, value in search.preconditioner.state().items()}
    facts = {name: getattr(search, name) for name in FACTS}
    return Checkpoint(tensors, {"step": step, "history": history, **facts})


def _resumed(
    kept: Checkpoint, equations: Equations, spectrum: NaturalSpectrum, most: int
) -> tuple[Search, list[tuple[int, float]]]:
    """The search where the checkpoint left it."""
    facts, like = kept.facts, equations.known.value
    tensors = {name: tensor.to(like.device) for name, tensor in kept.tensors.items()}
    images = tensors["images"]
    known = replace(equations.known, open=tensors["open"])
    floor = ROUNDED_FLOOR if facts["stage"] else FLOOR
    equations = Equations(equations.network, equations.structure, known, equations.gradients, floor=floor)
    search = Search(equations, spectrum, equations.at(images, tensors["free"]), most)
    for name in FACTS:
        setattr(search, name, facts[name])
    search.stage = Stage(search.stage)
    search.moved, search.fixed = tensors["moved"], tensors["fixed"]
    search.before = [tensors[f"before/{i}"] for i in range(2) if f"before/{i}" in tensors]
    state = {name.split("/")[1]: value for name, value in tensors.items() if name.startswith("preconditioner/")}
    search.preconditioner = BlockCirculant.of(state, images)
    return search, history_in(facts)
