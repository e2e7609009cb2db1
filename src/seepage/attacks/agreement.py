"""Whether guesses give the update that was sent, or a multiple of it."""

from torch import Tensor

from seepage.core.nn import dot, norm
from seepage.types import Batch, Knowledge, Round, Tensors

MULTIPLE = "times the gradient of the told loss"
"""In a note: the update is no gradient of the told loss at the told rate, but a multiple of one."""


def disagreement(
    observed: Round, knowledge: Knowledge, inputs: Tensor, labels: Tensor, *, up_to_size: bool = False
) -> float:
    """How much the client's update at these inputs differs from the observed one, relatively, over what was sent.

    Args:
        observed: The round.
        knowledge: What the attacker knows of it.
        inputs: `[n, *shape]` guesses.
        labels: `[n]` their labels, as `Batch` has them.
        up_to_size: Of all positive multiples of the client's update take the nearest, as in `compared`.
    """
    return compared(observed, knowledge, inputs, labels, up_to_size=up_to_size)[0]


def compared(
    observed: Round, knowledge: Knowledge, inputs: Tensor, labels: Tensor, *, up_to_size: bool = True
) -> tuple[float, float]:
    """The disagreement, and the multiple of the client's update at these inputs that it is of.

    An update that was clipped to a norm, or made at another learning rate than was told, is a multiple.
    """
    batch = Batch(inputs, labels.to(inputs.device))
    own = knowledge.client(knowledge.model, observed.params, batch, buffers=observed.buffers).tensors
    sent = observed.update.tensors
    multiple = 1.0
    if up_to_size:
        same = {name: own[name] for name in sent}
        # argmin over s of |s u - v|^2 is <u, v> / <u, u>; where that is not positive the update points elsewhere.
        best = float(dot(same, sent) / dot(same, same).clamp(min=1e-300))
        multiple = best if best > 0 else 1.0
    off: Tensors = {name: multiple * own[name] - sent[name] for name in sent}
    return float(norm(off) / dot(sent, sent).sqrt()), multiple


def multiple_words(share: float) -> str:
    r"""What an update is that holds so many times the gradient of the told loss, and what that may come from.

    The update alone does not tell the causes apart. Clipping shortens, so that it explains no share above 1.

    >>> print(multiple_words(0.25).replace(", ", ",\n"))
    the update is 0.25 times the gradient of the told loss,
    as behind clipping to a norm,
    a learning rate below the one told or inferred,
    or another loss (weighted,
    focal)
    >>> multiple_words(2.0).partition("behind ")[2]
    'a learning rate above the one told or inferred, or another loss (weighted, focal)'
    """
    causes = "clipping to a norm, a learning rate below" if share < 1 else "a learning rate above"
    return (
        f"the update is {share:.3g} {MULTIPLE}, as behind {causes} the one told or inferred, or another loss "
        "(weighted, focal)"
    )
