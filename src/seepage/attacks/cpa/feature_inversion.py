"""Feature inversion: find images whose embeddings are those that CPA recovers (CPA+FIA, CPA+FIA+GMA)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from seepage.attacks.base import Attack, Checkpoint, Inapplicable, Needs, Progress, run_resumable
from seepage.attacks.cpa.cocktail_party import CocktailParty, Mixed
from seepage.attacks.reading.decoding import AT_ONCE, Decoder, NaturalSpectrum
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.labels import LABEL_RULES
from seepage.attacks.search.objective import MatchingObjective
from seepage.attacks.search.optimizers import Adam, Schedule
from seepage.attacks.search.parameters import Pixels, SearchSpace
from seepage.attacks.search.priors import TotalVariation
from seepage.attacks.search.problem import Evaluation, Extra, Problem
from seepage.base.checkpoint import Resumable
from seepage.base.nn import calls_in_pass
from seepage.base.nn import generator as draws
from seepage.base.registry import attacks
from seepage.federation.types import Knowledge, Reconstruction, Round, Tensors, Transcript

ITERATIONS = 25
"""L-BFGS iterations of one step of the second-order search."""
MOST_COEFFICIENTS = 2**26
"""Coefficients of a decoder, embedding values times pixels, above which the second-order search starts near grey."""
FADING = (1e-2, 1e-3, 1e-4)
"""Weights of the prior in the second-order search, each for a third of the steps."""
SAVE_INTERVAL = 10
"""Steps between two checkpoints. With a large network, a hundredth of all steps can take an hour."""


@dataclass(frozen=True, kw_only=True)
class FeatureInversion(Attack):
    """Find images whose embedding is the recovered one (Kariyappa et al., ICML 2023, eq. 11 and 12).

    The embeddings come from `source`, an attack on a fully connected layer behind convolutions. Images start as
    noise; one minus the cosine of embeddings plus total variation, Adam with a cosine schedule, projection to the value
    range in each step, as the authors do. With `matching` above 0 the images together also match the update by its
    cosine (eq. 12).

    The authors' images are normalized, with a range of about 4. Rate and total variation are in units of a quarter of
    the value range: a rate of 0.1 moves images in [0, 1] by 0.025.

    Args:
        source: The attack that recovers embeddings.
        steps: Adam steps; the authors use 25,000.
        lr: Learning rate, in quarters of the value range; the authors' is 0.1.
        tv: Weight of the total variation.
        matching: Weight of the gradient's cosine (eq. 12); 0: eq. 11.
        largest: Invert at most this many embeddings, those of best certificate first; None: all.
        schedule: Learning rate over the steps.
        search: `adam`, as published, or `second_order`, which the paper does not have: L-BFGS on the relative squared
            distance of embeddings, lengths included. It starts from a decoder's images (large ones from grey), and the
            spectrum of photographs is a prior that fades. It takes no `lr`, `tv`, `matching` and `schedule`; `steps`
            are iterations, 25 at a time.

    Example:
        >>> FeatureInversion(steps=100).tv
        0.1
    """

    certifies: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs(
        text="images; a fully connected layer behind convolutions, no more examples than it has neurons",
        images="feature inversion",
        instead="cocktail_party, which gives the embeddings",
    )

    source: CocktailParty = CocktailParty()  # noqa: RUF009 - frozen and without state
    steps: int = 25_000
    lr: float = 0.1
    tv: float = 0.1
    matching: float = 0.0
    largest: int | None = None
    schedule: Schedule = "cosine"
    search: Literal["adam", "second_order"] = "adam"

    @property
    def passes(self) -> int:
        return self.steps

    def examine(self, transcript: Transcript) -> Mixed:
        attacked, layer = self.source.prepare(transcript)
        if layer.reads_input is not None:
            raise Inapplicable(
                "the fully connected layer reads the input itself, so there is no embedding to invert",
                "use cocktail_party alone",
            )
        if self.search == "second_order" and self.matching > 0:
            raise Inapplicable(
                "the second-order search matches embeddings alone", "set matching to 0, or search to adam"
            )
        observed = attacked.observed
        if self.matching > 0 and observed.batch_size is None:
            raise Inapplicable("matching the gradient needs the batch size", "name it, or set matching to 0")
        if self.matching > 0 and LABEL_RULES["auto"](observed, attacked.knowledge) is None:
            raise Inapplicable("no rule can read this batch's labels to match its gradient", "set matching to 0")
        return attacked, layer

    def run(self, mixed: Mixed, *, seed: int, progress: Progress) -> Reconstruction:
        attacked, layer = mixed
        knowledge, observed = attacked.knowledge, attacked.observed
        kept = _Stage(progress, "images").load()
        found = self._embeddings(mixed, seed, progress) if kept is None else _unpacked(kept)
        if found.status == "interrupted":
            raise KeyboardInterrupt  # interrupted before there was any image
        embeddings = {"found/inputs": found.inputs} | ({} if found.labels is None else {"found/labels": found.labels})
        images = _Stage(progress, "images", self.source.steps, Checkpoint(embeddings, {"notes": list(found.notes)}))
        features = FeatureDistance(
            network=Embedding(knowledge.model, layer.name, observed.params, observed.buffers), targets=found.inputs
        )
        if self.search == "adam":
            made = self._matched(features, knowledge, observed, found.labels, seed, images)
        else:
            made = _SecondOrder(features, knowledge, self.steps, seed).run(images)
        objective = features.of_each(made.inputs)
        agreement = f"embeddings agree to a mean cosine of {1 - float(objective.mean()):.4f}"
        return replace(made, labels=None, objective=objective, notes=(*found.notes, *made.notes, agreement))

    def _matched(
        self,
        features: "FeatureDistance",
        knowledge: Knowledge,
        observed: Round,
        labels: Tensor | None,
        seed: int,
        progress: Progress,
    ) -> Reconstruction:
        """Eq. 11 and 12 by gradient matching whose distance is one of embeddings.

        All terms are means over the n images, so the update's cosine has a weight of 1 / n beside them.
        """
        low, high = knowledge.value_range
        spread = (high - low) / 4
        count = len(features.targets)
        if self.matching > 0:
            assert observed.batch_size is not None  # `examine` refused it
            count = observed.batch_size
            weighted = (self.matching / count) * Cosine()
            counted = LABEL_RULES["auto"](observed, knowledge)
            features = replace(features, update=Problem.of(observed, knowledge, weighted, AT_ONCE))
            labels = in_order(labels, counted)
        search = GradientMatching(
            distance=Cosine(),
            optimizer=Adam(lr=self.lr),
            steps=self.steps,
            # Normal about the middle of the value range; a quarter of the range is one unit of the search.
            parameters=_Noise(mean=(low + high) / 2, std=spread, seed=seed),
            schedule=self.schedule,
            project=True,
            tolerance=0.0,
        )
        priors = (TotalVariation(self.tv, unit=spread),)
        objective = MatchingObjective(features, knowledge, replace(observed, batch_size=count), priors, ())
        given = torch.zeros(count, dtype=torch.int64) if self.matching == 0 or labels is None else labels
        made = search.minimize(objective, given, seed=seed, progress=progress, every=SAVE_INTERVAL)
        return replace(made, status="exhausted") if made.status == "ok" else made

    def _embeddings(self, mixed: Mixed, seed: int, progress: Progress) -> Reconstruction:
        """The embeddings that the source recovers, at most `largest` of them, those of best certificate first."""
        found = self.source.run(mixed, seed=seed, progress=_Stage(progress, "embeddings"))
        if self.largest is None:
            return found
        objective = torch.zeros(len(found)) if found.objective is None else found.objective
        best = objective.argsort(stable=True)[: self.largest]
        labels = None if found.labels is None else found.labels[best]
        return replace(found, inputs=found.inputs[best], labels=labels, objective=None, certified=None)


@dataclass(frozen=True)
class _Stage:
    """Progress of one of the two searches, whose checkpoints say which one it is.

    Attributes:
        whole: Progress of the attack.
        name: `embeddings` or `images`.
        before: Steps of the search before it, so that every checkpoint of a run has a number of its own.
        found: What that search found, which each checkpoint keeps.
    """

    whole: Progress
    name: str
    before: int = 0
    found: Checkpoint = Checkpoint({}, {})  # noqa: RUF009 - never changed

    def report(self, done: int, total: int, objective: float) -> None:
        self.whole.report(done, total, objective)

    def load(self) -> Checkpoint | None:
        kept = self.whole.load()
        if kept is None or kept.facts.get("stage") != self.name:
            return None
        return Checkpoint(kept.tensors, {**kept.facts, "step": kept.facts["step"] - self.before})

    def save(self, own: Checkpoint) -> None:
        facts = {**own.facts, **self.found.facts, "stage": self.name, "step": own.facts["step"] + self.before}
        self.whole.save(Checkpoint({**own.tensors, **self.found.tensors}, facts))


def _unpacked(kept: Checkpoint) -> Reconstruction:
    """The embeddings stored in a checkpoint, which a resumed run need not compute again."""
    labels = kept.tensors.get("found/labels")
    return Reconstruction(kept.tensors["found/inputs"], labels, space="feature", notes=tuple(kept.facts["notes"]))


@dataclass(frozen=True, eq=False)
class Embedding:
    """The part of a model in front of a named layer."""

    model: nn.Module
    layer: str
    params: Tensors
    buffers: Tensors

    def __call__(self, images: Tensor) -> Tensor:
        """`[k, *shape]` images to the `[k, e]` inputs of the layer."""
        calls = calls_in_pass(self.model, [self.layer], self.params, images, buffers=self.buffers)
        return calls[self.layer][0].input.flatten(1)


def in_order(known: Tensor | None, counted: Tensor | None) -> Tensor | None:
    """Labels in the order of the embeddings: first those known for each embedding, then the rest of the batch's.

    Args:
        known: `[k]` the label of each embedding, where its source determines it.
        counted: `[n]` the batch's labels in any order; None where no rule can count them.

    >>> in_order(torch.tensor([2, 0]), torch.tensor([0, 1, 2]))
    tensor([2, 0, 1])
    """
    if known is None or counted is None:
        return counted
    left = counted.tolist()
    for label in known.tolist():
        if label in left:
            left.remove(label)
    return torch.cat([known, torch.tensor(left, dtype=known.dtype, device=known.device)])[: len(counted)]


@dataclass(frozen=True, kw_only=True)
class _Noise(Pixels):
    """Pixels that start normal, clamped to the value range from the start."""

    seed: int

    def start(self, batch_size: int, knowledge: Knowledge, like: Tensor, generator: Generator) -> SearchSpace:
        space = super().start(batch_size, knowledge, like, draws(self.seed, "images"))
        return replace(space, unknowns=space.project(space.unknowns))


@dataclass(frozen=True, kw_only=True)
class FeatureDistance:
    """Mean over n images of one minus the cosine of embeddings, plus the distance of a matching problem (eq. 12).

    Attributes:
        network: Images to embeddings `[n, e]`.
        targets: `[k, e]`; images beyond the first k have none, and count 0.
        update: The matching problem; None: eq. 11 alone.
    """

    network: Embedding
    targets: Tensor
    update: Problem | None = None

    def of_each(self, images: Tensor) -> Tensor:
        """`[n]` one minus the cosine of embeddings."""
        with torch.no_grad():
            return torch.cat([self._apart(part, target) for part, target in self._parts(images)])

    def evaluate(self, inputs: Tensor, labels: Tensor, extra: Extra | None = None) -> Evaluation:
        total, gradients = 0.0, []
        for part, target in self._parts(inputs):  # a sum over images, so a chunk at a time has the same gradients
            leaf = part.detach().requires_grad_()
            known = target.abs().amax(1) > 0
            value = self._apart(leaf, target).where(known, 0.0).sum() / len(inputs)
            gradients.append(torch.autograd.grad(value, leaf)[0])
            total += value.item()
        gradient = torch.cat(gradients)  # [n, *shape]
        if self.update is not None:
            matched = self.update.evaluate(inputs, labels)
            total, gradient = total + matched.value, gradient + matched.by_inputs
        return Evaluation(total, gradient, None)

    def distance_at(self, inputs: Tensor, labels: Tensor) -> float:
        return self.evaluate(inputs, labels).value

    def _apart(self, images: Tensor, targets: Tensor) -> Tensor:
        return 1 - torch.nn.functional.cosine_similarity(self.network(images), targets)

    def _parts(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        missing = len(images) - len(self.targets)
        padded = torch.cat([self.targets, self.targets.new_zeros(missing, self.targets.shape[1])])
        return zip(images.split(AT_ONCE), padded.split(AT_ONCE), strict=True)


class _SecondOrder(Resumable):
    """The same by L-BFGS, in coefficients of a natural spectrum: `x = 1/2 + K u`, in units of the value range.

        |f(x) - t|^2 / |t|^2 + mu |u|^2 / d + |x - clamp(x)|^2 / d,        mu from `FADING`, first to last

    An optimizer is made anew for each step of `ITERATIONS` iterations, so that images alone are a checkpoint.
    """

    kept = ("unit", "history")

    def __init__(self, features: FeatureDistance, knowledge: Knowledge, steps: int, seed: int) -> None:
        self.network, self.targets = features.network, features.targets
        self.low, self.high = knowledge.value_range
        self.steps = max(1, steps // ITERATIONS)
        shape = knowledge.input_shape
        self.spectrum = NaturalSpectrum(shape).to(self.targets)
        if self.targets.shape[1] * math.prod(shape) <= MOST_COEFFICIENTS:
            draw = draws(seed, "decoder")
            unit = Decoder(self._maps, shape, draw, at_once=min(16, AT_ONCE))(self.targets[:, :, None, None])
        else:
            start = torch.randn((len(self.targets), *shape), generator=draws(seed, "images")).to(self.targets)
            unit = 0.5 + 0.04 * (start / 4).clamp(-0.5, 0.5)  # near mid-grey
        self.unit = unit.detach().clone()  # images in units of the value range, [k, *shape]
        self.history: list[tuple[int, float]] = []

    def run(self, progress: Progress) -> Reconstruction:
        step, interrupted = run_resumable(self, self.steps, self.step, progress, note=self.note, every=1)
        return Reconstruction(
            inputs=self.low + (self.high - self.low) * self.unit,
            status="interrupted" if interrupted else "exhausted",
            history=tuple(self.history),
            cost={"steps": step, "evaluations": step},
        )

    def note(self, step: int, value: float) -> None:
        self.history.append((step, value))

    def _maps(self, unit: Tensor) -> Tensor:
        """Features without positions `[n, e, 1, 1]` of images in [0, 1]."""
        return self.network(self.low + (self.high - self.low) * unit)[:, :, None, None]

    def step(self, done: int) -> float:
        """`ITERATIONS` iterations, chunk by chunk; the mean objective after them."""
        mu = FADING[min(len(FADING) * done // self.steps, len(FADING) - 1)]
        values = []
        for part, target in zip(self.unit.split(AT_ONCE), self.targets.split(AT_ONCE), strict=True):
            images, value = self._searched(part, target, mu)
            part.copy_(images)
            values.append(value)
        return sum(values) / len(self.unit)

    def _searched(self, start: Tensor, target: Tensor, mu: float) -> tuple[Tensor, float]:
        """Images `[k, *shape]` in [0, 1] after some iterations, and the sum of their objectives."""
        deviation, d = self.spectrum.deviation, start[0].numel()
        u = (self.spectrum.coefficients(start - 0.5) / deviation).contiguous().requires_grad_()
        optimizer = torch.optim.LBFGS([u], max_iter=ITERATIONS, history_size=ITERATIONS, line_search_fn="strong_wolfe")
        size = target.square().sum(1).clamp(min=1e-12)

        def closure() -> Tensor:
            optimizer.zero_grad()
            x = 0.5 + self.spectrum.image(deviation * u)
            apart = (self._maps(x)[:, :, 0, 0] - target).square().sum(1) / size
            outside = (x - x.clamp(0, 1)).square().flatten(1).sum(1) / d
            value = (apart + mu * u.square().flatten(1).sum(1) / d + 10 * outside).sum()
            value.backward()
            assert u.grad is not None
            u.grad = u.grad.contiguous()
            return value.detach()

        with torch.enable_grad():
            optimizer.step(closure)
        value = float(closure())
        return (0.5 + self.spectrum.image(deviation * u.detach())).clamp(0, 1), value


@attacks.register(
    "cpa_fia",
    needs="images; a fully connected layer behind convolutions, no more examples than it has neurons",
    paper="Kariyappa et al. 2023, section 4",
    cost="minutes to hours (25,000 Adam steps)",
    family="unmixing by independent components",
    learned_prior=True,
)
def cpa_fia(  # noqa: D417 - the other options are those of `FeatureInversion`
    *,
    steps: int = 25_000,
    lr: float = 0.1,
    tv: float = 0.1,
    matching: float = 0.0,
    layer: str | None = None,
    mode: Literal["fast", "published"] = "fast",
    largest: int | None = None,
    search: Literal["adam", "second_order"] = "adam",
) -> FeatureInversion:
    """Cocktail Party Attack on embeddings, then feature inversion (Kariyappa et al., ICML 2023, section 4).

    `matching=0` is CPA + FIA (eq. 11), `matching=1` CPA + FIA + GMA (eq. 12); 25,000 Adam steps at 0.1 with a cosine
    schedule. The paper gives no weights; total variation 0.1 is that of the authors' VGG-16 settings.

    Deviations: embeddings come from the fast unmixing unless `mode="published"`; labels are not optimized but those
    that the unmixing gives each embedding.

    Args:
        layer: Name of the fully connected layer; None: the first one.
        mode: fast or published.
    """
    source = CocktailParty(mode=mode, layer=layer)
    return FeatureInversion(source=source, steps=steps, lr=lr, tv=tv, matching=matching, largest=largest, search=search)
