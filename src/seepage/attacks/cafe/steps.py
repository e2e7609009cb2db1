"""What all modes of CAFE share: reading the rounds, and the linear algebra of steps I and II.

Letters as in the paper: N samples, K per batch, `s_t` the batch as a 0/1 vector; for a party's first fully connected
layer `u = W h + b` and each sample n, `h_n` `[d1]` is its input and `v_n` `[d2]` the gradient of the sample's own loss
with respect to `u_n`. A round shows, with K_t its batch size,

    grad b_t = 1/K_t sum_{n in t} v_n            grad W_t = 1/K_t sum_{n in t} v_n h_n^T    [d2, d1]
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from seepage.attacks.base import refuse
from seepage.attacks.cafe.target_layers import TargetLayer, find_target_layers
from seepage.base.rounding import FLOAT32_ZERO, FLOAT64_FLOOR
from seepage.federation.types import Knowledge, Tensors, Transcript


@runtime_checkable
class Selective(Protocol):
    """A transcript that can read or compute single tensors of a round without the whole round."""

    def indices(self, t: int) -> Tensor | None: ...

    def select(self, t: int, names: Collection[str]) -> Tensors: ...

    def params(self, t: int) -> Tensors: ...


def params_of(transcript: Transcript, t: int) -> Tensors:
    """The weights of round `t`."""
    return transcript.params(t) if isinstance(transcript, Selective) else transcript[t].params


def weights_move(transcript: Transcript) -> bool:
    """Whether the weights change from the first round to the last."""
    first, last = params_of(transcript, 0), params_of(transcript, len(transcript) - 1)
    return any(not torch.equal(last[name], p) for name, p in first.items())


def gradients(transcript: Transcript, t: int, names: Collection[str]) -> Tensors:
    """The gradients of round `t` of the named tensors; NaN is refused."""
    if isinstance(transcript, Selective):
        found = transcript.select(t, names)
    else:
        whole = transcript[t].gradient(transcript.knowledge.client)
        found = {name: whole[name] for name in names}
    for name, tensor in found.items():
        if not torch.isfinite(tensor).all():
            raise refuse("not_finite")(
                f"round {t} holds NaN or infinite values in {name!r}", "record the round again, or leave it out"
            )
    return found


def read_indices(transcript: Transcript, rounds: Sequence[int], samples: int | None = None) -> tuple[list[Tensor], int]:
    """The indices of each round's batch, and N: as given, else one more than the largest index.

    Raises:
        Inapplicable: Where the rounds do not show indices, or an index is out of range or repeated in a batch.
    """
    batches = []
    for t in rounds:
        chosen = transcript.indices(t) if isinstance(transcript, Selective) else transcript[t].indices
        if chosen is None:
            raise refuse("no_indices")(
                f"round {t} does not show which samples its batch holds, and CAFE is built on that",
                "record with the indices known (vertical FL always shows them), or use a matching attack",
            )
        chosen = chosen.long().cpu()
        if len(chosen) == 0 or chosen.unique().numel() != chosen.numel():
            raise refuse("wrong_indices")(
                f"round {t} names a sample twice or holds none", "draw batches without repeats, or leave the round out"
            )
        batches.append(chosen)
    low, high = min(int(b.min()) for b in batches), max(int(b.max()) for b in batches)
    if low < 0 or (samples is not None and high >= samples):
        raise refuse("wrong_indices")(
            f"a batch names sample {low if low < 0 else high}, outside 0..{(samples or high + 1) - 1}",
            "number the samples from 0, or set samples to the size of the data set",
        )
    return batches, samples or high + 1


@dataclass(frozen=True)
class SeenRounds:
    """Rounds with known indices, and what every mode of CAFE reads first.

    Attributes:
        transcript: Where they stand.
        numbers: Of those that are used.
        batches: The samples of each.
        samples: N.
        layers: The layers to read.
        params: Trainable parameters of the first round.
        buffers: The model's buffers then.
    """

    transcript: Transcript
    numbers: Sequence[int]
    batches: list[Tensor]
    samples: int
    layers: Sequence[TargetLayer]
    params: Tensors
    buffers: Tensors

    @property
    def knowledge(self) -> Knowledge:
        return self.transcript.knowledge

    def __len__(self) -> int:
        return len(self.numbers)

    def gradients(self, place: int, names: Collection[str]) -> Tensors:
        """The gradients of the named tensors in the round at this place."""
        return gradients(self.transcript, self.numbers[place], names)

    def biases(self) -> list[Tensor]:
        """`[T, d2]` bias gradients of each layer."""
        return read_biases(self.transcript, self.numbers, self.layers)


def open_rounds(transcript: Transcript, samples: int | None) -> SeenRounds:
    """The model, layers and batches of a transcript, checked.

    Raises:
        Inapplicable: Where there are no rounds, no indices or no layer to read, where every batch holds all samples,
            or where no round says anything of the layers.
    """
    if not len(transcript):
        raise refuse("too_few_rounds")("there are no rounds", "record the training")
    batches, samples = read_indices(transcript, range(len(transcript)), samples)
    first = transcript[0]
    layers = find_target_layers(transcript.knowledge, first.params)
    if all(len(batch) >= samples for batch in batches):
        raise refuse("whole_batches")(
            f"every batch holds all {samples} samples, so all rounds show the same sum",
            "CAFE needs batches smaller than the data set",
        )
    names = [layer.bias for layer in layers]
    if not any(bool(tensor.any()) for t in range(len(batches)) for tensor in gradients(transcript, t, names).values()):
        raise refuse("zero_gradient")(
            "every update is zero at the parties' first layers", "check that the clients trained, and record again"
        )
    return SeenRounds(transcript, range(len(batches)), batches, samples, layers, first.params, first.buffers)


@dataclass
class Recovered:
    """What steps I and II know of one party's layer.

    Attributes:
        v: `[N, d2]` float64, gradients of each sample's own loss.
        h: `[N, d1]` float64, inputs of the layer.
        v_known: `[N]` bool, where the rounds determine `v`.
        known: `[N]` bool, where they determine `h`.
        zero_gradient: `[N]` bool, `v = 0`: the sample leaves no trace, so `h` cannot be known.
        spread: `[N]` how much an error of the gradients grows in `h` (relative); infinite where unknown.
        group: `[N]` samples with one number share all their rounds and may be swapped among themselves.
    """

    v: Tensor
    h: Tensor
    v_known: Tensor
    known: Tensor
    zero_gradient: Tensor
    spread: Tensor
    group: Tensor

    @classmethod
    def nothing(cls, samples: int, d2: int, d1: int) -> "Recovered":
        """No sample known, each of which is in a round without some other."""
        no = torch.zeros(samples, dtype=torch.bool)
        return cls(
            v=torch.zeros(samples, d2, dtype=torch.float64),
            h=torch.zeros(samples, d1, dtype=torch.float64),
            v_known=no,
            known=no.clone(),
            zero_gradient=no.clone(),
            spread=torch.full((samples,), torch.inf, dtype=torch.float64),
            group=torch.arange(samples),
        )


def identifiable(found: Sequence[Recovered]) -> Tensor:
    """`[N]` samples whose features are known, or known to leave no trace, at every party."""
    return torch.stack([one.known | one.zero_gradient for one in found]).all(0)


def step_one(batches: Sequence[Tensor], bias: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Step I in closed form: least squares of `S V = B` in float64, with `S_t = s_t / K_t`.

    Args:
        batches: The samples of each round.
        bias: `[T, d2]` bias gradients.
        samples: N.

    Returns:
        `[N, d2]` V, and `[N]` which rows the rounds determine. Rows in a rank deficit are a minimum-norm guess and
        marked as not determined.

    >>> v = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
    >>> batches = [torch.tensor(b) for b in ([0, 1], [1, 2], [0, 2])]
    >>> bias = torch.stack([v[b].mean(0) for b in batches])
    >>> guess, known = step_one(batches, bias, 3)
    >>> torch.allclose(guess, v), known.tolist()
    (True, [True, True, True])
    """
    table = mean_table(batches, samples)
    known = determined(table)
    # gels (QR) where the rank is full; gelsd (SVD) gives the minimum-norm guess in a rank deficit.
    driver = "gels" if bool(known.all()) and len(table) >= samples else "gelsd"
    return torch.linalg.lstsq(table, bias.double(), driver=driver).solution, known


def mean_table(batches: Sequence[Tensor], samples: int) -> Tensor:
    """`[T, N]` S, whose row t is `s_t / K_t`, so that `S V = B` holds the mean gradients as they were sent."""
    table = torch.zeros(len(batches), samples, dtype=torch.float64)
    for t, chosen in enumerate(batches):
        table[t, chosen] = 1 / len(chosen)
    return table


def determined(table: Tensor) -> Tensor:
    """Which unknowns of a linear system `[T, N]` are determined: those on which every null vector is zero."""
    # Null vectors of S are those of S^T S [N, N]; unknown n is determined where all of them are zero at n.
    values, vectors = torch.linalg.eigh(table.T @ table)
    null = vectors[:, values <= 1e-11 * values[-1].clamp(min=1e-300)]
    clear: Tensor = null.pow(2).sum(1) < FLOAT64_FLOOR
    return clear


def zero_rows(v: Tensor, known: Tensor) -> Tensor:
    """`[N]` bool: determined rows of V that are zero, to rounding: samples that leave no trace in any round.

    Rounding of float32 gradients leaves up to a tenth of `FLOAT32_ZERO` in rows that are exactly zero.
    """
    # Zero is a matter of the largest row: gradients of float32 leave some rounding everywhere.
    norms = v.norm(dim=1)
    scale = norms[known].max() if bool(known.any()) else norms.new_tensor(1.0)
    zero: Tensor = norms <= FLOAT32_ZERO * scale
    return known & zero


def step_two(v: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Step II for one batch: solve `V_s^T H_s = K grad W` in float64.

    Args:
        v: `[k, d2]` rows of the batch's samples, none of them zero.
        weight: `[d2, d1]`, K times the weight gradient.

    Returns:
        `[k, d1]` H, `[k]` which rows are determined (all, if V_s has rank k), and `[k]` the norm of the row of the
        pseudo-inverse: how much of the gradient's error reaches the row.
    """
    scale = v.norm(dim=1).clamp(min=1e-300)  # [k] columns of one length, so that rank is not a matter of scale
    # V_s^T H_s = K grad W, so H_s = pinv(V_s^T) K grad W, by the decomposition of V_s^T = L S R. [d2, k]
    # More samples than neurons leave null vectors beyond the thin decomposition's own, so all are made.
    thin = v.shape[0] <= v.shape[1]
    left, values, right = torch.linalg.svd((v / scale[:, None]).T, full_matrices=not thin)  # [d2, r], [r], [k, k]
    rank = int((values > 1e-7 * values[0]).sum())
    # pinv(V_s^T) = R^T S^-1 L^T over the directions that count; the columns' own lengths are taken back.
    inverse = (right[:rank].T / values[:rank]) @ left[:, :rank].T / scale[:, None]  # [k, d2]
    # Samples with a part in the null space of V_s^T are not determined: their row may hold any amount of it.
    rows_known = right[rank:].pow(2).sum(0) < FLOAT64_FLOOR
    return inverse @ weight, rows_known, inverse.norm(dim=1)


def cover(batches: Sequence[Tensor], samples: int, times: int = 1) -> list[int]:
    """Few rounds that hold every drawn sample, found greedily; with `times` > 1 at least that often where possible.

    >>> cover([torch.tensor(b) for b in ([0, 1], [1, 2], [2, 3], [0, 3])], 4)
    [0, 2]
    """
    table = (mean_table(batches, samples) > 0).float()
    need = torch.minimum(table.sum(0), torch.tensor(float(times)))
    chosen_rounds: list[int] = []
    left = table.clone()
    # Greedy set cover: the round with the most samples that are still needed comes next.
    while bool((need > 0).any()):
        t = int((left @ (need > 0).float()).argmax())
        chosen_rounds.append(t)
        need = need - table[t]
        left[t] = 0
    return sorted(chosen_rounds)


def window(batches: Sequence[Tensor], samples: int) -> int:
    """Rounds from the start until 95 % of the samples were drawn three times, each in its own combination of rounds.

    All rounds if that never happens.

    >>> window([torch.tensor(b) for b in ([0, 1], [2, 3], [0, 2], [1, 3]) * 6], 4)
    6
    """
    counts = torch.zeros(samples, dtype=torch.int64)
    together = torch.ones(samples, samples, dtype=torch.bool)  # [N, N]: sample m is in all rounds of sample n so far
    drawn = len(torch.cat(list(batches)).unique())
    for t, batch in enumerate(batches):
        here = torch.zeros(samples, dtype=torch.bool)
        here[batch] = True
        counts[batch] += 1
        # After round t row n holds those who were in every round with n; alone on the diagonal, n is identified.
        together[batch] &= here
        if int(((counts >= 3) & (together.sum(1) == 1)).sum()) >= 0.95 * drawn:
            return t + 1
    return len(batches)


def read_biases(transcript: Transcript, rounds: Sequence[int], layers: Sequence[TargetLayer]) -> list[Tensor]:
    """`[T, d2]` bias gradients of each layer."""
    names = [layer.bias for layer in layers]
    found = [gradients(transcript, t, names) for t in rounds]
    return [torch.stack([one[name] for one in found]).double().cpu() for name in names]


def groups(batches: Sequence[Tensor], samples: int) -> Tensor:
    """`[N]` numbers: samples with the same number are in exactly the same rounds.

    >>> groups([torch.tensor([0, 1, 2]), torch.tensor([0, 3])], 4).tolist()
    [2, 1, 1, 0]
    """
    # Column n of the table says which rounds hold sample n: equal columns are one cohort.
    which: Tensor = torch.unique((mean_table(batches, samples) > 0).T, dim=0, return_inverse=True)[1]
    return which
