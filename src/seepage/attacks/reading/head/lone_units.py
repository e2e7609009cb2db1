"""Slopes of single examples, read from units of the last layer's input that are on for one example alone.

This asks nothing of the number of examples: it also holds where there are more of them than classes, and the gradient's
rank no longer separates them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from seepage.base.algebra.rows import LEAST_ALIKE, groups
from seepage.base.nn import last_linear
from seepage.errors import Inapplicable
from seepage.federation.types import Knowledge, Round

CERTAINTY = 6.0
"""Distance of two directions, in standard deviations of their errors, up to which they agree."""
STRAY = 3.0
"""Distance, in units of that up to which two agree, up to which a direction is no example of its own."""
COARSEST = 1e-3
"""Error of a unit's direction above which the unit is left out: by chance too many would agree."""


@dataclass(frozen=True)
class LoneSlopes:
    """Examples that are the only ones at some units.

    Attributes:
        slopes: `[m, C]` float64, softmax minus label of each example, at length 1.
        labels: `[m]` its label, ascending.
        units: `[m]` number of units that agree.
    """

    slopes: Float[Tensor, "m C"]
    labels: Int[Tensor, " m"]
    units: Int[Tensor, " m"]


def lone_slopes(observed: Round, knowledge: Knowledge) -> LoneSlopes:
    """Slopes and labels of the examples that some units of the last layer's input have for themselves.

    Column j of `G = A^T F` is the sum over examples of their slopes times their feature j. Behind a ReLU a unit may be
    on for one example alone, and its column is that example's slopes times a number. Columns of mixtures have
    directions of their own, so directions in which several columns agree are those of single examples. A direction that
    two others make up is left out: where two images are flat, many units mix them at one ratio.

    The label is where the slopes are negative: softmax minus label is negative there alone.

    Args:
        observed: A round whose update is one plain gradient.
        knowledge: What the attacker knows.

    Raises:
        Inapplicable: Without a last linear layer or without a plain cross-entropy.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("fc2", {"hidden": 512}), (1, 4, 4), 6)
        >>> images = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        >>> seen = record(model, Batch(images, torch.tensor([0, 0, 1, 2])))
        >>> lone_slopes(seen[0], seen.knowledge).labels
        tensor([0, 0, 1, 2])
    """
    names = last_linear(knowledge.model, knowledge.num_outputs)
    if names is None or not knowledge.softmax_labels:
        raise Inapplicable(
            f"the model has no fully connected layer with {knowledge.num_classes} outputs, or the client's loss is no "
            "plain cross-entropy",
            "use a model that ends in such a layer, and a client that trains on cross-entropy",
        )
    columns = observed.gradient(knowledge.client)[names[0]].double().T  # [k, C]
    # Softmax minus label sums to zero over the classes, so what a column sums to is error, of C entries.
    deviation = float(columns.sum(1).square().mean().sqrt()) / columns.shape[1] ** 0.5
    rounding = torch.finfo(observed.update.tensors[names[0]].dtype).eps
    size = columns.norm(dim=1)
    error = columns.shape[1] ** 0.5 * deviation / size.clamp(min=1e-300) + rounding
    sharp = error < COARSEST
    directions, units, reach = _agreed(F.normalize(columns[sharp], dim=1), CERTAINTY * error[sharp])
    made = [_made_of_two(directions, reach, place) for place in range(len(directions))]
    single = ~torch.tensor(made, dtype=torch.bool)
    # A direction with more than one negative entry (beyond errors) is no example's.
    single &= (directions < -COARSEST).sum(1) == 1
    slopes, labels, units = directions[single], directions[single].argmin(1), units[single]
    order = labels.argsort(stable=True)
    return LoneSlopes(slopes[order], labels[order], units[order])


def _agreed(
    directions: Float[Tensor, "k C"], error: Float[Tensor, " k"]
) -> tuple[Float[Tensor, "m C"], Int[Tensor, " m"], Float[Tensor, " m"]]:
    """Directions in which several agree, `[m, C]`, how many, and the least error among them; the most first."""
    apart = torch.cdist(directions, directions) / (error[:, None] + error)
    found, units, reach = [directions[:0]], [], [error[:0]]
    for _, own in groups(apart < 1, least=LEAST_ALIKE, strays=apart <= STRAY):
        # The mean of those that agree, the exact ones counting for more.
        found.append(F.normalize((directions[own] / error[own, None].square()).sum(0), dim=0)[None])
        units.append(int(own.sum()))
        reach.append(error[own].min()[None])
    return torch.cat(found), torch.tensor(units, dtype=torch.long), torch.cat(reach)


def _made_of_two(directions: Float[Tensor, "m C"], reach: Float[Tensor, " m"], place: int) -> bool:
    """Whether a direction is a sum of two others with positive weights, up to the errors of all three."""
    rest = [other for other in range(len(directions)) if other != place]
    if len(rest) < 2:
        return False
    pairs = torch.combinations(torch.tensor(rest))
    basis = directions[pairs].transpose(1, 2)  # [pairs, C, 2]
    weights = torch.linalg.pinv(basis) @ directions[place]  # [pairs, 2]
    off = (basis @ weights[:, :, None])[:, :, 0] - directions[place]
    allowed = reach[place] + (weights * reach[pairs]).sum(1)
    return bool(((weights > 0).all(1) & (off.norm(dim=1) < allowed)).any())
