"""What rounds with known batch indices determine: the conditions of CAFE's theorems.

Jin et al., "CAFE", NeurIPS 2021, theorems 1 and 2 and supplement E. N samples, batches of K, a fully connected layer
`u = W h + b` with d1 inputs and d2 neurons. Step I is determined if K < N and enough rounds were seen, step II if
moreover N < d2 and the rows of V are independent. These conditions are sufficient and not necessary: `cafe` solves
step II batch by batch, where K <= d2 is enough, and finds samples from far fewer rounds than N.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from seepage.attacks.cafe.steps import (
    determined,
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
    """

    layer: str
    weight: str
    bias: str
    neurons: int
    rank: int | None
    silent: int


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
        return f"{words}: step II is determined (theorem 2)"


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
    for m, layer in enumerate(layers):
        rank, silent = None, 0
        if not moving:
            # A row of zeros would count against theorem 2's rank V = N, and is told apart.
            silent = int(zero_rows(vs[m], known).sum())
            rank = rank_of(vs[m][known & ~zero_rows(vs[m], known)])
        neurons = first[layer.weight].shape[0]
        found.append(IndexedLayer(layer.name, layer.weight, layer.bias, neurons, rank, silent))
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


def rank_of(v: Tensor) -> int:
    """Rank of V's rows brought to one length, without rows of zeros; gradients of float32 give 1e-6 of it at random."""
    lengths = v.norm(dim=1)
    v = v[lengths > 0] / lengths[lengths > 0, None]
    if not len(v) or not bool(v.isfinite().all()):
        return 0
    # Random errors of size e in N rows of length 1 have singular values of about e sqrt(N).
    return low_rank(v, rounding=FLOAT32_SUM * len(v) ** 0.5, clear=1.0).rank
