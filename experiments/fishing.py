"""Labels where a dishonest server sent the model: outside of this package's threat model (`labels.py --fishing`)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seepage.attacks.base import Inapplicable
from seepage.attacks.search.labels import LabelInference, batch_size_of, bias_of, counts_to_labels, largest_remainder
from seepage.base.nn import forward, in_mode
from seepage.federation.types import Knowledge, Round

ALIKE = 1e-5
"""Difference of two probabilities below which they count as the same."""


@dataclass(frozen=True)
class PresetOutputs(LabelInference):
    """Counts where the outputs are the same for every input (Wang et al., INFOCOM 2024): `n_j = n (p_j - db_j)`.

    That holds for a model that a *dishonest* server sent: with the weight of one batch norm at 0 every example has the
    same embedding and the same probabilities p, which the server knows. A server that follows the protocol sends no
    such model, so this rule refuses all others; it says what following the protocol is worth. How the sum of several
    clients is taken apart is `disaggregated`.
    """

    def __call__(self, observed: Round, knowledge: Knowledge) -> Int[Tensor, " n"]:
        n = batch_size_of(observed)
        bias = bias_of(observed, knowledge)
        low, high = knowledge.value_range
        ends = torch.stack([torch.full(knowledge.input_shape, value) for value in (low, high)])
        with torch.no_grad(), in_mode(knowledge.model, training=False):
            like = next(iter(observed.params.values()))
            logits = forward(knowledge.model, observed.params, ends.to(like), buffers=observed.buffers)
            if knowledge.client.one_logit:
                logits = torch.cat([torch.zeros_like(logits), logits], 1)
            chances = logits.softmax(1)
        if float((chances[0] - chances[1]).abs().max()) > ALIKE:
            raise Inapplicable(
                "the model's outputs depend on its inputs, as those of an honest server's model do, so they are not "
                "known beforehand",
                "use 'bias' or 'count' labels",
            )
        return counts_to_labels(largest_remainder(n * (chances[0].to(bias) - bias), n))


def disaggregated(
    weight: Float[Tensor, "classes k"], embeddings: Float[Tensor, "clients k"]
) -> Float[Tensor, "clients classes"]:
    """Each client's own bias gradient from the mean of their last weight gradients (Wang et al., INFOCOM 2024).

    With an embedding `e_m` for all examples of client m, `dW = mean_m db_m e_m^T`: a linear system in the `db_m`, which
    has one solution where the embeddings are linearly independent. As `PresetOutputs`, for a dishonest server's models.

    Args:
        weight: Mean over the clients.
        embeddings: What each client's model was made to give.

    >>> embeddings = torch.tensor([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
    >>> own = torch.tensor([[0.5, -0.5], [-0.25, 0.25]])
    >>> torch.allclose(disaggregated(own.T @ embeddings / 2, embeddings), own)
    True
    """
    # dW^T = E^T D / m with E [clients, k] and D [clients, classes].
    solution: Tensor = torch.linalg.lstsq(embeddings.T, weight.T * len(embeddings)).solution
    return solution
