"""What rounds with known batch indices determine: the conditions of CAFE's theorems, and the error that they bound.

Jin et al., "CAFE", NeurIPS 2021, theorems 1 and 2 and supplement E. N samples, batches of K, a fully connected layer
`u = W h + b` with d1 inputs and d2 neurons. Step I is determined if K < N and enough rounds were seen, step II if
moreover N < d2 and the rows of V are independent. These conditions are sufficient and not necessary: `cafe` solves
step II batch by batch, where K <= d2 is enough, and finds samples from far fewer rounds than N.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from seepage.attacks.cafe.steps import (
    determined,
    gradients,
    mean_table,
    params_of,
    read_biases,
    read_indices,
    step_one,
    weights_move,
    zero_rows,
)
from seepage.attacks.cafe.target_layers import TargetLayer, find_target_layers
from seepage.attacks.exposure.finding import ClosedForm
from seepage.base.algebra.lowrank import low_rank
from seepage.base.rounding import FLOAT32_SUM
from seepage.errors import Inapplicable
from seepage.federation.types import Transcript

MAX_SAMPLES = 2000
"""Samples up to which the rank of the index vectors is computed: an `[N, N]` eigenvalue problem takes a few seconds."""
MAX_ENTRIES = 10**9
"""Rounds times entries of the layers' weights up to which all weight gradients are read for the error's bound."""


@dataclass(frozen=True)
class IndexedLayer:
    """What the rounds determine of one fully connected layer.

    Attributes:
        layer: Name of the module.
        weight: Name of its `[d2, d1]` weight.
        bias: Name of its `[d2]` bias.
        neurons: d2.
        rank: Rank of V over the samples whose row the rounds determine; None while the weights move.
        silent: Determined rows of V that are zero: these samples leave no trace at this layer.
        printed: Equation 43's bound on the relative error of H, as it is printed; None where its conditions fail.
        bound: The same with constants that hold (see `indexed_rounds`).
    """

    layer: str
    weight: str
    bias: str
    neurons: int
    rank: int | None
    silent: int
    printed: float | None
    bound: float | None


@dataclass(frozen=True)
class IndexedRounds:
    """What rounds with known indices determine.

    Attributes:
        rounds: T, the rounds that were looked at.
        batch: K, the size of the largest batch.
        samples: N, the samples that were drawn at all.
        rank: Rank of the rounds' index vectors.
        determined: Samples whose row of V these determine (step I by itself).
        moving: Whether the weights move; the theorems are for fixed weights.
        layers: What holds of each layer.
    """

    rounds: int
    batch: int
    samples: int
    rank: int
    determined: int
    moving: bool
    layers: tuple[IndexedLayer, ...]

    @property
    def theorem_one(self) -> bool:
        """Step I is determined: K < N, index vectors of rank N, and fixed weights."""
        return self.batch < self.samples == self.rank and not self.moving

    def theorem_two(self, layer: IndexedLayer) -> bool:
        """Step II is determined at this layer by theorem 2: N < d2 and rank V = N besides."""
        return self.theorem_one and self.samples < layer.neurons and layer.rank == self.samples

    @property
    def lines(self) -> tuple[str, ...]:
        """In words: a line for the rounds and one for each layer."""
        below = "holds" if self.batch < self.samples else "does not hold"
        one = (
            f"indices of {self.rounds} rounds are known: batches of up to {self.batch} of {self.samples} samples; "
            f"K < N {below}; index vectors of rank {self.rank} of {self.samples}"
        )
        if self.moving:
            return (f"{one}; the weights move, and CAFE's theorems are for fixed ones",)
        step = "step I of CAFE is determined (theorem 1)"
        free = f"step I alone determines {self.determined} of {self.samples} samples"
        return (f"{one}; {step if self.theorem_one else free}", *(self._words(layer) for layer in self.layers))

    def _words(self, layer: IndexedLayer) -> str:
        below = f"holds ({self.samples} < {layer.neurons})"
        if self.samples >= layer.neurons:
            below = f"does not hold ({self.samples} >= {layer.neurons})"
        rank = f"rank V = {layer.rank} of {self.samples}" if self.determined else "no row of V is determined"
        words = f"{layer.layer}: N < d2 {below}; {rank}"
        if layer.silent:
            words += f", {layer.silent} silent"
        if not self.theorem_two(layer):
            return f"{words}: theorem 2 says nothing, and cafe solves each batch by itself"
        words += ": step II is determined (theorem 2)"
        if layer.bound is None:
            return words
        printed = "" if layer.printed is None else f" as printed: {layer.printed:.1g} of its norm;"
        return f"{words}; error of H at most, by equation 43{printed} with the constants that hold: {layer.bound:.1g}"


def indexed_findings(found: IndexedRounds | None) -> list[ClosedForm]:
    """What the rounds determine; it is of each layer's weight and bias where step I is determined."""
    if found is None:
        return []
    message, tensors = "what the known indices determine", tuple[str, ...]()
    if found.theorem_one:
        whole = sum(found.theorem_two(layer) for layer in found.layers)
        message = (
            f"over all rounds the gradient of each of {found.samples} samples at this layer (cafe, step I), and by "
            f"theorem 2 its input at {whole} of {len(found.layers)} such layers"
        )
        tensors = tuple(name for layer in found.layers for name in (layer.weight, layer.bias))
    limit = "The theorems' conditions are sufficient, not necessary: cafe reads inputs where they fail, and sooner."
    return [
        ClosedForm(
            name="indexed-rounds",
            message=message,
            evidence=asdict(found),
            limit=limit,
            tensors=tensors,
            lines=found.lines,
        )
    ]


def indexed_rounds(transcript: Transcript) -> IndexedRounds | None:
    """What the rounds of a transcript determine by theorems 1 and 2; None where no indices are known.

    In equation 43 the error of H is bounded by how well steps I and II fit, phi_1 and phi_2, here the largest misfit
    over the rounds and at least what rounding of float32 leaves. Its constant N / K comes from equations 37 and 41,
    which drop the cross terms between samples: an error of V whose rows sum to zero is seen `(N - K) / (N - 1)` times
    as strongly. `printed` keeps N / K; `bound` takes both constants from the index vectors themselves, of which
    `1 / least eigenvalue` is `N (N - 1) / (K (N - K))` if all batches are drawn. V's own inverse stands for that of
    the true V, which no attacker has.

    Args:
        transcript: The rounds, in which the attacker knows the indices.

    Raises:
        Inapplicable: Where an index is repeated or out of range, or an update holds NaN.
    """
    opened = _open(transcript)
    if opened is None:
        return None
    batches, layers = opened
    samples = int(torch.cat(batches).max()) + 1
    table = mean_table(batches, samples)  # S: 1 / K_t at the samples of round t, so that S V = B. [T, N]
    known = determined(table)
    rounds = range(len(batches))
    first, moving = params_of(transcript, 0), weights_move(transcript)
    found = []
    biases = [] if moving else read_biases(transcript, rounds, layers)
    vs = [step_one(batches, bias, samples)[0] for bias in biases]  # V of each layer, by least squares. [N, d2]
    bounds = _bounds(transcript, table, batches, layers, vs, biases) if bool(known.all()) and not moving else {}
    for m, layer in enumerate(layers):
        rank, silent = None, 0
        if not moving:
            # A row of zeros would count against theorem 2's rank V = N, and is told apart.
            silent = int(zero_rows(vs[m], known).sum())
            rank = _rank(vs[m][known & ~zero_rows(vs[m], known)])
        printed, bound = bounds.get(m, (None, None))
        neurons = first[layer.weight].shape[0]
        found.append(IndexedLayer(layer.name, layer.weight, layer.bias, neurons, rank, silent, printed, bound))
    rank = int(torch.linalg.matrix_rank(table))  # theorem 1 asks for N
    largest = max(len(batch) for batch in batches)
    return IndexedRounds(len(batches), largest, samples, rank, int(known.sum()), moving, tuple(found))


def _open(transcript: Transcript) -> tuple[list[Tensor], list[TargetLayer]] | None:
    """Batches over the samples that were drawn, numbered anew, and the layers; None where there is nothing to say."""
    if len(transcript) < 2 or "indices" not in transcript.knowledge.known:
        return None
    batches, _ = read_indices(transcript, range(len(transcript)))
    drawn = torch.cat(batches).unique()
    if len(drawn) > MAX_SAMPLES:
        return None
    try:
        layers = find_target_layers(transcript.knowledge, params_of(transcript, 0))
    except Inapplicable:
        return None
    return [torch.searchsorted(drawn, batch) for batch in batches], layers


def _rank(v: Tensor) -> int:
    """Rank of V's rows brought to one length, without rows of zeros; gradients of float32 give 1e-6 of it at random."""
    lengths = v.norm(dim=1)
    v = v[lengths > 0] / lengths[lengths > 0, None]
    if not len(v) or not bool(v.isfinite().all()):
        return 0
    # Random errors of size e in N rows of length 1 have singular values of about e sqrt(N).
    return low_rank(v, rounding=FLOAT32_SUM * len(v) ** 0.5, clear=1.0).rank


def _bounds(
    transcript: Transcript,
    table: Tensor,
    batches: Sequence[Tensor],
    layers: Sequence[TargetLayer],
    vs: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> dict[int, tuple[float | None, float]]:
    """Equation 43 for each layer that meets theorem 2: as printed, and with constants that hold; relative to |H|."""
    rounds, samples = table.shape
    first = params_of(transcript, 0)
    able = [m for m, v in enumerate(vs) if samples < v.shape[1] and _rank(v) == samples]
    names = [layers[m].weight for m in able]
    if not able or rounds * sum(first[name].numel() for name in names) > MAX_ENTRIES:
        return {}
    # With S^T c = 1 the rounds add up to the gradient of all samples: sum_t c_t G_t = sum_n v_n h_n^T = V^T H. [d2, d1]
    sums = _sums(table)
    whole = {m: torch.zeros(first[layers[m].weight].shape, dtype=torch.float64) for m in able}
    for t in range(rounds):
        seen = gradients(transcript, t, names)
        for m in able:
            whole[m] += sums[t] * seen[layers[m].weight].double().cpu()
    inverses = {m: torch.linalg.pinv(vs[m]) for m in able}  # V V^-1 = I_N, [d2, N]
    h = {m: inverses[m].T @ whole[m] for m in able}  # H = (V^-1)^T V^T H, [N, d1]
    # Misfits of both steps: S V - B, and V_t^T H_t / K - G_t of the worst round.
    one = {m: _worst(biases[m] - table @ vs[m], biases[m]) for m in able}
    two = dict.fromkeys(able, 0.0)
    for t, batch in enumerate(batches):
        seen = gradients(transcript, t, names)
        for m in able:
            sent = seen[layers[m].weight].double().cpu()
            made = vs[m][batch].T @ h[m][batch] / len(batch)
            two[m] = max(two[m], _worst((sent - made).reshape(1, -1), sent.reshape(1, -1)))
    sizes = {len(batch) for batch in batches}
    first_holds, second_holds = constants(table)
    found = {}
    for m in able:
        # |V^T H|^2 and |V^-1|^2, by which theorem 2 passes the misfits on to H.
        length, inverse = float(whole[m].square().sum()), float(inverses[m].square().sum())
        misfits = length * inverse**2 * one[m], inverse * two[m]
        size = float(h[m].norm())
        bound = (2 * (first_holds * misfits[0] + second_holds * misfits[1])) ** 0.5 / size
        # The paper's V holds v / K: its inverse is K times ours, its gradient of all samples 1 / K of ours. N / K K^2.
        printed = (2 * samples * max(sizes) * sum(misfits)) ** 0.5 / size if len(sizes) == 1 else None
        found[m] = (printed, bound)
    return found


def constants(table: Tensor) -> tuple[float, float]:
    """What phi_1 and phi_2 are multiplied by to bound `|V - V*|^2` and `|Delta|^2` (equations 38 and 41), for rank N.

    Args:
        table: `[T, N]` float64, row t holds 1 / K_t at the samples of round t.

    Returns:
        `T / s^2` with s the least singular value, since `sum_t |E^T s_t|^2 >= s^2 |E|^2`; and `T |c|^2` with
        `S^T c = 1`, by the inequality of Cauchy and Schwarz.

    Example:
        All pairs of three samples, where equation 38 has N / K times K^2, which is 6:

        >>> pairs = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.float64) / 2
        >>> [round(constant, 6) for constant in constants(pairs)]
        [12.0, 9.0]
    """
    least = float(torch.linalg.svdvals(table)[-1])
    return len(table) / least**2, len(table) * float(_sums(table).square().sum())


def _sums(table: Tensor) -> Tensor:
    """`[T]` the shortest c with `S^T c = 1`: with these weights the rounds add up to all samples, once each."""
    ones = torch.ones(table.shape[1], 1, dtype=torch.float64)
    shortest: Tensor = torch.linalg.lstsq(table.T, ones, driver="gelsd").solution.squeeze(1)
    return shortest


def _worst(misfit: Tensor, sent: Tensor) -> float:
    """The largest squared misfit of a round, `[T, d]`, and no less than what rounding leaves of what was sent."""
    floor = FLOAT32_SUM**2 * sent.square().sum(1).max()
    return float(torch.maximum(misfit.square().sum(1).max(), floor))
