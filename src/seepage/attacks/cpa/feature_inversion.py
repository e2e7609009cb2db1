"""Feature inversion: find images whose embeddings are those that CPA recovers (CPA+FIA, CPA+FIA+GMA)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from seepage.attacks.base import Attack, Checkpoint, Inapplicable, Needs, Progress
from seepage.attacks.cpa.cocktail_party import CocktailParty, Mixed
from seepage.attacks.decoding import Decoder, NaturalSpectrum
from seepage.attacks.matching.distances import Cosine
from seepage.attacks.matching.labels import LABEL_RULES
from seepage.attacks.matching.optimizers import Adam, Schedule, make_schedule
from seepage.attacks.matching.problem import Problem
from seepage.core.checkpoint import history_in, pack, record_interval, run_steps, unpack
from seepage.core.nn import calls_in_pass, generator
from seepage.registry import attacks
from seepage.types import Knowledge, Reconstruction, Round, Status, Tensors, Transcript

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
        chunk: Images per forward pass.
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
    chunk: int = 64
    schedule: Schedule = "cosine"
    search: Literal["adam", "second_order"] = "adam"

    @property
    def passes(self) -> int:
        return self.steps

    def examine(self, transcript: Transcript) -> Mixed:
        mixed: Mixed = self.source.prepare(transcript)
        if mixed.layer.reads_input is not None:
            raise Inapplicable(
                "the fully connected layer reads the input itself, so there is no embedding to invert",
                "use cocktail_party alone",
            )
        if self.search == "second_order" and self.matching > 0:
            raise Inapplicable(
                "the second-order search matches embeddings alone", "set matching to 0, or search to adam"
            )
        if self.matching > 0 and mixed.observed.batch_size is None:
            raise Inapplicable("matching the gradient needs the batch size", "name it, or set matching to 0")
        if self.matching > 0 and LABEL_RULES["auto"](mixed.observed, mixed.knowledge) is None:
            raise Inapplicable("no rule can read this batch's labels to match its gradient", "set matching to 0")
        return mixed

    def run(self, mixed: Mixed, *, seed: int, progress: Progress) -> Reconstruction:
        knowledge, observed, layer = mixed.knowledge, mixed.observed, mixed.layer
        kept = progress.load()
        kept = kept if kept is not None and kept.facts.get("stage") == "images" else None
        found = self._embeddings(mixed, seed, progress) if kept is None else _unpacked(kept)
        if found.status == "interrupted":
            raise KeyboardInterrupt  # interrupted before there was any image
        network = Embedding(knowledge.model, layer.name, observed.params, observed.buffers)
        kind = _Inversion if self.search == "adam" else _SecondOrder
        inversion = kind(self, knowledge, observed, network, found, seed)
        first = 0 if kept is None else inversion.resume(kept)

        def record(step: int, value: float) -> None:
            inversion.record(step, value, progress)

        step, interrupted = run_steps(first, inversion.total, lambda step: inversion.step(), record, every=1)
        status: Status = "interrupted" if interrupted else "exhausted"
        objective = inversion.mismatch()
        return Reconstruction(
            inputs=inversion.images.detach(),
            objective=objective,
            status=status,
            history=tuple(inversion.history),
            cost={"steps": step, "evaluations": step},
            notes=(*found.notes, f"embeddings agree to a mean cosine of {1 - float(objective.mean()):.4f}"),
        )

    def _embeddings(self, mixed: Mixed, seed: int, progress: Progress) -> Reconstruction:
        """The embeddings that the source recovers, at most `largest` of them, those of best certificate first."""
        found = self.source.run(mixed, seed=seed, progress=_FirstStage(progress))
        if self.largest is None:
            return found
        objective = torch.zeros(len(found)) if found.objective is None else found.objective
        best = objective.argsort(stable=True)[: self.largest]
        labels = None if found.labels is None else found.labels[best]
        return replace(found, inputs=found.inputs[best], labels=labels, objective=None, certified=None)


@dataclass(frozen=True)
class _FirstStage:
    """Progress of the search for embeddings; it marks its checkpoints to distinguish them from those of the images."""

    whole: Progress

    def report(self, done: int, total: int, objective: float) -> None:
        self.whole.report(done, total, objective)

    def load(self) -> Checkpoint | None:
        kept = self.whole.load()
        return kept if kept is not None and kept.facts.get("stage") == "embeddings" else None

    def save(self, checkpoint: Checkpoint) -> None:
        self.whole.save(Checkpoint(checkpoint.tensors, {**checkpoint.facts, "stage": "embeddings"}))


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
        known: `[k]` the label of each embedding, where its source could tell.
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


class _Inversion:
    """Images, optimizer and objective of one call."""

    def __init__(
        self,
        attack: FeatureInversion,
        knowledge: Knowledge,
        observed: Round,
        network: Embedding,
        found: Reconstruction,
        seed: int,
    ) -> None:
        self.attack, self.network, self.found, self.targets = attack, network, found, found.inputs
        self.low, self.high = knowledge.value_range
        count = len(self.targets)
        if attack.matching > 0:
            assert observed.batch_size is not None  # `check` refused it
            count = observed.batch_size
        # Start from N(middle, (range / 4)^2), clamped to the value range. [k, *shape]
        start = torch.randn((count, *knowledge.input_shape), generator=generator(seed, "images")).to(self.targets)
        middle, spread = (self.low + self.high) / 2, (self.high - self.low) / 4
        self.images = (middle + spread * start).clamp(self.low, self.high).requires_grad_()
        self.optimizer = Adam(lr=attack.lr * spread).make([self.images])
        self.schedule = make_schedule(self.optimizer, attack.schedule, attack.steps)
        self.history: list[tuple[int, float]] = []
        self.problem: Problem | None = None
        self.labels: Tensor | None = None
        if attack.matching > 0:
            self.problem = Problem.of(observed, knowledge, Cosine(), attack.chunk)
            self.labels = in_order(found.labels, LABEL_RULES["auto"](observed, knowledge))

    @property
    def total(self) -> int:
        """Calls of `step`."""
        return self.attack.steps

    def resume(self, kept: Checkpoint) -> int:
        """Continue from a checkpoint; returns the number of steps that it had made."""
        with torch.no_grad():
            self.images.copy_(kept.tensors["images"])
        self.optimizer.load_state_dict(unpack(kept.facts["optimizer"], kept.tensors))
        step = int(kept.facts["step"]) - self.attack.source.steps
        self.schedule.last_epoch, self.schedule._last_lr = step, kept.facts["last_lr"]
        self.history = history_in(kept.facts)
        return step

    def record(self, step: int, value: float, progress: Progress) -> None:
        """Report the progress every hundredth of the steps, and save a checkpoint every `SAVE_INTERVAL` steps."""
        if step % record_interval(self.attack.steps) == 0 or step == self.attack.steps:
            self.history.append((step, value))
            progress.report(step, self.attack.steps, value)
        if step % SAVE_INTERVAL == 0 or step == self.attack.steps:
            progress.save(self._checkpoint(step))

    def _checkpoint(self, step: int) -> Checkpoint:
        tensors: Tensors = {"images": self.images.detach().clone(), "found/inputs": self.targets}
        if self.found.labels is not None:
            tensors["found/labels"] = self.found.labels
        facts = {
            # Counts on from the first stage, so that every checkpoint of a run has a number of its own.
            "step": self.attack.source.steps + step,
            "stage": "images",
            "history": list(self.history),
            "notes": list(self.found.notes),
            "last_lr": self.schedule.get_last_lr(),
            "optimizer": pack(self.optimizer.state_dict(), "optimizer", tensors),
        }
        return Checkpoint(tensors, facts)

    def step(self) -> float:
        """One Adam step; returns the mean objective before it."""
        total, gradients = 0.0, []
        # Eq. 11 is a sum over images, so its gradient is computed chunk by chunk. [chunk, *shape]
        for part, target in zip(
            self.images.detach().split(self.attack.chunk), self._padded().split(self.attack.chunk), strict=True
        ):
            leaf = part.requires_grad_()
            value = self._objective(leaf, target).sum()
            gradients.append(torch.autograd.grad(value, leaf)[0])
            total += value.item()
        gradient = torch.cat(gradients)  # [k, *shape]
        if self.problem is not None and self.labels is not None:
            # Eq. 12 adds matching * (1 - cos(grad L(images), update)), a term of all images together.
            matched = self.problem.evaluate(self.images.detach(), self.labels)
            gradient = gradient + self.attack.matching * matched.by_inputs
            total += self.attack.matching * matched.value
        self.images.grad = gradient
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():  # projection to the value range
            self.images.clamp_(self.low, self.high)
        return total / len(self.images)

    def _padded(self) -> Tensor:
        """`[k, e]` target embeddings, with zero rows for images that have none."""
        missing = len(self.images) - len(self.targets)
        return torch.cat([self.targets, self.targets.new_zeros(missing, self.targets.shape[1])])

    def _objective(self, images: Tensor, targets: Tensor) -> Tensor:
        """`[k]` eq. 11: one minus cosine, plus total variation in units of a quarter of the value range."""
        known = targets.abs().amax(1) > 0
        apart = 1 - torch.nn.functional.cosine_similarity(self.network(images), targets)
        # TV = mean |x[i, j+1] - x[i, j]| + mean |x[i+1, j] - x[i, j]|. `neighbor_differences` is not used because it
        # adds the two gradients in the other order, which rounds differently.
        across = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1).mean(1)
        down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
        return apart.where(known, 0.0) + self.attack.tv * 4 / (self.high - self.low) * (across + down)

    def mismatch(self) -> Tensor:
        """`[k]` one minus the cosine of embeddings."""
        with torch.no_grad():
            parts = [self.network(part) for part in self.images.detach().split(self.attack.chunk)]
        found: Tensor = 1 - torch.nn.functional.cosine_similarity(torch.cat(parts), self._padded())
        return found


class _SecondOrder(_Inversion):
    """The same by L-BFGS, in coefficients of a natural spectrum: `x = 1/2 + K u`, in units of the value range.

        |f(x) - t|^2 / |t|^2 + mu |u|^2 / d + |x - clamp(x)|^2 / d,        mu from `FADING`, first to last

    An optimizer is made anew for each step of `ITERATIONS` iterations, so that images alone are a checkpoint.
    """

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        shape, count = tuple(self.images.shape[1:]), len(self.targets)
        self.spectrum = NaturalSpectrum(shape).to(self.images)
        start = 0.5 + 0.04 * (self._unit()[:count] - 0.5)  # near mid-grey
        if self.targets.shape[1] * self.images[0].numel() <= MOST_COEFFICIENTS:
            draw = generator(parts[-1], "decoder")
            start = Decoder(self._maps, shape, draw, at_once=min(16, self.attack.chunk))(self.targets[:, :, None, None])
        with torch.no_grad():
            self.images[:count].copy_(self.low + (self.high - self.low) * start)
        self.done = 0

    def _unit(self) -> Tensor:
        """The images in units of the value range."""
        return (self.images.detach() - self.low) / (self.high - self.low)

    def _maps(self, unit: Tensor) -> Tensor:
        """Features without positions `[n, e, 1, 1]` of images in [0, 1]."""
        return self.network(self.low + (self.high - self.low) * unit)[:, :, None, None]

    @property
    def total(self) -> int:
        return max(1, self.attack.steps // ITERATIONS)

    def resume(self, kept: Checkpoint) -> int:
        with torch.no_grad():
            self.images.copy_(kept.tensors["images"])
        self.history = history_in(kept.facts)
        self.done = int(kept.facts["step"]) - self.attack.source.steps
        return self.done

    def record(self, step: int, value: float, progress: Progress) -> None:
        self.history.append((step, value))
        progress.report(step, self.total, value)
        facts = {"stage": "images", "step": self.attack.source.steps + step, "history": list(self.history)}
        tensors: Tensors = {"images": self.images.detach().clone(), "found/inputs": self.targets}
        if self.found.labels is not None:
            tensors["found/labels"] = self.found.labels
        progress.save(Checkpoint(tensors, {**facts, "notes": list(self.found.notes)}))

    def step(self) -> float:
        mu = FADING[min(len(FADING) * self.done // self.total, len(FADING) - 1)]
        self.done += 1
        unit = self._unit()
        values = []
        for part, target in zip(unit.split(self.attack.chunk), self.targets.split(self.attack.chunk), strict=True):
            images, value = self._searched(part, target, mu)
            part.copy_(images)
            values.append(value)
        with torch.no_grad():
            self.images.copy_(self.low + (self.high - self.low) * unit)
        return sum(values) / len(self.images)

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
def cpa_fia(
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
    """
    source = CocktailParty(mode=mode, layer=layer)
    return FeatureInversion(source=source, steps=steps, lr=lr, tv=tv, matching=matching, largest=largest, search=search)
