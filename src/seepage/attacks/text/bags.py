"""Which tokens stood together, where a network reads the mean or the sum of a text's word vectors.

All tokens of text i then have one gradient d_i, times how often they stand there, so that a word's row is

    dL/dE_v = sum over i of c_iv d_i

and rows of tokens that one text alone holds point one way. A direction of several rows is a text, where there are as
many directions as texts: of two classes all d_i are parallel, and nothing is said. Tokens of several texts follow by
least squares without negative counts.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.attacks.text.positions import slopes_of
from seepage.base.nn import generator, token_table
from seepage.base.rounding import DEVIATIONS, FLOAT32_NETWORK, FLOAT32_SUM
from seepage.errors import SeepageError
from seepage.federation.types import Knowledge, Round

FEWEST = 3
"""Rows of one direction that are taken for a text: fewer may be parallel by a chance of rounding."""
MOST_ROWS = 4096
"""Rows that are compared with one another."""
CONDITION = 100
"""Times the angle of a row's error that directions must span, for sums of them to be told apart."""
LEAST_SHARE = 0.2
"""Part of its text's least count from which a token counts as standing there."""


@dataclass(frozen=True, eq=False)
class Bags:
    """Tokens that stood together.

    Attributes:
        table: The parameter that holds the words' rows.
        texts: For each text its tokens, each with how often it stood there for each time that the rarest did.
        open: Tokens that no text explains.
    """

    table: str
    texts: tuple[tuple[tuple[int, float], ...], ...]
    open: int = 0

    @property
    def words(self) -> str:
        """How much is known, for people."""
        sizes = ", ".join(str(len(text)) for text in self.texts)
        rest = f"; {self.open} tokens stay open" * bool(self.open)
        found = f"which tokens stood together: {len(self.texts)} texts of {sizes} distinct tokens"
        return f"{found}, by rows of {self.table} that point one way{rest}"


def bags_of(knowledge: Knowledge, observed: Round) -> Bags | None:
    """Which tokens stood together in the texts behind a round's update.

    Args:
        knowledge: What the attacker knows.
        observed: The round, of a known number of texts.

    Returns:
        None where the network does not read sums of word vectors (tried by one pass), the update is no gradient, or
        rows have not as many directions as there are texts.
    """
    table, count = token_table(knowledge.model), observed.batch_size
    if table is None or len(knowledge.input_shape) != 1 or count is None or count < 2:
        return None
    name = f"{table[0]}.weight" if table[0] else "weight"
    if name not in observed.update.tensors or not _pools(knowledge, observed, table[0], name):
        return None
    try:
        seen = observed.measured(knowledge.client, [name])
    except SeepageError:
        return None
    rows, off = seen.value[name], seen.error[name]
    live = (rows.abs() > DEVIATIONS * off).any(1).nonzero().flatten()
    if not FEWEST * count <= len(live) <= MOST_ROWS or not bool(off[live].isfinite().all()):
        return None
    rows, off = rows[live], off[live]
    # Angle by which each row may be off: its errors, and those of sums in float32, over its length. [v]
    angle = (off.square() + (FLOAT32_SUM * rows.abs().amax(1, keepdim=True)).square()).sum(1).sqrt() / rows.norm(dim=1)
    units = F.normalize(rows, dim=1)
    apart = torch.cdist(units, units)
    same = apart <= DEVIATIONS * torch.hypot(angle[:, None], angle[None])
    directions, taken = list[Tensor](), torch.zeros(len(live), dtype=torch.bool)
    for k in angle.argsort().tolist():
        group = same[k] & ~taken
        if not taken[k] and int(group.sum()) >= FEWEST:
            taken |= group
            sizes = rows[group].norm(dim=1)
            directions.append(units[group].mean(0) * sizes.min())
    # Rows of d numbers agree by a chance of about angle^(d - 1), which of wide rows is nothing.
    wide = (rows.shape[1] - 1) * math.log(max(float(angle.median()), 1e-12)) < -20
    basis = _extreme(torch.stack(directions), float(angle.max())) if directions and wide else rows[:0]  # [n, d]
    if len(basis) != count:
        return None
    values = torch.linalg.svdvals(F.normalize(basis, dim=1))
    unique = float(values[-1]) > CONDITION * float(angle.max()) and len(basis) <= basis.shape[1]
    counts = _without_negatives(rows, basis) if unique else _along(rows, basis, same_as=angle)
    left = (rows - counts @ basis).norm(dim=1) / rows.norm(dim=1)
    told = left <= DEVIATIONS * angle + FLOAT32_NETWORK
    named = [
        [
            (int(live[v]), round(float(counts[v, i]), 2))
            for v in told.nonzero().flatten().tolist()
            if counts[v, i] > LEAST_SHARE
        ]
        for i in range(count)
    ]
    return Bags(name, tuple(map(tuple, named)), int((~told).sum()))


def _extreme(directions: Tensor, angle: float) -> Tensor:
    """The directions that are no sums of others: tokens that two texts hold alike are parallel as well."""
    kept = list(range(len(directions)))
    for k in range(len(directions)):
        rest = [one for one in kept if one != k]
        if not rest:
            break
        share = _without_negatives(directions[k : k + 1], directions[rest])
        if float((directions[k] - share[0] @ directions[rest]).norm() / directions[k].norm()) <= DEVIATIONS * angle:
            kept = rest
    return directions[kept]


def _along(rows: Tensor, basis: Tensor, same_as: Tensor) -> Tensor:
    """`[v, n]` counts of the rows that point one direction's way; 0 of all others, of which several sums are left."""
    units = F.normalize(basis, dim=1)
    counts = rows @ units.T / basis.norm(dim=1)
    nearest = torch.cdist(F.normalize(rows, dim=1), units)
    return torch.where(nearest <= DEVIATIONS * same_as[:, None] + FLOAT32_SUM, counts, 0.0)


def _pools(knowledge: Knowledge, observed: Round, layer: str, name: str) -> bool:
    """Whether all tokens of a text have one gradient, by one pass on made-up texts of distinct tokens."""
    (length,), rows = knowledge.input_shape, len(observed.params[name])
    if 2 * length > rows:
        return False
    ids = torch.randperm(rows, generator=generator(0, "token set"))[: 2 * length].reshape(2, length)
    slopes = slopes_of(knowledge, observed, layer, ids, [name])
    found = None if slopes is None else slopes[1]
    if found is None:
        return False
    own = found[ids.flatten().to(found.device)].reshape(2, length, -1)
    size = float(own.abs().max())
    return size > 0 and bool(((own - own[:, :1]).abs() <= FLOAT32_NETWORK * size).all())


def _without_negatives(rows: Tensor, basis: Tensor) -> Tensor:
    """`[v, n]` counts c >= 0 with the least `|rows - c basis|`, by scipy, row by row."""
    from scipy.optimize import nnls  # heavy, and only this needs it

    columns = basis.T.cpu().numpy()
    return torch.stack([torch.from_numpy(nnls(columns, row)[0]) for row in rows.cpu().numpy()]).to(rows)
