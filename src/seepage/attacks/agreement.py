"""Whether guesses give the update that was sent."""

from torch import Tensor

from seepage.core.nn import dot, norm
from seepage.types import Batch, Knowledge, Round, Tensors


def disagreement(observed: Round, knowledge: Knowledge, inputs: Tensor, labels: Tensor) -> float:
    """How much the client's update at these inputs differs from the observed one, relatively, over what was sent.

    Args:
        observed: The round.
        knowledge: What the attacker knows of it.
        inputs: `[n, *shape]` guesses.
        labels: `[n]` their labels, as `Batch` has them.
    """
    own = knowledge.client(knowledge.model, observed.params, Batch(inputs, labels), buffers=observed.buffers).tensors
    sent = observed.update.tensors
    off: Tensors = {name: own[name] - sent[name] for name in sent}
    return float(norm(off) / dot(sent, sent).sqrt())
