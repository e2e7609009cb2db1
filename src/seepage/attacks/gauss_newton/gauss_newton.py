"""Exact batches through convolutions: features from the head, then Gauss-Newton on what they make linear."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Inapplicable, Needs, Progress, refuse, run_resumable
from seepage.attacks.gauss_newton.alone import AloneSearch, ReadAlone
from seepage.attacks.gauss_newton.levels import LEVELS, to_levels
from seepage.attacks.gauss_newton.search import Search
from seepage.attacks.gauss_newton.seen import ROUNDED, Seen, SeenTogether, known_of
from seepage.attacks.network import AttackedRound
from seepage.attacks.network.evidence import multiple_words
from seepage.attacks.network.linearize import VictimNetwork
from seepage.attacks.reading.activations import inner_activations
from seepage.attacks.reading.decoding import AT_ONCE, Decoder, NaturalSpectrum
from seepage.attacks.reading.equations import Equations, Structure
from seepage.attacks.reading.head import HeadFeatures, head_features
from seepage.attacks.reading.peeling import peel
from seepage.base.nn import generator, last_linear
from seepage.base.registry import attacks
from seepage.base.rounding import FLOAT32_SAME
from seepage.federation.types import Knowledge, Reconstruction, Round, Status, Transcript

FREE = 0.7
"""Share of a random change of a few neighboring values from which on they count as free to change."""
CLOSE = 5e-2
"""Relative difference of the updates below which a search that came to rest is near the images, and goes on."""

HEAD_NEEDS = Needs(
    text="convolutions with a fully connected layer behind them; fewer examples than classes, residual blocks, or rows "
    "of one example alone",
    images="inversion through convolutions",
    differentiable=True,
    linear_in_gradient="its features cannot be read off the head",
    softmax_gradient="the features are solved from softmax minus label",
    batch_size="the features of each example are unknowns of their own",
)
"""What reading the head takes."""


@attacks.register(
    "gauss_newton",
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
       solved by Gauss-Newton with whitened equations (`equations`, `search`). Where that rests in a local minimum, as
       behind pools that take maxima, Adam on the same squares leaves it, and Gauss-Newton goes on from there.
    4. The gradients of all other layers were not used: where the network's whole gradient at the result is the one
       that was observed, and no part of an image is free to change, the images are certified. Where images rounded to
       8 bits explain the gradient to rounding, these are returned.
    5. An update that was rounded itself, such as the difference of two checkpoints, leaves the search near the images
       alone. Values that are surely those of 8 bits are then set, and the others solved anew (`levels`).

    Where a ReLU's units are averaged in front of the head, as in residual networks, activations are first read layer by
    layer from there down (`peeling`), and the deepest known one takes the place of the features. Then there may also be
    as many examples as classes, or more.

    Batch norm in train mode ties the examples together. What the last block of a wide residual network read is solved
    all the same, through its batch norms, whose own gradients show what the batch shares (`inner_activations`); images
    follow from these activations alone, all together. The update does not show their contrast: it is taken from their
    being 8-bit pictures, without which nothing is certified.

    The update may be any multiple of the gradient, such as one clipped to a norm: the head shows which.

    Where the head shows no features, as behind dropout, or of as many examples as classes, a fully connected layer may
    have rows that one example alone reaches, which show what it read of it (`alone`). Each such image is solved from
    these equations only, without the zeros that dropout left, whatever the loss and the batch size.

    No publication has this. Networks: chains of convolutions and residual blocks, with ReLU, leaky ReLU or a smooth
    activation, strides, pooling, batch norm in eval mode (in train mode: residual blocks of two convolutions), ended by
    one fully connected layer. Where slopes depend on the images (other pooling, curved activations) they are renewed in
    each step, which converges less well.

    Args:
        steps: Steps, at most; a hundred iterations of a descent count as one.
        inner: Iterations of the conjugate gradients in one step, at most.
        layers: Use the weight gradients of so many layers in front of the head, the last one first. Those further to
            the front depend on masks that are known only near the solution.
        rounding: Whether to try 8-bit values, all together and one after the other.

    Example:
        >>> GaussNewton(steps=20).inner
        600
    """

    needs: ClassVar[Needs] = replace(HEAD_NEEDS, softmax_gradient=None, batch_size=None)

    steps: int = 200
    inner: int = 600
    layers: int = 1
    rounding: bool = True

    def examine(self, transcript: Transcript) -> Seen | ReadAlone:
        attacked = AttackedRound.of(transcript)
        if attacked.knowledge.client.batch_coupled(attacked.knowledge.model):
            HEAD_NEEDS.check(attacked.knowledge, attacked.observed)
            return SeenTogether.of(attacked, network_of(attacked))
        try:
            seen = self._by_head(attacked)
        except Inapplicable:
            alone = ReadAlone.of(attacked, network_of(attacked))
            if alone is None:
                raise
            return alone
        alone = ReadAlone.of(attacked, seen.network, behind_dropout=True)
        return alone if alone is not None and alone.dropped() else seen

    def _by_head(self, attacked: AttackedRound) -> Seen:
        """What the head's gradient shows.

        Raises:
            Inapplicable: Where that is nothing.
        """
        knowledge, observed = attacked.knowledge, attacked.observed
        HEAD_NEEDS.check(knowledge, observed)
        network, _, structure = self.cut(attacked)
        try:
            features = head_features(observed, knowledge)
        except Inapplicable as refused:
            # As many examples as classes, or more: a residual network's last block may separate them.
            of_block = _of_last_block(observed, knowledge)
            if of_block is None:
                raise refused from None
            features = of_block
        attacked = attacked.over(features.share)
        if not bool(features.known.any()):
            raise refuse("features_unknown")(
                f"the features of no example could be solved from the head: {features.doubt}",
                "look at the update of an earlier round, or at a smaller batch",
            )
        like = attacked.like()
        known = known_of(features, structure, like)
        if not bool(known.signal.any()):
            raise refuse("zero_gradient")(
                "no gradient passes from the head to the layers in front: its weights are zero, or no unit is on",
                "look at the update of a later round",
            )
        seen = Seen(attacked, network, structure, features, known)
        _ = [attacked.gradient[name] for name in structure.names]  # refuses a frozen or withheld one
        if structure.activation is None:
            peeled = peel(network, features, attacked.gradient, structure, knowledge.input_shape)
            if peeled is not None:
                structure, features, held = peeled
                known = known_of(features, structure, like)
                return replace(seen, structure=structure, head=features, known=known, held=held)
            # Pooled features alone leave images open.
            if len(features.labels) >= knowledge.num_classes:
                raise refuse("too_few_classes")(
                    "there are as many examples as classes, or more, and the last block's activations lead no further",
                    "record a smaller batch",
                )
        return seen

    def cut(self, attacked: AttackedRound) -> tuple[VictimNetwork, tuple[str, str | None], Structure]:
        """The network, the names of its head's weight and bias, and where the known quantities lie in front of that.

        Raises:
            Inapplicable: For a network that is no chain of convolutions with one fully connected layer behind it.
        """
        knowledge, network = attacked.knowledge, network_of(attacked)
        head = last_linear(knowledge.model, knowledge.num_outputs)
        middle = torch.rand((1, *knowledge.input_shape), generator=generator(0, "probe image"))
        structure = None if head is None else Structure.of(network, head[0], middle, self.layers)
        if head is None or structure is None:
            raise refuse("network")(
                "the model is no chain of convolutions ended by a fully connected layer of one output per class (a "
                "transformer, a mixer or ConvNeXt has fully connected layers at each position)",
                "use patch_embedding for one image of a vision transformer, linear or cocktail_party where the first "
                "layer is fully connected, else gradient_matching",
            )
        return network, head, structure

    def run(self, seen: Seen | ReadAlone, *, seed: int, progress: Progress) -> Reconstruction:
        if isinstance(seen, ReadAlone):
            return self._one_by_one(seen, seed, progress)
        like, shape = seen.attacked.like(), seen.attacked.knowledge.input_shape
        wanted = [seen.attacked.gradient[name].to(like) for name in seen.structure.names]
        equations = Equations(replace(seen.network, held=seen.held), seen.structure, seen.known, wanted)
        center = seen.center if isinstance(seen, SeenTogether) else None

        def features(unit: Tensor) -> Tensor:
            return seen.decodable(seen.structure.output(seen.network.run(unit)))

        if progress.load() is None:
            at_once = AT_ONCE if center is None else len(seen.head.labels)
            decoder = Decoder(features, shape, generator(seed, "made-up images"), at_once)
            guess = decoder(seen.decodable(seen.head.features.to(like)))
        else:
            guess = like.new_zeros(len(seen.head.labels), *shape)
        search = Search(equations, NaturalSpectrum(shape).to(like), equations.start(guess), self.inner, center)
        error = float("inf")

        def advance(step: int) -> float:
            nonlocal error
            value = search.step()
            if self.rounding and (search.before or search.last_change < 1 / LEVELS):
                error = seen.error(to_levels(seen.images(search.point.x)))
            return value

        def note(step: int, value: float) -> None:
            search.history.append((step, value))

        def over() -> bool:
            """Whether it is found, or came to rest with nothing left to set. Else it is set, and the search goes on."""
            if error < FLOAT32_SAME or not search.ended:
                return error < FLOAT32_SAME
            if self._is_near(seen, search) and (search.before or search.even):
                return not search.goes_on()
            return seen.error(seen.images(search.point.x)) < ROUNDED or not search.descends()

        step, interrupted = run_resumable(search, self.steps, advance, progress, note=note, every=1, ended=over)
        return self._result(seen, search, step, interrupted)

    def _one_by_one(self, seen: ReadAlone, seed: int, progress: Progress) -> Reconstruction:
        search = AloneSearch(seen, seed, self.inner, self.rounding)
        step, interrupted = run_resumable(
            search, self.steps * len(search.x), search.advance, progress,
            note=lambda step, value: search.history.append((step, value)), every=1, ended=lambda: search.ended,
        )  # fmt: skip
        certain, counts = search.certain(FREE)
        nearest = min(range(len(search.x)), key=lambda i: search.errors[i])
        kept = seen.shares[search.choice[nearest]]
        notes = [
            f"rows of {seen.layer} ({', '.join(map(str, seen.neurons))}) agree on what it read of {len(certain)} "
            f"examples alone, {int(certain.sum())} of them certified",
            f"{int(counts.min()):,} to {int(counts.max()):,} equations for {search.x[0].numel():,} pixel values each, "
            f"off by {search.errors[nearest]:.1e} of their size at best, by {max(search.errors):.1e} at worst",
        ]
        notes += [f"dropout kept {kept:.3g} of what the layer read"] * (kept < 1)
        return Reconstruction(
            inputs=seen.network.inputs(search.best),
            objective=search.best.new_tensor(search.errors),
            certified=certain,
            status="interrupted" if interrupted else "ok" if search.ended else "exhausted",
            history=tuple(search.history),
            cost={"steps": step, "evaluations": search.passes},
            notes=tuple(notes),
        )

    def _is_near(self, seen: Seen, search: Search) -> bool:
        """Whether 8-bit values may be set: near the images alone, and of another contrast all would be others."""
        if not self.rounding or search.center is not None:
            return False
        return bool(search.fixed.any()) or ROUNDED < seen.error(seen.images(search.point.x)) < CLOSE

    def _result(self, seen: Seen, search: Search, step: int, interrupted: bool) -> Reconstruction:
        if search.best is not None:
            search.settle()  # it may have been stopped in a descent
        unit = seen.images(search.point.x)
        error, rounded = seen.error(unit), to_levels(unit)
        error_rounded = seen.error(rounded) if self.rounding else float("inf")
        some_set = bool(search.fixed.any())
        found = error_rounded < (ROUNDED if some_set else min(error, ROUNDED))
        if found:
            unit, error = rounded, error_rounded
        elif search.before:
            # Set values that do not explain the update are wrong somewhere, and spoil the others.
            several = [seen.images(x) for x in search.before] + [unit] * (not some_set)
            error, unit = min(((seen.error(one), one) for one in several), key=lambda pair: pair[0])
        rows = search.point.residuals[0].flatten(1).norm(dim=1)
        at_rest = found or search.ended or search.best is not None
        status: Status = "interrupted" if interrupted else "ok" if at_rest and step < self.steps else "exhausted"
        notes = [
            f"the update at these images differs from the observed one by {error:.1e} of its size",
            f"{search.equations.count:,} equations for {unit.numel():,} pixel values",
        ]
        if found:
            notes.append("rounded to 8 bits, the images explain the update to rounding")
        elif search.center is not None:
            notes.append("the update does not show the contrast of the batch; it was set so as to fill the value range")
        if seen.head.share != 1:
            notes.append(multiple_words(seen.head.share))
        if seen.head.doubt is not None:
            notes.append(f"features: {seen.head.doubt}")
        probe = torch.randn(unit.shape, generator=generator(0, "change")).to(unit)
        certain = seen.vouched(unit, probe, error)
        if bool(certain.any()):  # no part of an image may be free to change
            certain = certain & (search.undetermined(probe, FREE) < FREE).to(unit.device)
        return Reconstruction(
            inputs=seen.network.low + seen.network.span * unit,
            labels=seen.head.labels.to(unit.device),
            objective=rows,
            certified=certain,
            status=status,
            history=tuple(search.history),
            cost={"steps": step, "evaluations": search.passes},
            notes=tuple(notes),
        )


def network_of(attacked: AttackedRound) -> VictimNetwork:
    """The victim's network at the round's weights."""
    knowledge, observed = attacked.knowledge, attacked.observed
    low, high = knowledge.value_range
    return VictimNetwork(knowledge.model, observed.params, observed.buffers, low, high - low)


def _of_last_block(observed: Round, knowledge: Knowledge) -> HeadFeatures | None:
    """What the head's gradient would show if it separated the examples, from the last block of a residual network."""
    try:
        return inner_activations(observed, knowledge)
    except Inapplicable:
        return None
