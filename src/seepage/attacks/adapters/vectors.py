"""Examples behind an adapted layer that reads the input itself: the lifted gradient, unmixed and made to fit.

    G = (1/n) D^T U        D: [n, m] errors in the layer's outputs, U: [n, d] what the layer reads of each example

G has rank n <= r. Its row space is that of U. For one example U is known but for a factor; for several the rows are
unmixed first. What is left, factors, labels and the errors of the unmixing, the network itself decides: D is what its
own backward pass gives at U, and U is the least-squares solution of `D^T U = n G`, in turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from seepage.attacks.base import Progress, SingleRound, refuse
from seepage.attacks.cpa import CocktailParty
from seepage.attacks.network import AttackedRound, best_labels, in_range, relative_mismatch
from seepage.base.adapters import AdaptedLayer, lifted
from seepage.base.algebra.lowrank import low_rank
from seepage.base.nn import InputLayer
from seepage.base.rounding import FLOAT64_FLOOR
from seepage.base.solvers import MOST_STEPS
from seepage.federation.types import Round, Transcript, Update

FACTORS = 48
"""Factors tried, of each sign, for an example of unknown scale."""
REWEIGHTED = 12
"""Solves for the inputs in each turn, of reweighted rows."""


@dataclass(frozen=True)
class AdapterInputs:
    """An adapted layer that reads the input.

    Attributes:
        attacked: The round.
        layer: The adapted layer.
        reads: How it reads the model's input.
        n: Examples.
    """

    attacked: AttackedRound
    layer: AdaptedLayer
    reads: InputLayer
    n: int

    @cached_property
    def _lift(self) -> tuple[Tensor, float]:
        sent, params = self.attacked.gradient, self.attacked.observed.params
        down, up = self.layer.down, self.layer.up
        return lifted(sent[down], sent[up], params[down], params[up], self.layer.scale, self.n)

    @property
    def gradient(self) -> Tensor:
        """`[m, d]` G, float64."""
        return self._lift[0]

    @property
    def contradiction(self) -> float:
        """How far the two gradients contradict each other."""
        return self._lift[1]

    @cached_property
    def whole(self) -> Round:
        """The round as if the frozen weight had been trained too: its gradient beside those that were sent."""
        assert self.layer.base is not None
        weight, observed = self.attacked.model.get_parameter(self.layer.base).detach(), self.attacked.observed
        sent = Update({**self.attacked.gradient, self.layer.base: self.gradient.to(weight)})
        return replace(observed, params={**observed.params, self.layer.base: weight}, update=sent)

    def start(self, seed: int, progress: Progress) -> Tensor:
        """`[n, d]` what the layer reads of each example, each up to a factor."""
        row_space = low_rank(self.gradient, sources=self.n).right[: self.n]  # R [n, d]
        if self.n == 1:
            return row_space
        assert self.layer.base is not None
        party = CocktailParty(layer=self.layer.base.removesuffix(".weight"), polish=False)
        rule = self.attacked.knowledge.client.first_order_rule()
        seen: Transcript = SingleRound(replace(self.attacked.knowledge, client=rule), self.whole)
        found = party(seen, seed=seed, progress=progress).inputs.double()
        if len(found) != self.n:
            raise refuse("examples_missing")(
                f"unmixing gives {len(found)} of {self.n} examples", "use a matching attack such as inverting_gradients"
            )
        # Images were stretched to the value range; of what the layer reads of them only the row space is kept.
        read = found.flatten(1) * self.reads.scale + self.reads.shift  # [n, d]
        return read @ row_space.T @ row_space


class Fit:
    """The fixed point of U and D for one adapted layer."""

    def __init__(self, seen: AdapterInputs) -> None:
        self.seen, self.n = seen, seen.n
        self.knowledge = seen.attacked.knowledge
        self.target = seen.n * seen.gradient  # D^T U [m, d]
        self.basis = low_rank(seen.gradient, sources=self.n).right[: self.n]  # [n, d]

    def __call__(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """What the layer reads `[n, d]`, labels `[n]`, mismatches `[n]`, and after how many turns.

        The mismatch of an example is the relative difference of its errors in the layer's outputs, as G shows them,
        from those of the network's own backward pass.
        """
        read, labels = self._scaled(start)
        stated = self.seen.attacked.observed.labels
        if stated is not None and self.n == 1:
            labels = stated
        best = read, labels, self._mismatch(read, labels), 0
        for turn in range(1, MOST_STEPS + 1):  # each halves the error, or more
            errors = self._errors(read, labels)  # D [n, m]
            following = self._inputs(errors)
            moved = float((following - read).norm() / following.norm().clamp(min=1e-300))
            read = following
            if not bool(read.isfinite().all()):
                break
            mismatch = self._mismatch(read, labels)
            if float(mismatch.max()) <= float(best[2].max()):
                best = read, labels, mismatch, turn
            if moved < FLOAT64_FLOOR:
                break
        return best

    def _inputs(self, errors: Tensor) -> Tensor:
        """`[n, d]` U with `D^T U = n G`, by least absolute rows: with the right D exactly the inputs.

        A unit that is on for a guess and off for the example behind it makes one row of D wrong, and no other.
        """
        rows, wanted = errors.T, self.target @ self.basis.T  # D^T [m, n], in the coordinates of G's row space [m, n]
        # U = C R with R the basis of G's row space [n, d]: n^2 unknowns C in place of n d.
        weights = rows.new_ones(len(rows), 1)
        for _ in range(REWEIGHTED):
            found = torch.linalg.lstsq(weights * rows, weights * wanted).solution  # [n, n]
            off = (rows @ found - wanted).norm(dim=1, keepdim=True)
            # min sum_j |row_j|: weights 1 / sqrt(|row_j|) on rows of the square loss. A hundredth of the median keeps
            # rows that fit to rounding from outweighing all others.
            weights = (off + off.median() * 1e-2 + 1e-300).rsqrt()
        inputs: Tensor = found @ self.basis
        return inputs

    def _shown(self, read: Tensor) -> Tensor:
        """`[m, n]` the errors that G shows of each row: `D^T = (n G) U^+`."""
        shown: Tensor = self.target @ torch.linalg.pinv(read)
        return shown

    def _mismatch(self, read: Tensor, labels: Tensor) -> Tensor:
        return relative_mismatch(self._errors(read, labels), self._shown(read).T)

    def _scaled(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """For each row the factor, of either sign, and the label that fit best, where G alone leaves both open."""
        ends = torch.stack(
            [self.seen.reads.shift + self.seen.reads.scale * end for end in self.knowledge.value_range]
        ).double()
        reach = float(ends.norm(dim=1).max())  # no example is longer than an image of the brightest values
        unit = start / start.norm(dim=1, keepdim=True)
        steps = reach * torch.logspace(-2.5, 0, FACTORS, dtype=torch.float64, device=start.device)
        factors = torch.cat([steps, -steps])  # [F]
        # n G = D^T U, so D^T = n G U^+ scales by 1 / f where U does by f.
        # If the input is f u, its errors are what G shows of u, over f.
        shown = self._shown(unit).T[:, None] / factors[:, None]  # [n, F, m]
        rows = (unit[:, None] * factors[:, None]).flatten(0, 1)  # [n F, d]
        inputs = self.seen.reads.to_inputs(rows, self.knowledge.input_shape)
        # A factor that leads out of the value range by more than a tenth of it is taken only where all do.
        outside = 10.0 * ~in_range(inputs, self.knowledge.value_range, 0.1)  # [n F]
        tries = (relative_mismatch(own, shown.flatten(0, 1)) + outside for own in self._errors_of_all(rows))
        labels, off = (part.reshape(self.n, -1) for part in best_labels(tries))  # [n, F]
        place = off.argmin(1, keepdim=True)
        return unit * factors[place], labels.gather(1, place)[:, 0]

    def _errors(self, read: Tensor, labels: Tensor) -> Tensor:
        """`[n, m]` the gradient of each example's loss in the adapted layer's output."""
        output, logits = self._pass(read)
        loss = self.knowledge.client.loss_of(logits, labels, reduction="sum")
        return torch.autograd.grad(loss, output)[0].detach()

    def _errors_of_all(self, read: Tensor) -> Iterator[Tensor]:
        """The same for every label in turn, from one pass."""
        output, logits = self._pass(read)
        for label in range(self.knowledge.num_classes):
            loss = self.knowledge.client.loss_of(logits, self.seen.attacked.label(label, len(read)), reduction="sum")
            yield torch.autograd.grad(loss, output, retain_graph=True)[0]

    def _pass(self, read: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.seen.reads.to_inputs(read, self.knowledge.input_shape).requires_grad_()
        with torch.enable_grad():
            logits, calls = self.seen.attacked.forward(inputs, [self.seen.layer.name], exact=True)
        return calls[self.seen.layer.name][0].output, logits
