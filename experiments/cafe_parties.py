"""The parties of the CAFE studies: images, a fresh model, the server's view of a frozen one; how near guesses are."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from common import Clock, Row, clocked
from torch import Tensor

import seepage.federation.data
from seepage.attacks.cafe import Recovered
from seepage.attacks.cafe.target_layers import TargetLayer, find_target_layers, true_representations
from seepage.base.nn import frozen_randomness, generator, state_of
from seepage.federation.clients import FedSGD
from seepage.federation.models.vertical import vertical
from seepage.federation.transcript.designs import Design
from seepage.federation.transcript.vertical import IndexedTranscript, IndexedVictim, ServerStep
from seepage.federation.types import Batch, ClientView, Defense, Knowledge, Tensors, Update


def images(path: str, samples: int, seed: int, size: int | None = None) -> Batch:
    """The first N of a seeded order of a data file's images (of its training part, where it has one), at `size`."""
    data = seepage.federation.data.load(path, size=size)
    split_by_file = torch.equal(data.train, torch.arange(len(data.train)))
    count = len(data.train) if split_by_file else len(data)
    chosen = data.batch(torch.randperm(count, generator=generator(seed, "benchmark samples"))[:samples])
    return Batch(chosen.inputs, chosen.labels)


def prepare(
    data: Batch,
    design: Design,
    rounds: int,
    *,
    seed: int = 0,
    defense: Defense | None = None,
    server: ServerStep | None = None,
    model_options: dict[str, Any] | None = None,
    classes: int | None = None,
) -> IndexedVictim:
    """The parties with a fresh model."""
    shape, classes = tuple(data.inputs.shape[1:]), classes or int(data.labels.max()) + 1
    with frozen_randomness(seed):
        model = vertical(shape, classes, **(model_options or {}))
    params, buffers = state_of(model)
    knowledge = Knowledge(model, FedSGD(), shape, classes, known=frozenset({"indices"}))
    return IndexedVictim(knowledge, params, data, design, rounds, buffers, defense, seed, server or ServerStep())


@dataclass(frozen=True)
class FrozenTranscript(IndexedTranscript):
    """Gradients of a frozen model from stored features: the victim's convolutions, done once instead of per round."""

    stored: list[Tensor] = field(default_factory=list, repr=False)
    layers: list[TargetLayer] = field(default_factory=list, repr=False)
    spent: Clock = field(default_factory=Clock, repr=False)

    def select(self, t: int, names: Collection[str]) -> Tensors:
        with clocked(self.spent):
            return self._select(t, names)

    def _select(self, t: int, names: Collection[str]) -> Tensors:
        victim = self._victim
        if any(".features." in name for name in names):
            return super().select(t, names)
        chosen = victim.design.indices(t)
        model: Any = victim.knowledge.model
        leaves = {n: p.detach().requires_grad_() for n, p in victim.params.items() if n in names}
        params = victim.params | leaves
        outputs = []
        for m, party in enumerate(model.parties):
            prefix = f"parties.{m}."
            own = {n[len(prefix) :]: p for n, p in params.items() if n.startswith(prefix)}
            u = F.linear(self.stored[m][chosen], own["first.weight"], own["first.bias"])
            rest = {n[5:]: p for n, p in own.items() if n.startswith("rest.")}
            outputs.append(torch.func.functional_call(party.rest, rest, (u,)))
        logits = F.linear(torch.cat(outputs, 1), params["head.weight"], params["head.bias"])
        if model.double_softmax:
            logits = logits.softmax(1)
        loss = F.cross_entropy(logits, victim.data.labels[chosen])
        found = torch.autograd.grad(loss, list(leaves.values()))
        update = Update(dict(zip(leaves, found, strict=True)))
        view = ClientView(
            victim.knowledge.model, victim.params, victim.batch(t), victim.knowledge.client, victim.buffers, t
        )
        return victim._client.defended(update, view, t).tensors


def frozen(victim: IndexedVictim) -> FrozenTranscript:
    """The server's view of a frozen victim, with its features stored."""
    layers = find_target_layers(victim.knowledge, victim.params)
    stored = []
    with torch.no_grad():
        for layer in layers:
            blocks = victim.data.inputs[(slice(None), *layer.block)]
            parts = [
                layer.features(victim.knowledge.model, victim.params, victim.buffers, part) for part in blocks.split(50)
            ]
            stored.append(torch.cat(parts))
    return FrozenTranscript(victim.knowledge, victim, stored, layers)


def truth(victim: IndexedVictim) -> list[tuple[Tensor, Tensor]]:
    """The true V and H of each party."""
    parts = [
        true_representations(victim.knowledge, victim.params, victim.buffers, x, y)
        for x, y in zip(victim.data.inputs.split(100), victim.data.labels.split(100), strict=True)
    ]
    return [tuple(torch.cat(rows) for rows in zip(*one, strict=True)) for one in zip(*parts, strict=True)]  # type: ignore[misc]


def relative(guess: Tensor, true: Tensor) -> float:
    """Relative Frobenius error."""
    return float((guess.double() - true.double()).norm() / true.double().norm())


def rounded(value: float, digits: int = 3) -> float:
    """A number short enough to read."""
    return float(f"{value:.{digits}g}")


def within_cases(guess: Tensor, true: Tensor, group: Tensor) -> Tensor:
    """For each guess the number of the true row it stands for, matched inside its case only."""
    from scipy.optimize import linear_sum_assignment

    match = torch.arange(len(guess))
    for number in group.unique():
        members = (group == number).nonzero().squeeze(1)
        if len(members) > 1:
            distance = torch.cdist(guess[members].double(), true[members].double())
            rows, columns = linear_sum_assignment(distance.numpy())
            match[members[rows]] = members[columns]
    return match


def errors(found: list[Recovered], true: list[tuple[Tensor, Tensor]]) -> Row:
    """Relative errors of V and H over all parties and samples known at all of them; cases are matched as one.

    A silent part counts as known: its v is zero, and its h is left out.
    """
    ready = torch.stack([one.known | one.zero_gradient for one in found]).all(0)
    known = torch.stack([one.known for one in found]).all(0)
    rows = ready.nonzero().squeeze(1)
    heard = [(~one.zero_gradient[rows]).double()[:, None] for one in found]
    guess_h = torch.cat([one.h[rows] * live for one, live in zip(found, heard, strict=True)], 1)
    all_h = torch.cat([h[rows].double() * live for (_, h), live in zip(true, heard, strict=True)], 1)
    places = within_cases(guess_h, all_h, found[0].group[rows])
    guess_v = torch.cat([one.v[rows] for one in found], 1)
    true_v = torch.cat([v[rows[places]].double() for v, _ in true], 1)
    true_h = all_h[places]
    worst = (guess_h - true_h).norm(dim=1) / true_h.norm(dim=1).clamp(min=1e-12)
    return {
        "identifiable": int(known.sum()),
        "identifiable_or_silent": int(ready.sum()),
        "silent_parts": int(sum(one.zero_gradient.sum() for one in found)),
        "error_v": rounded(relative(guess_v, true_v)),
        "error_h": rounded(relative(guess_h, true_h)),
        "error_h_worst": rounded(float(worst.max())),
        "wrong": int((worst > 1e-2).sum()),
        "swapped_in_cases": int((places != torch.arange(len(rows))).sum()),
    }


def quality(guess: Tensor, true: Tensor) -> Row:
    """Mean over images of their PSNR on [0, 1], clamped, and who is exact."""
    guess = guess.clamp(0, 1)
    psnr = -10 * (guess - true).pow(2).flatten(1).mean(1).clamp(min=1e-15).log10()
    same = ((guess * 255).round() == (true * 255).round()).flatten(1).all(1)
    return {
        "psnr": rounded(float(psnr.mean()), 4),
        "psnr_median": rounded(float(psnr.median()), 4),
        "psnr_min": rounded(float(psnr.min()), 4),
        "exact": rounded(float((psnr > 40).float().mean()), 4),
        "pixel_exact": rounded(float(same.float().mean()), 4),
    }
