"""Attribute inference: the rest of a person's row, of whom some columns are known, where that person was in the batch.

A fully connected layer that reads the input has the gradients `W = sum_i d_i z_i^T` and `B = sum_i d_i` of its weight
and bias, with `z_i = a x_i + b` column by column. So every `(z_i, 1)` lies in the row space of `[W B]`, of dimension r,
at most the number of examples. With an orthonormal basis Q `[r, d + 1]` of it and the columns K that are known,

    (z, 1)_K = Q_K^T c    has r unknowns, and    z = Q^T c    is the whole row.

More known columns than unknowns are the certificate: of who was not in the batch they leave more than the errors make.
Whole numbers do not count for it, as mixtures of rows of zeros and ones are such rows, too.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.exposure.columns import read_by_norm
from seepage.attacks.exposure.layers import rank_of
from seepage.attacks.reading.rows import MeasuredRows
from seepage.base.nn import input_layer
from seepage.base.rounding import DEVIATIONS, FALSE_ALARM, FLOAT32_SUM
from seepage.errors import refuse
from seepage.federation.types import Knowledge, Round, Transcript

FEWER = "ask for it of updates of fewer examples"
LAYER = "state the batch size where a batch norm reads them"
STRANGER = 0.01
"""Share of a number's size that known columns of strangers leave at the least, where they fit by chance alone."""


@dataclass(frozen=True, eq=False)
class Completed:
    """A row that was in the batch.

    Attributes:
        values: `[d]` of all columns.
        errors: `[d]` by how much each may be off.
    """

    values: Tensor
    errors: Tensor


def completed_rows(transcript: Transcript, known: Tensor, *, t: int = 0) -> list[Completed | None]:
    """The rows of people of whom some columns are known; None of each who is not shown to be in the batch.

    Args:
        transcript: What the server saw.
        known: `[k, d]` rows in the input's units; NaN where a column is not known.
        t: The round.

    Raises:
        Inapplicable: Where no fully connected layer reads the columns, or its gradient has no rank of its own.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> rows = torch.rand(3, 12, generator=torch.Generator().manual_seed(0))
        >>> seen = record(build(Architecture("fc2", {"hidden": 32}), (12,), 4), Batch(rows, torch.arange(3)))
        >>> known, stranger = rows[1].clone(), torch.rand(12, generator=torch.Generator().manual_seed(1))
        >>> known[6:], stranger[6:] = torch.nan, torch.nan
        >>> found, none = completed_rows(seen, torch.stack([known, stranger]))
        >>> bool(torch.allclose(found.values, rows[1].double(), atol=1e-4)), none
        (True, None)
    """
    knowledge, observed = transcript.knowledge, transcript[t]
    names, gain, shift, off = _reads(knowledge, observed)
    rows = MeasuredRows.of_layer(observed.measured(knowledge.client, names), *names)
    # Of an entry that a sum in float32 made.
    error = torch.hypot(rows.error.double(), FLOAT32_SUM * rows.value.double().abs())
    value, told = rows.value.double(), error.isfinite().all(1)
    rank, full, _ = rank_of(value[:, :-1], value[:, -1], False, replace(rows, error=error))
    if not rank or full:
        raise refuse("too_many_examples")(
            "the layer that reads the columns has no more of them than there are examples", FEWER
        )
    left, sizes, basis = torch.linalg.svd(value[told], full_matrices=False)
    # A direction is off by the entries' errors along its left one, over its size (Wedin 1972): variances [r, d + 1].
    scatter = left[:, :rank].T.square() @ error[told].square() / sizes[:rank, None].square()
    space = basis[:rank], scatter, torch.cat([off, off.new_zeros(1)])
    z = torch.cat([known.double() * gain + shift, torch.ones(len(known), 1, dtype=torch.float64)], 1)
    whole = torch.cat([known == known.round(), torch.ones(len(known), 1, dtype=torch.bool)], 1)
    found = [_completed(one, sure, *space) for one, sure in zip(z, whole, strict=True)]
    return [None if one is None else Completed((one[0] - shift) / gain, one[1] / gain.abs()) for one in found]


def _reads(knowledge: Knowledge, observed: Round) -> tuple[tuple[str, str], Tensor, Tensor, Tensor]:
    """Weight and bias of the layer that reads the columns; what scales and moves these before, and its error."""
    shape = knowledge.input_shape
    coupled = knowledge.client.batch_coupled(knowledge.model)
    first = None if coupled or len(shape) != 1 else input_layer(knowledge.model, observed.params, shape)
    if first is not None and first.bias is not None:
        scale, shift = first.scale.double(), first.shift.double()
        return (first.weight, first.bias), scale, shift, torch.zeros_like(shift)
    behind = read_by_norm(knowledge, observed)
    if behind is None:
        raise refuse("input_not_read")(
            "no fully connected layer with a bias reads the columns of a row, at a known scale", LAYER
        )
    return behind


def _completed(z: Tensor, whole: Tensor, basis: Tensor, scatter: Tensor, off: Tensor) -> tuple[Tensor, Tensor] | None:
    known = z.isfinite()
    rank = len(basis)
    if int((known & ~whole).sum()) <= rank:
        return None
    half, equations = z[known], basis[:, known].T  # [k], [k, r]
    shares, spread = torch.linalg.lstsq(equations, half[:, None]).solution[:, 0], torch.zeros_like(z)
    for _ in range(2):
        row = FLOAT32_SUM * (shares @ basis)
        spread = (shares.square() @ scatter + row.square() + off.square()).sqrt()
        inverse = torch.linalg.pinv(equations / spread[known, None])
        shares = inverse @ (half / spread[known])
    left = (half - equations @ shares).abs() / spread[known]
    # By chance a stranger's columns fit as well as each of those is known that are more than the unknowns.
    loose = (DEVIATIONS * spread / (STRANGER * z.abs()).clamp(min=1e-300))[known & ~whole].sort().values
    chance = float(loose[rank:].clamp(max=1.0).log().sum())
    if bool((left > DEVIATIONS).any()) or chance > math.log(FALSE_ALARM):
        return None
    error = ((inverse.T @ basis).square().sum(0) + spread.square()).sqrt()  # [d + 1]
    # What is left beside known columns may be of an example too faint for the rank, as much of which is in the others.
    return (shares @ basis)[:-1], DEVIATIONS * error[:-1] * max(1.0, float(left.max()))
