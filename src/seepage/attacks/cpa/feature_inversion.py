"""Feature inversion: find images whose embeddings are those that CPA recovers (CPA+FIA, CPA+FIA+GMA)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Checkpoint, Needs, Progress, refuse
from seepage.attacks.cpa.cocktail_party import CocktailParty
from seepage.attacks.cpa.fast import Mixed
from seepage.attacks.cpa.feature_distance import Embedding, FeatureDistance, NormalPixels
from seepage.attacks.reading.decoding import AT_ONCE
from seepage.attacks.search.distances import Cosine
from seepage.attacks.search.engine import GradientMatching
from seepage.attacks.search.labels import LABEL_RULES
from seepage.attacks.search.objective import MatchingObjective
from seepage.attacks.search.optimizers import Adam, Schedule
from seepage.attacks.search.priors import TotalVariation
from seepage.attacks.search.problem import Problem
from seepage.base.registry import attacks
from seepage.federation.types import Knowledge, Reconstruction, Round, Transcript

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
        matching: Weight of the gradient's cosine beside the mean cosine of embeddings (eq. 12); the authors' is 1; 0:
            eq. 11.
        schedule: Learning rate over the steps.

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
    schedule: Schedule = "cosine"

    def examine(self, transcript: Transcript) -> Mixed:
        attacked, layer = self.source.prepare(transcript)
        if layer.reads_input is not None:
            raise refuse("no_embedding")(
                "the fully connected layer reads the input itself, so there is no embedding to invert",
                "use cocktail_party alone",
            )
        observed = attacked.observed
        if self.matching > 0 and observed.batch_size is None:
            raise refuse("no_batch_size")("matching the gradient needs the batch size", "name it, or set matching to 0")
        if self.matching > 0 and LABEL_RULES["auto"](observed, attacked.knowledge) is None:
            raise refuse("no_labels")("no rule can read this batch's labels to match its gradient", "set matching to 0")
        return attacked, layer

    def run(self, mixed: Mixed, *, seed: int, progress: Progress) -> Reconstruction:
        attacked, layer = mixed
        knowledge, observed = attacked.knowledge, attacked.observed
        kept = _Stage(progress, "images").load()
        if kept is None:
            found = self.source.run(mixed, seed=seed, progress=_Stage(progress, "embeddings"))
        else:  # a resumed run need not compute the embeddings again
            labels, notes = kept.tensors.get("found/labels"), tuple(kept.facts["notes"])
            found = Reconstruction(kept.tensors["found/inputs"], labels, space="feature", notes=notes)
        if found.status == "interrupted":
            raise KeyboardInterrupt  # interrupted before there was any image
        embeddings = {"found/inputs": found.inputs} | ({} if found.labels is None else {"found/labels": found.labels})
        images = _Stage(progress, "images", self.source.steps, Checkpoint(embeddings, {"notes": list(found.notes)}))
        features = FeatureDistance(
            network=Embedding(knowledge.model, layer.name, observed.params, observed.buffers), targets=found.inputs
        )
        made = self._matched(features, knowledge, observed, found.labels, seed, images)
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

        As in the authors' code the terms of embeddings and of total variation are means over the images, and beside
        them stands the whole cosine of the one update.
        """
        low, high = knowledge.value_range
        spread = (high - low) / 4
        count = len(features.targets)
        if self.matching > 0:
            assert observed.batch_size is not None  # `examine` refused it
            count = observed.batch_size
            counted = LABEL_RULES["auto"](observed, knowledge)
            features = replace(features, update=Problem.of(observed, knowledge, self.matching * Cosine(), AT_ONCE))
            labels = in_order(labels, counted)
        search = GradientMatching(
            distance=Cosine(),
            optimizer=Adam(lr=self.lr),
            steps=self.steps,
            # Normal about the middle of the value range; a quarter of the range is one unit of the search.
            parameters=NormalPixels(mean=(low + high) / 2, std=spread, seed=seed),
            schedule=self.schedule,
            project=True,
            tolerance=0.0,
        )
        priors = (TotalVariation(self.tv, unit=spread),)
        objective = MatchingObjective(features, knowledge, replace(observed, batch_size=count), priors, ())
        given = torch.zeros(count, dtype=torch.int64) if self.matching == 0 or labels is None else labels
        made = search.minimize(objective, given, seed=seed, progress=progress, every=SAVE_INTERVAL)
        return replace(made, status="exhausted") if made.status == "ok" else made


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
    return FeatureInversion(source=source, steps=steps, lr=lr, tv=tv, matching=matching)
