"""Why known indices matter: the example of CAFE's supplement B, three samples of a logistic regression, made explicit.

python experiments/cafe_unique.py --seeds 3

One gradient of all three samples (N = K = 3, equation 10) is met by other data too (equation 12): two samples are
replaced by others with the same sum of gradients. The three gradients of pairs (K = 2, equation 14) are not.
"""

from dataclasses import dataclass
from itertools import combinations

import torch
from cafe_parties import prepare, rounded
from common import Row, command, keep
from torch import Tensor

from seepage.attacks.cafe import Cafe
from seepage.federation.transcript.designs import Listed
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.federation.types import Batch

PAIRS = tuple(combinations(range(3), 2))


@dataclass(frozen=True)
class Undesired:
    """Data that are not private and have the private data's gradient, all three together.

    Attributes:
        inputs: `[3, d]`; the third is the private one.
        labels: `[3, 2]` probabilities.
    """

    inputs: Tensor
    labels: Tensor


def undesired(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, share: float) -> Undesired:
    """Equation 12 for logistic regression: the first two samples exchange a share of their gradients.

    A sample's gradient is `v x^T` and `v`, with `v = softmax(W x + b) - y`. With `V' = A V` and `X' = A^-1 X` for the
    symmetric `A = [[1 - a, a], [a, 1 - a]]` both sums stay: `V'^T X' = V^T X`, and A's columns add up to one. The
    labels that belong to V' follow from the new inputs; for two classes and samples of different ones they are
    probabilities.

    Args:
        x: `[3, d]` private inputs, the first two of different classes.
        y: `[3, 2]` their labels, one-hot.
        weight: `[2, d]`.
        bias: `[2]`.
        share: a, above 0 and below 1/2.
    """
    v = (x[:2] @ weight.T + bias).softmax(1) - y[:2]  # [2, 2]
    mix = torch.tensor([[1 - share, share], [share, 1 - share]], dtype=x.dtype)
    inputs = torch.linalg.inv(mix) @ x[:2]  # [2, d]
    labels = (inputs @ weight.T + bias).softmax(1) - mix @ v
    return Undesired(torch.cat([inputs, x[2:]]), torch.cat([labels, y[2:]]))


def misfit(victim: IndexedVictim, guess: Undesired, rows: tuple[int, ...]) -> float:
    """The squared distance of the guess's gradient from the private one over these samples, over the latter's."""
    rule, model, params = victim.knowledge.client, victim.knowledge.model, victim.params
    chosen = list(rows)
    true = rule(model, params, Batch(victim.data.inputs[chosen], victim.data.labels[chosen])).tensors
    made = rule(model, params, Batch(guess.inputs[chosen], guess.labels[chosen])).tensors
    apart = sum(float((made[name] - g).square().sum()) for name, g in true.items())
    return apart / sum(float(g.square().sum()) for g in true.values())


def example(seed: int) -> tuple[IndexedVictim, Undesired]:
    """Three patients of scikit-learn's breast-cancer table, two of them of different classes, and what else fits."""
    from sklearn import datasets

    x, y = datasets.load_breast_cancer(return_X_y=True)
    whole = torch.from_numpy((x - x.min(0)) / (x.max(0) - x.min(0))).float()
    labels = torch.from_numpy(y).long()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    first, second = (order[labels[order] == one][0] for one in (0, 1))
    third = next(n for n in order if n not in (first, second))
    chosen = torch.stack([first, second, third])
    # In the middle half of the range, so that the other solution lies within it too.
    data = Batch(0.25 + whole[chosen] / 2, labels[chosen])
    design = Listed(samples=3, batch_size=2, batches=PAIRS)
    victim = prepare(data, design, 3, seed=seed, classes=2, model_options={"parties": 1, "body": "logistic"})
    weight, bias = (victim.params[f"parties.0.first.{name}"] for name in ("weight", "bias"))
    return victim, undesired(data.inputs, torch.eye(2)[data.labels], weight, bias, 0.2)


def main(*, seeds: int = 3) -> None:
    """A row for each seed: misfits of the other solution, and what CAFE makes of the three pairs."""
    for seed in range(seeds):
        victim, other = example(seed)
        found = Cafe()(victim.transcript(), seed=0)
        pairs = [rounded(misfit(victim, other, pair)) for pair in PAIRS]
        row: Row = {"seed": seed, "samples": 3, "one_gradient": rounded(misfit(victim, other, (0, 1, 2)))}
        row |= {"pairs": pairs, "largest_pair": max(pairs), "apart": _apart(other.inputs, victim.data.inputs)}
        row |= {"cafe_apart": _apart(found.inputs, victim.data.inputs), "data": "breast_cancer"}
        keep("cafe/unique", "three samples, pairs", "largest_pair", row)


def _apart(a: Tensor, b: Tensor) -> float:
    return rounded(float((a - b).abs().max()))


if __name__ == "__main__":
    command(main)
