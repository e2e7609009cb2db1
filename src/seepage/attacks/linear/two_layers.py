r"""All examples of a batch by least squares: what two layers sent, with the errors of their entries, in one fit.

Of n examples with slopes S at the last layer, `a = phi(W x + b)` what it reads, and `s = phi'(W x + b) (V^T S)`,

    (W, b)   = sum_i s_i (x_i, 1)^T        (V, c) = sum_i S_i (a(x_i), 1)^T

The unknowns are all x and S (1/n is in S). Each Gauss-Newton step (Gauss 1809; damped as by Levenberg 1944) eliminates
S, of which each output's n numbers stand in that output's row of the last layer alone, but for what they do to s:

    dS_o = C_o sum_j t_oj (a_ij, 1) (r_oj - S_o da_j)      C_o = (sum_j t_oj (a_j, 1) (a_j, 1)^T)^-1,  t = 1 / error^2
    ds - L(dS) = e,   e ~ N(0, L C L^T),   L = phi' V^T

so that what is left are n d numbers of x, and those of s. Errors of a bent step span six orders of magnitude, and few
entries that are known well make a narrow valley: errors are first floored, and the floor falls stage by stage. Whether
an example reaches a neuron near its kink is decided by which choice leaves less of the update.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.network.first_layer import FirstLayer
from seepage.attacks.reading.rows import MeasuredRows, shares
from seepage.base.rounding import DEVIATIONS
from seepage.federation.measured import ROUNDING

FLOORS = (*(10 ** (-2.5 - k / 4) for k in range(16)), 0.0)
"""Least errors of all entries, stage by stage, as a share of their layer's root mean square."""
CHORDS = 3e-6
"""The floor from which on errors are those of the chord from the fit to the measured value, which no large misfit
overshoots; below it they are the tangent's, which is unbiased."""
STEPS, TRIES = 12, 6
"""Gauss-Newton steps of a stage, the last one; and dampings that are tried for each."""
AT_FLOOR = 3
"""Steps of the others."""
RESTED = 1e-4
"""Share by which a step makes the squares smaller, below which a stage ends."""
KINKS, REACH = 64, 10.0
"""Neurons nearest to their kink that are tried on its other side, within so many floors of it."""
LOST = 5.0
"""Misfit above which, half-way down, a fit is given up."""
UNKNOWNS = 2000
"""Most numbers of all examples and their slopes that are solved for at once: a second a step."""
SUMS_BACK = 24.0
"""Roundings of a slope at the first layer, in units of the root of its terms' squares: the last layer's outputs are
added up in blocks. Of 32 neurons and 500 outputs 5 to 11 were measured."""


@dataclass(frozen=True, eq=False)
class Left:
    """What a fit leaves of one layer: `[r, k]` of its entries, and `1 / error^2` of each."""

    off: Tensor
    trust: Tensor

    @classmethod
    def of(cls, rows: MeasuredRows, fit: Tensor, beside: Tensor, *, chord: bool) -> "Left":
        """Of a fit `[r, k]`, with the variances of errors that no measurement states."""
        value, error = rows.at(torch.arange(len(fit), device=fit.device), fit)
        if chord:
            value, error = rows.value, rows.chord(fit)
        return cls(value - fit, 1 / (error.square() + beside))

    @property
    def squares(self) -> float:
        return float((self.trust * self.off.square()).sum())


@dataclass(frozen=True, eq=False)
class Guess:
    """All examples, and what they leave.

    Attributes:
        x: `[n, d]` what the first layer reads.
        slopes: `[c, n]` S.
        active: `[n, m + 1]` (a, 1).
        turns: `[n, m]` phi'.
        bends: `[n, m]` phi''.
        reads: `[n, m]` the first layer's outputs.
        kinked: phi' is 0 or 1.
        first: What is left of the first layer.
        last: And of the last one.
    """

    x: Tensor
    slopes: Tensor
    active: Tensor
    turns: Tensor
    bends: Tensor
    reads: Tensor
    kinked: bool
    first: Left
    last: Left

    @property
    def squares(self) -> float:
        return self.first.squares + self.last.squares

    @property
    def free(self) -> int:
        """Entries less the unknowns. Those that are zero, and are said to be, count nothing."""
        entries = sum(int((side.off != 0).sum()) for side in (self.first, self.last))
        return max(entries - self.x.numel() - self.slopes.numel(), 1)

    @property
    def misfit(self) -> float:
        """Mean square of what is left in units of its errors: 1, give or take `sqrt(2 / free)`, of the truth."""
        return self.squares / self.free

    @property
    def widened(self) -> float:
        """Times the errors of examples that are as many as all that is left beyond its errors would make of them."""
        beyond = 0.0 if self.explained else (self.misfit - 1) * self.free
        return math.sqrt(1 + beyond / self.x.numel())

    @property
    def explained(self) -> bool:
        """Whether no more is left than the errors make."""
        return self.misfit <= 1 + DEVIATIONS * math.sqrt(2 / self.free)


class TwoLayers:
    """Least squares over the first and the last layer of a network whose last layer reads the first one's neurons.

    Args:
        seen: The first layer.
        first: Its rows, with the bias.
        last: Those of the last layer.
    """

    def __init__(self, seen: FirstLayer, first: MeasuredRows, last: MeasuredRows) -> None:
        assert seen.last[0] is not None  # or there are no such rows
        self.seen, self.first, self.last = seen, first, last
        params = seen.attacked.exact[0]
        self.weight, self.back = params[seen.layer.weight], params[seen.last[0]]
        self.sizes = [rows.value.square().mean().sqrt() for rows in (first, last)]

    def solvable(self, x: Tensor) -> bool:
        """Whether there are so few unknowns as are solved for at once."""
        return x.numel() + len(x) * len(self.weight) <= UNKNOWNS

    def activations(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`[n, m]` each, of `[n, d]`: the first layer's outputs, what the last one reads, and its two derivatives."""
        layer, name = self.seen.layer, self.seen.last[0] or ""
        names = [one.rpartition(".")[0] for one in (layer.weight, name)]
        with torch.enable_grad():
            inputs = layer.to_inputs(x, self.seen.attacked.knowledge.input_shape).detach().requires_grad_()
            _, calls = self.seen.attacked.forward(inputs, names, exact=True)
            outputs, active = calls[names[0]][0].output, calls[names[1]][-1].input
            (turns,) = torch.autograd.grad(active.sum(), outputs, create_graph=True)
            bends = torch.zeros_like(turns)
            if turns.requires_grad:
                (bends,) = torch.autograd.grad(turns.sum(), outputs, materialize_grads=True)
        return outputs.detach(), active.detach(), turns.detach(), bends

    def guess(
        self, x: Tensor, slopes: Tensor | None, floor: float, held: Tensor | None = None, unsure: Tensor | None = None
    ) -> Guess:
        """What examples leave.

        Args:
            x: `[n, d]`.
            slopes: `[c, n]`; None: those that leave least of the last layer.
            floor: Of the errors.
            held: `[n, m]` which neurons are taken to be reached, of a kinked activation.
            unsure: `[n]` standard errors of the examples, where they are not solved for.
        """
        reads, active, turns, bends = self.activations(x)
        kinked = bool(((turns == 0) | (turns == 1)).all())
        if kinked and held is not None:
            active, turns = torch.where(held != turns, held * reads, active), held
        active, inputs = with_one(active), with_one(x)
        if slopes is None:
            slopes = self._slopes(active)
        back = turns * (slopes.T @ self.back)  # s [n, m]
        n, chord = len(x), floor > CHORDS
        # Each partial sum of n terms is rounded: at most, of terms of one sign and size, sum_k k^2 / n of one's.
        sums = ROUNDING**2 * (n + 1) * (2 * n + 1) / 6
        own = [sums * back.square().T @ inputs.square(), sums * slopes.square() @ active.square()]
        more = (SUMS_BACK * ROUNDING) ** 2 * (slopes.square().T @ self.back.square()) * turns.square()
        own[0] = own[0] + more.T @ inputs.square()
        if unsure is not None:
            own[0] = own[0] + (back.square().T @ unsure.square())[:, None]
            moved = (turns * unsure[:, None] * self.weight.norm(dim=1)).square()
            own[1] = own[1] + slopes.square() @ torch.cat([moved, torch.zeros_like(moved[:, :1])], 1)
        beside = [own[k] + (floor * self.sizes[k]).square() for k in range(2)]
        first = Left.of(self.first, back.T @ inputs, beside[0], chord=chord)
        last = Left.of(self.last, slopes @ active, beside[1], chord=chord)
        return Guess(x, slopes, active, turns, bends, reads, kinked, first, last)

    def _slopes(self, active: Tensor) -> Tensor:
        """`[c, n]` the slopes that leave least of the last layer, but for its largest errors."""
        error, slopes = self.last.known(), active.new_zeros(0)
        for _ in range(8):
            slopes = shares(
                self.last.value, self.sizes[1] ** 2 / (error.square() + (FLOORS[2] * self.sizes[1]) ** 2), active
            )
            error = self.last.chord(slopes @ active)
        return slopes

    def solved(self, x: Tensor) -> tuple[Guess, Tensor]:
        """The examples near `[n, d]` that leave least, and their standard errors `[n]`, root mean square."""
        off = torch.full((len(x),), FLOORS[0], dtype=x.dtype, device=x.device)
        guess, damping = self.guess(x, None, FLOORS[0]), 1e-3
        held = guess.turns if guess.kinked else None
        for floor in FLOORS:
            guess = self.guess(guess.x, guess.slopes, floor, held)
            if held is not None:
                guess, held = self._over_kinks(guess, held, floor, torch.clamp(DEVIATIONS * off, min=REACH * floor))
            for _ in range(AT_FLOOR if floor else STEPS):
                step = _Step(self, guess)
                before, better = guess.squares, None
                for _ in range(TRIES):
                    tried = self.guess(*step.taken(damping), floor, held)
                    better = tried if tried.squares <= before else None
                    damping = min(max(damping * (0.1 if better is not None else 10), 1e-8), 1e6)
                    if better is not None:
                        break
                guess = guess if better is None else better
                off = step.spread() * guess.widened
                if better is None or guess.squares > (1 - RESTED) * before:
                    break
            if floor < FLOORS[8] and guess.misfit > LOST:
                break
        return guess, off

    def _over_kinks(self, guess: Guess, held: Tensor, floor: float, reach: Tensor) -> tuple[Guess, Tensor]:
        """The same with neurons near their kink on its other side, where that leaves less."""
        away = (guess.reads / self.weight.norm(dim=1).clamp(min=1e-300)).abs()  # [n, m] in units of x
        order = away.flatten().argsort()[:KINKS]
        for place in order[away.flatten()[order] < reach[:, None].expand_as(away).flatten()[order]].tolist():
            other = held.clone()
            other.view(-1)[place] = 1 - other.view(-1)[place]
            tried = self.guess(guess.x, guess.slopes, floor, other)
            guess, held = (tried, other) if tried.squares < guess.squares else (guess, held)
        return guess, held


class _Step:
    """The normal equations of one Gauss-Newton step, S eliminated; a names the pairs (i, j) that reach each other."""

    def __init__(self, layers: TwoLayers, guess: Guess) -> None:
        self.guess, (n, d) = guess, guess.x.shape
        self.ones = torch.eye(n, dtype=guess.x.dtype, device=guess.x.device)
        trust, off, slopes, active = guess.last.trust, guess.last.off, guess.slopes, guess.active
        i, j = ((guess.turns != 0) | (guess.bends != 0)).nonzero(as_tuple=True)  # [a] each
        normal = torch.einsum("oj,ij,kj->oik", trust, active, active)
        size = normal.diagonal(dim1=1, dim2=2).amax(1).clamp(min=1e-300)[:, None, None]
        inverse = torch.linalg.inv_ex(normal / size + 1e-15 * self.ones).inverse / size  # C [c, n, n]
        self.start = (inverse @ torch.einsum("oj,ij->oi", trust * off, active)[..., None])[
            ..., 0
        ]  # dS at dx = 0 [c, n]
        turns, inner = guess.turns[i, j], slopes[:, i] * guess.turns[i, j]  # phi' [a], S phi' [c, a]
        pulled = inner[:, None] * trust[:, None, j] * active[:, j]  # [c, n, a]
        self.moved = inverse @ pulled  # -dS by what the neurons move [c, n, a]
        left = trust * (off - self.start @ active)
        both = torch.einsum("oa,ob->ab", inner * trust[:, j], inner) * (j[:, None] == j)
        both = both - pulled.flatten(0, 1).T @ self.moved.flatten(0, 1)  # [a, a]
        back = layers.back[:, j] * turns  # V phi' [c, a]
        self.given = back[:, None] * inverse[:, :, i]  # C L^T [c, n, a]
        # What s does when the neurons move [a, a], and its variance as far as the last layer tells it.
        turned = -torch.einsum("oa,oab->ab", back, self.moved[:, i])
        turned = turned + torch.diag(guess.bends[i, j] * (slopes.T @ layers.back)[i, j])
        spread = torch.einsum("oa,oab->ab", back, self.given[:, i])
        scale = spread.diagonal().clamp(min=1e-300).rsqrt()
        spread = spread * scale[:, None] * scale + 1e-13 * torch.eye(len(i), dtype=off.dtype, device=off.device)
        self.tied = torch.linalg.inv_ex(spread).inverse * scale[:, None] * scale  # (L C L^T)^-1 [a, a]
        # Neurons move by W dx. [a, n d]
        ways = off.new_zeros(len(i), n, d)
        ways[torch.arange(len(i), device=i.device), i] = layers.weight[j]
        self.ways = ways.flatten(1)
        self.turned, self.first = turned @ self.ways, (back * self.start[:, i]).sum(0)  # [a, n d], [a]
        # The first layer, of dx and ds.
        t, r = guess.first.trust, guess.first.trust * guess.first.off  # [m, d + 1]
        s, inputs = guess.turns * (slopes.T @ layers.back), with_one(guess.x)
        own = torch.einsum("ij,kj,jd->ikd", s, s, t[:, :d])  # [n, n, d]
        blocks = torch.diag_embed(own).permute(0, 2, 1, 3).reshape(n * d, n * d)
        cross = torch.einsum("ia,ad->ida", s[:, j], t[j, :d] * inputs[i, :d]).reshape(n * d, len(i))
        slope = torch.einsum("ad,bd->ab", t[j] * inputs[i], inputs[i]) * (j[:, None] == j)
        pull = self.tied @ self.turned
        top = self.ways.T @ both @ self.ways + blocks + self.turned.T @ pull
        self.equations = torch.cat(
            [torch.cat([top, cross - pull.T], 1), torch.cat([cross.T - pull, slope + self.tied], 1)]
        )
        moved = torch.einsum("oa,oa->a", inner, left[:, j])
        self.right = torch.cat(
            [
                moved @ self.ways + torch.einsum("ij,jd->id", s, r[:, :d]).flatten() - pull.T @ self.first,
                (r[j] * inputs[i]).sum(1) + self.tied @ self.first,
            ]
        )
        self.scale = self.equations.diagonal().clamp(min=1e-300).rsqrt()

    def _scaled(self, damping: float) -> Tensor:
        damped = torch.full_like(self.right, 1e-15)
        damped[: self.guess.x.numel()] += damping
        return self.equations * self.scale[:, None] * self.scale + torch.diag(damped)

    def taken(self, damping: float) -> tuple[Tensor, Tensor]:
        """The examples and slopes after the step."""
        guess = self.guess
        found = torch.linalg.solve_ex(self._scaled(damping), self.right * self.scale).result * self.scale
        move, change = found[: guess.x.numel()], found[guess.x.numel() :]
        told = self.tied @ (change - self.first - self.turned @ move)
        by = self.start - self.moved @ (self.ways @ move) + self.given @ told
        return guess.x + move.view_as(guess.x), guess.slopes + by

    def spread(self) -> Tensor:
        """`[n]` standard errors of the examples, root mean square over their entries."""
        variance = torch.linalg.inv_ex(self._scaled(0.0)).inverse.diagonal() * self.scale.square()
        mean: Tensor = variance[: self.guess.x.numel()].view_as(self.guess.x).mean(1)
        return torch.where(mean >= 0, mean, torch.inf).sqrt()  # nan, or below zero: not told


def with_one(rows: Tensor) -> Tensor:
    """Rows `[k, d]` with a one behind each, for the bias."""
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
