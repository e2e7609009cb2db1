"""Gradient matching guided by the features in front of the last layer."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from seepage.attacks.base import Attack, Inapplicable, Needs, Progress, SingleRound, refuse
from seepage.attacks.guided.decoder import fit_decoder, layer_input
from seepage.attacks.guided.inversion import invert_activations
from seepage.attacks.network.evidence import multiple_words
from seepage.attacks.reading.activations import InnerActivations, inner_activations
from seepage.attacks.reading.head import HeadFeatures, head_features
from seepage.attacks.search.directions import Plain
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.frozen_pattern import RecordedPattern
from seepage.attacks.search.labels import Auto, LabelInference
from seepage.attacks.search.layers import LayerPrior, Seen
from seepage.attacks.search.optimizers import LBFGS
from seepage.attacks.search.parameters import Pixels, SearchSpace
from seepage.attacks.search.priors import ColorVariation
from seepage.base.nn import calls_in_pass, forward, in_mode, last_linear
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Reconstruction, Round, Transcript

EVALUATIONS = 26
"""Evaluations that are counted for one step of L-BFGS: 20 iterations, and some more for its line searches."""


INVERSION_STEPS = 8
"""Steps of Gauss-Newton in which activations are inverted."""


@dataclass(frozen=True, eq=False)
class FeatureAgreement(LayerPrior):
    """Squared distance of the candidates' features to the known ones, as a share of their square, times `weight`.

    Candidate i has the features of example i, so the order of a batch is settled by them. Of a client that takes
    several steps only the first pass counts, whose weights are those that were sent; the term is 0 where that pass is
    on a part of the batch, as then nothing says which.

    Args:
        weight: Weight against the gradient distance.
        layer: Name of the layer whose inputs are the features: the last fully connected one, or a convolution.
        features: `[n, k]`, flattened where they are maps.
        known: `[n]` which of them count.
    """

    weight: float
    layer: str
    features: Float[Tensor, "n k"]
    known: Bool[Tensor, " n"]

    def layers(self, model: torch.nn.Module) -> list[str]:
        return [self.layer]

    def __call__(self, seen: Seen, labels: Tensor, observed: Round) -> Tensor:
        features = layer_input(seen[self.layer][:1])
        if len(features) != len(self.known):
            return features.new_zeros(())
        wanted = self.features[self.known]
        apart = features[self.known] - wanted
        return self.weight * apart.square().sum() / wanted.square().sum()


@dataclass(frozen=True, kw_only=True)
class _Decoded(Pixels):
    """Pixels that start at given inputs `[n, C, H, W]`."""

    inputs: Tensor

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        space = super().start(batch_size, knowledge, like, generator)
        return replace(space, unknowns=[((self.inputs - self.mean) / self.std).to(like)])


@dataclass(frozen=True, kw_only=True)
class _NearGrey(Pixels):
    """Pixels that start at the middle of the value range, with a little noise: else equal labels stay equal images."""

    noise: float = 0.1

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        space = super().start(batch_size, knowledge, like, generator)
        return replace(space, unknowns=[self.noise * unknown for unknown in space.unknowns])


@dataclass(frozen=True, eq=False)
class _Solved(LabelInference):
    """The labels that the features were solved with, in their order."""

    labels: Int[Tensor, " n"]

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        return self.labels


@dataclass(frozen=True, kw_only=True)
class GuidedMatching(Attack):
    """Gradient matching from a decoded start, held to the features that the last layer's gradient reveals.

    `head_features` solves the features of every example. A ridge decoder, fitted on made-up images that are put
    through the network, turns them into a first image; the search then matches the gradient, and the candidates'
    features match the known ones as well. Networks that bend (ReLU, max pooling) are searched with signs of gradients,
    smooth ones with L-BFGS. Where the features are not known, or inputs are no images, it is the plain search from
    the middle of the value range, and a note says why.

    This is no paper's attack. Features as a term are in breaching's `modern` for one example, divided out of one row
    each; starts from features are a step of CPA's feature inversion.

    Args:
        search: The matching attack that is guided.
        weight: Weight of the features' relative squared distance; 0: they serve as a start alone.
        source: What is known: the `features` that the last layer reads, or the `activations` that the last block of a
            residual network reads (`inner_activations`), which also tells batches of more examples than classes apart.
        start: Where the search starts: images that a `decoder` makes of what is known; the `inversion` of activations
            by least squares, from these; or its `own` start.
        keeps: Whether the search keeps its units, optimizer and schedule on every network.
    """

    certifies: ClassVar[bool] = False
    needs: ClassVar[Needs] = GradientMatching.needs

    search: GradientMatching
    weight: float = 1.0
    source: Literal["features", "activations"] = "features"
    start: Literal["decoder", "inversion", "own"] = "decoder"
    keeps: bool = False

    def __post_init__(self) -> None:
        if self.start == "inversion" and self.source != "activations":
            raise SeepageError("an inversion starts from activations; set known to activations, or start to decoder")
        if self.weight < 0:
            raise SeepageError(f"the weight of what is known cannot be below 0, got {self.weight}; correct the recipe")

    def examine(self, transcript: Transcript) -> tuple[Knowledge, Round]:
        return self.search.examine(transcript)

    def adapts(self, knowledge: Knowledge) -> bool:
        return self.search.adapts(knowledge)

    def run(self, seen: tuple[Knowledge, Round], *, seed: int, progress: Progress) -> Reconstruction:
        knowledge, observed = seen
        search = self._fitting(knowledge, observed)
        try:
            known = self._known(knowledge, observed)
            search = self._started(search, known, knowledge, observed)
            observed = observed.over(known.share)
            begun = "its own start" if self.start == "own" else "an image of them"
            what = "Features of the last layer were read from its gradient"
            if isinstance(known, InnerActivations):
                what = "Activations in front of the last block were read from its gradients"
            note = f"{what}; the search started from {begun}."
            left = int((~known.known).sum())
            note += f" Of {left} examples they are not known." if left else ""
            if known.share != 1:
                note += f" Of its size: {multiple_words(known.share)}."
        except Inapplicable as unknown:
            note = f"The search had no {self.source} to start from: {unknown.reason}."
        result = search.run((knowledge, observed), seed=seed, progress=progress)
        return replace(result, notes=(note, *result.notes))

    def objective_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> float | None:
        from scipy.optimize import linear_sum_assignment  # heavy, and only this needs it

        knowledge, observed = transcript.knowledge, transcript[0]
        search = self._fitting(knowledge, observed)
        try:
            known = self._known(knowledge, observed)
        except Inapplicable:
            return search.objective_at(transcript, inputs, labels)
        # Candidate i is held to the features of example i: put the inputs into the features' order first.
        layer, values = _read(known)
        calls = calls_in_pass(knowledge.model, [layer], observed.params, inputs, buffers=observed.buffers)
        costs = torch.cdist(values.flatten(1).to(inputs), layer_input(calls[layer]))
        order = torch.as_tensor(linear_sum_assignment(costs.detach().cpu().numpy())[1], device=inputs.device)
        held = replace(search, priors=(*search.priors, *self._agreement(known, inputs)))
        alone = SingleRound(knowledge, observed.over(known.share))
        return held.objective_at(alone, inputs[order], labels[order])

    def _known(self, knowledge: Knowledge, observed: Round) -> HeadFeatures:
        """What the last layers' gradients say.

        Raises:
            Inapplicable: Where they say nothing.
        """
        if self.source == "activations":
            return inner_activations(observed, knowledge)
        # Inferred labels may be wrong; those that come with the solution have been checked against the gradient.
        inferred = isinstance(self.search.labels, Auto)
        labels = None if inferred else self.search.labels(observed, knowledge)
        if last_linear(knowledge.model, knowledge.num_outputs) is None:
            raise refuse("no_head")("the model has no last linear layer", "use inverting_gradients")
        if labels is None and not inferred:
            raise refuse("no_labels")("the labels are searched for", "use inverting_gradients")
        found = head_features(observed, knowledge, labels)
        if not found.known.any():
            raise refuse("features_unknown")(found.doubt or "none of them is known", "use inverting_gradients")
        return found

    def _agreement(self, known: HeadFeatures, like: Tensor) -> tuple[FeatureAgreement, ...]:
        """The term that holds candidates to what is known; none where its weight is 0."""
        if self.weight == 0:
            return ()
        layer, values = _read(known)
        return (FeatureAgreement(self.weight, layer, values.flatten(1).to(like), known.known.to(like.device)),)

    def _started(
        self, search: GradientMatching, known: HeadFeatures, knowledge: Knowledge, observed: Round
    ) -> GradientMatching:
        """The search from an image of what is known, held to it."""
        like = next(iter(observed.params.values()))
        held = replace(
            search,
            labels=_Solved(known.labels.to(like.device)),
            priors=(*search.priors, *self._agreement(known, like)),
        )
        if self.start == "own":
            return held
        layer, values = _read(known)
        values = values.to(like)
        inputs = fit_decoder(observed, knowledge, layer, len(values))(values.flatten(1))
        if self.start == "inversion":
            assert isinstance(known, InnerActivations)  # `__post_init__` refused others
            inputs = invert_activations(
                observed, knowledge, layer, values, known.offset_known, inputs, steps=INVERSION_STEPS
            )
        grey = torch.full_like(inputs, sum(knowledge.value_range) / 2)
        inputs = torch.where(known.known.to(like.device)[:, None, None, None], inputs, grey)
        pixels = search.parameters
        assert isinstance(pixels, Pixels)
        return replace(held, parameters=_Decoded(inputs=inputs, mean=pixels.mean, std=pixels.std))

    def _fitting(self, knowledge: Knowledge, observed: Round) -> GradientMatching:
        """The search with units of the value range, and an optimizer that suits the network; or as it is (`keeps`)."""
        if self.keeps:
            return self.search
        low, high = knowledge.value_range
        # Unknowns of which four cover the value range, as in normalized images, and that start in its middle.
        search = replace(self.search, parameters=_NearGrey(mean=(low + high) / 2, std=(high - low) / 4))
        priors = tuple(
            replace(prior, unit=high - low) if isinstance(prior, ColorVariation) else prior for prior in search.priors
        )
        if _bends(knowledge, observed):
            return replace(search, priors=priors)
        # A smooth network has curvature, which L-BFGS learns; it gets far enough for a prior a tenth as strong to show.
        weaker = tuple(_scaled(prior) if isinstance(prior, ColorVariation) else prior for prior in priors)
        return replace(
            search,
            priors=weaker,
            optimizer=LBFGS(line_search=True),
            steps=max(1, search.steps // EVALUATIONS),
            direction=Plain(),
            schedule="constant",
            project=False,
        )


def _read(known: HeadFeatures) -> tuple[str, Tensor]:
    """Name of the layer that candidates are held at, and what it reads, `[n, k]` or `[n, C, H, W]`."""
    if isinstance(known, InnerActivations):
        return known.layer, known.activations
    return known.head, known.features


def _scaled(prior: ColorVariation) -> ColorVariation:
    """A quarter of the first weight and a tenth of the last."""
    first = None if prior.first is None else max(prior.first / 4, prior.weight / 10)
    return replace(prior, weight=prior.weight / 10, first=first)


def _bends(knowledge: Knowledge, observed: Round) -> bool:
    """Whether the network has a ReLU, a max pooling or the like, whose slopes jump."""
    like = next(iter(observed.params.values()))
    middle = torch.full((2, *knowledge.input_shape), sum(knowledge.value_range) / 2).to(like)
    with torch.no_grad(), in_mode(knowledge.model, training=False), RecordedPattern() as taken:
        forward(knowledge.model, observed.params, middle, buffers=observed.buffers)
    return bool(taken.patterns)
