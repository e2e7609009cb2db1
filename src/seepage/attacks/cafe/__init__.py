"""CAFE: recover whole data sets from vertical federated learning, where every batch's indices are known.

Jin et al., "CAFE: Catastrophic Data Leakage in Vertical Federated Learning", NeurIPS 2021. Step I finds each sample's
gradient at the first fully connected layer, step II the layer's input, step III the sample itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from seepage.attacks.base import Attack, Needs, Progress, refuse
from seepage.attacks.cafe import closed_form, defense_aware, subspaces
from seepage.attacks.cafe.invert import CERTAIN, InversionSettings
from seepage.attacks.cafe.label_inference import infer_labels
from seepage.attacks.cafe.step_three import ReadRounds, StepThree
from seepage.attacks.cafe.steps import (
    Recovered,
    determined,
    identifiable,
    mean_table,
    open_rounds,
    params_of,
    weights_move,
    window,
)
from seepage.attacks.cafe.target_layers import true_representations
from seepage.base.nn import in_mode
from seepage.base.registry import attacks
from seepage.federation.types import Knowledge, Reconstruction, Tensors, Transcript

__all__ = ["Cafe", "InversionSettings", "true_representations"]

MAX_DRIFT = 0.05
"""Largest relative change of all weights over the used rounds for which the attack corrects."""
CONSISTENT_MISFIT, MAX_SWAP_MISFIT = 1e-2, 0.05
"""Relative misfit of v with h, label and weights up to which they are reported as consistent, and above which a sample
that was separated inside a cohort may be mixed up with another and is dropped."""
SOLVED_SHARE = 0.99
"""Share of the identifiable samples that must be certain for the attack to have ended as it should."""


@attacks.register(
    "cafe",
    paper="Jin et al. 2021",
    cost="seconds to minutes (linear algebra, then each sample by itself)",
    family="many rounds of one data set",
)
@dataclass(frozen=True, kw_only=True)
class Cafe(Attack):
    """Recover all samples of all parties from rounds with known indices, as exactly as the rounds allow.

    With as many independent rounds as samples, step I is least squares and step II a small solve per batch
    (`least_squares`). With far fewer rounds a sample is found where the spans of its rounds' weight gradients meet
    (`few_rounds`): three epochs, or two where the features are non-negative with zeros, as after ReLU. Step III then
    inverts each sample's features by itself. Nothing needs the truth: a rank deficit is reported as samples that are
    not identifiable, and the residual of step III certifies each sample.

    Where the weights move, the first few rounds are used, by `few_rounds`: what the moves do to the features is
    computed from the guessed samples and taken out, again and again (see `moving`). That holds for small learning
    rates.

    Args:
        mode: `auto` takes least squares where the rounds determine every drawn sample, else few rounds.
        samples: N; None takes the largest index.
        weight_rounds: Least squares: covers of the samples whose weight gradients are read; 0 reads all rounds,
            which averages noise away.
        steps: Robust steps of each attempt of step III; later attempts are for samples that are not certain yet.
        polish: Gauss-Newton steps at most after each attempt; 0 leaves the search's guess as it is.
        corrections: Where the weights move: how often h is corrected by what the inputs say of the moves.
        entries: `unforged` is the attacker who knows that fake gradients (Algorithm 5 as written) were sent: only
            entries that may be true are used (see `defense_aware`). Needs about four times N rounds. `auto` does so
            where the attacker knows of that defense, and uses `all` entries else.

    Example:
        >>> Cafe(mode="few_rounds").steps
        (30, 250, 350)
    """

    needs: ClassVar[Needs] = Needs(
        text="rounds over one data set with known indices; a fully connected layer with bias at each party"
    )
    rounds: ClassVar[Literal["one", "all"]] = "all"

    mode: Literal["auto", "least_squares", "few_rounds"] = "auto"
    samples: int | None = None
    weight_rounds: int = 1
    steps: Sequence[int] = (30, 250, 350)
    polish: int = 6
    corrections: int = 4
    entries: Literal["auto", "all", "unforged"] = "auto"

    def examine(self, transcript: Transcript) -> ReadRounds:
        """The target layers and the batches' indices after validation; repeated batches are dropped."""
        opening = open_rounds(transcript, self.samples)
        unforged = self._unforged(transcript.knowledge)
        seen: set[tuple[int, ...]] = set()
        fresh = []
        for t, batch in enumerate(opening.batches):
            key = tuple(sorted(batch.tolist()))
            # Forged or noisy updates differ between rounds even if the batch is the same.
            if key not in seen or unforged:
                fresh.append(t)
            seen.add(key)
        moving = weights_move(transcript)
        repeats = len(opening.batches) - len(fresh)
        if moving and unforged:
            raise refuse("weights_change")(
                "the weights move, and entries='unforged' takes them as fixed", "use rounds of one model"
            )
        if moving and self.mode == "auto":
            fresh = fresh[: window([opening.batches[t] for t in fresh], opening.samples)]
        if moving:
            _refuse_training(transcript, opening.params, fresh[-1])
        batches = [opening.batches[t] for t in fresh]
        own = {**vars(opening), "numbers": fresh, "batches": batches}
        return ReadRounds(**own, repeats=repeats, moving=moving, total=len(opening.batches))

    def adapts(self, knowledge: Knowledge) -> bool:
        """Whether it sets forged entries aside because it knows that some are sent."""
        return self.entries == "auto" and self._unforged(knowledge)

    def _unforged(self, knowledge: Knowledge) -> bool:
        if self.entries != "auto":
            return self.entries == "unforged"
        stated = () if knowledge.defense is None else knowledge.defense.attacker_models(knowledge.model)
        return any(model.forges for model in stated)

    def recover(self, transcript: Transcript) -> list[Recovered]:
        """Steps I and II alone: V and H of every party."""
        return self._recover(self.prepare(transcript))[0]

    def _recover(self, view: ReadRounds) -> tuple[list[Recovered], tuple[Tensor, Tensor] | None]:
        found = self._steps(view)
        inferred = None
        if view.knowledge.softmax_labels:
            inferred = infer_labels(view.knowledge.model, view.params, view.layers, found)
        if inferred is not None and not view.moving:
            # Samples separated inside a cohort stay only if h, v, weights and one label are consistent at all parties.
            group = found[0].group
            wrong = (group.bincount()[group] > 1) & ~(inferred[1] < MAX_SWAP_MISFIT)
            for one in found:
                one.known &= ~wrong
        return found, inferred

    def _steps(self, view: ReadRounds) -> list[Recovered]:
        if self._unforged(view.knowledge):
            return defense_aware.solve(view)
        if self._least_squares(view):
            return closed_form.solve(view, weight_rounds=self.weight_rounds)
        return subspaces.solve(view, moving=view.moving)

    def _least_squares(self, view: ReadRounds) -> bool:
        if self.mode != "auto" or view.moving:
            return self.mode == "least_squares"
        table = mean_table(view.batches, view.samples)
        drawn = table.sum(0) > 0
        return len(table) >= int(drawn.sum()) and bool(determined(table)[drawn].all())

    def run(self, view: ReadRounds, *, seed: int, progress: Progress) -> Reconstruction:
        with in_mode(view.knowledge.model, training=False):  # once for the thousands of small passes of step III
            return self._found(view, seed, progress)

    def _found(self, view: ReadRounds, seed: int, progress: Progress) -> Reconstruction:
        found, inferred = self._recover(view)
        notes = _notes(view, found, inferred)
        chosen = identifiable(found).nonzero().squeeze(1)
        if not len(chosen):
            raise refuse("too_few_rounds")(
                f"the rounds determine none of {view.samples} samples at all {len(view.layers)} parties",
                "record more rounds (three epochs, each shuffled anew, are enough)",
            )
        labels = None
        if inferred is not None and bool((inferred[0][chosen] >= 0).all()):
            labels = inferred[0][chosen]
        third = StepThree(view, found, chosen, tuple(self.steps), self.polish, self.corrections, seed)
        inputs, residuals = third.inverted(progress)
        if view.moving and self.corrections:
            inputs, residuals = third.followed(inputs)
        sure = int((residuals <= CERTAIN).sum())
        notes += (f"{sure} of {len(chosen)} samples are certain: their features fit to {CERTAIN:g}",)
        return Reconstruction(
            inputs=inputs,
            labels=None if labels is None else labels.to(inputs.device),
            indices=chosen.to(inputs.device),
            ambiguity=_open(found, chosen),
            objective=residuals.to(inputs.device),
            certified=(residuals <= CERTAIN).to(inputs.device),
            inner=_inner(found, chosen),
            status="ok" if sure >= SOLVED_SHARE * len(chosen) else "exhausted",
            cost={"rounds": len(view) + view.repeats},
            notes=notes,
        )

    def inner_at(self, transcript: Transcript, inputs: Tensor, labels: Tensor) -> Tensors:
        first = transcript[0]
        pairs = true_representations(transcript.knowledge, first.params, first.buffers, inputs, labels)
        return {"v": torch.cat([v for v, _ in pairs], 1), "h": torch.cat([h for _, h in pairs], 1)}


def _inner(found: Sequence[Recovered], chosen: Tensor) -> Tensors:
    """V and H of all parties, concatenated; NaN where a party's part is not known."""
    v = [one.v[chosen].masked_fill(~one.v_known[chosen, None], torch.nan) for one in found]
    h = [one.h[chosen].masked_fill(~one.known[chosen, None], torch.nan) for one in found]
    return {"v": torch.cat(v, 1), "h": torch.cat(h, 1)}


def _refuse_training(transcript: Transcript, first: Tensors, last: int) -> None:
    params = params_of(transcript, last)
    # Relative to all weights together, since biases start at zero and their own relative change is unbounded.
    change = sum(float((params[name] - p).pow(2).sum()) for name, p in first.items())
    drift = (change / sum(float(p.pow(2).sum()) for p in first.values())) ** 0.5
    if drift > MAX_DRIFT:
        raise refuse("weights_change")(
            f"the weights change by {drift:.0%} between round 0 and round {last}, too much to follow",
            "use a window of fewer rounds (few_rounds needs two or three epochs)",
        )


def _open(found: Sequence[Recovered], chosen: Tensor) -> frozenset[Literal["order", "sign", "scale"]]:
    """Whether the order of samples is ambiguous: it is only among samples that share all their rounds."""
    group = found[0].group[chosen]
    return frozenset({"order"}) if len(group.unique()) < len(group) else frozenset()


def _notes(view: ReadRounds, found: Sequence[Recovered], inferred: tuple[Tensor, Tensor] | None) -> tuple[str, ...]:
    known = identifiable(found)
    silent = torch.stack([one.zero_gradient for one in found]).any(0)
    live = torch.cat([(one.h[one.known] > 0).double().mean(1) for one in found])
    notes = [
        f"{int(known.sum())} of {view.samples} samples are identifiable at all {len(found)} parties "
        f"from {len(view)} different rounds"
    ]
    if len(live):
        notes.append(f"of each sample's features {live.mean():.0%} are live (at least {live.min():.0%})")
    undrawn = view.samples - len(torch.cat(view.batches).unique())
    if undrawn:
        notes.append(f"{undrawn} samples were never drawn and cannot be known")
    if view.moving:
        notes.append(f"the weights move, so the first {len(view)} of {view.total} rounds are used")
    if view.repeats:
        notes.append(f"{view.repeats} rounds repeat the batch of another and were left out")
    if bool(silent.any()):
        notes.append(f"{int(silent.sum())} samples are silent at some party (v = 0): the darkest input stands in there")
    group = found[0].group[known]
    shared = int(known.sum()) - int((group.unique(return_counts=True)[1] == 1).sum())
    if shared:
        notes.append(f"{shared} samples share all their rounds with another and may be swapped with it")
    if inferred is not None:
        fits = inferred[1] < CONSISTENT_MISFIT
        notes.append(f"h, v, weights and label agree for {int(fits.sum())} samples")
    return tuple(notes)
