"""What an update shows about how it was made, where nobody states it: local steps, batch size, labels.

Whatever is inferred here is handed to the attacks like a fact, so it stands, with its source, beside their results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from seepage.attacks.exposure.analysis import UpdateAnalysis
from seepage.attacks.exposure.labels import Head, head_of
from seepage.base.algebra.rows import LEAST_ALIKE
from seepage.base.nn import has_batch_norm, last_linear
from seepage.errors import SeepageError
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.transcript.recorded import list_transcripts, open_transcript
from seepage.federation.types import Architecture, Tensors

PROBE_COUNT = 16
"""Made-up inputs whose softmax stands in for that of the client's examples."""
SHARE_TOLERANCE = 0.2
"""Relative difference of classes' shares up to which they count as the same."""
MOST_ALIKE = 0.8
"""Share of the classes that moved down which must have moved alike, where they are not half of all classes."""
MAX_STEPS = 10_000
"""Local steps; more are taken for a wrong learning rate."""
UNSHOWN_STEPS = "assumed to be 1, as nothing shows them"
"""What is said of local steps that neither anybody states nor the update shows."""


@dataclass(frozen=True)
class InferredSteps:
    """How a difference of weights was made, as far as known.

    Attributes:
        lr: Learning rate of a step.
        steps: Steps of SGD.
        said: What of it was inferred, by name, with its source.
    """

    lr: float
    steps: int
    said: Mapping[str, str]


def infer_steps(
    model: nn.Module,
    delta: Tensors,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    lr: float | None,
    steps: int | None,
    coupled: bool = False,
) -> InferredSteps | None:
    """Learning rate and local steps of plain SGD from the last bias; None: it does not show them.

    The bias of a class that is not in the batch moves by minus `lr` times its softmax value, in each step. On a network
    that is not yet sure of anything, that value is close to the one of made-up inputs. So the classes that moved down
    the furthest, relative to it, all by the same share, were absent, and that share is `lr * steps`: too small where
    the softmax changed on the way. With batch norm in train mode the softmax depends on the batch, and that of made-up
    inputs is a rough stand-in: the estimate is called uncertain.

    Args:
        model: At the weights that were sent out.
        delta: Weights after minus before.
        input_shape: Shape of one example.
        num_classes: Classes of the model.
        lr: Learning rate, if known.
        steps: Steps, if known.
        coupled: Whether examples reach into one another's gradients, as through batch norm in train mode.

    Raises:
        SeepageError: Where the learning rate is so small that the update would take more than `MAX_STEPS` steps.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, FedAvg, build, record
        >>> model = build(Architecture("convnet"), (1, 8, 8), 10)
        >>> private = Batch(torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 6]))
        >>> sent = record(model, private, client=FedAvg(lr=0.01, steps=3))[0].update.tensors
        >>> infer_steps(model, sent, (1, 8, 8), 10, lr=0.01, steps=None).steps
        3
    """
    if lr is not None and steps is not None:
        return InferredSteps(lr, steps, {})
    travel, name = _last_travel(model, delta, input_shape, num_classes, coupled=coupled)
    loss = "the loss is a mean cross-entropy of labels not smoothed"
    where = f"if {loss}, and classes where {name} moved alike are in no example"
    if coupled:
        norms = "batch norm in train mode gives every batch another softmax"
        where += f"; uncertain, as {norms if has_batch_norm(model) else 'examples reach into one another'}"
    if lr is not None:
        if travel is None:
            return InferredSteps(lr, 1, {"local steps": UNSHOWN_STEPS})
        found = max(1, round(travel / lr))
        if found > MAX_STEPS:
            raise SeepageError(
                f"at the learning rate {lr:g} this update would take about {found:.2g} local steps; give --steps, or "
                "the right --lr"
            )
        # Too small a rate looks like more steps, and momentum lengthens all but the first one.
        plain = " without momentum" if found > 1 else ""
        single = f"; if it was one, its rate was about {travel:.2g}: --steps 1 --lr {travel:.2g}" if found > 1 else ""
        return InferredSteps(lr, found, {"local steps": f"{found} or more{plain}, {where}{single}"})
    if travel is None:
        return None
    if steps is not None:
        return InferredSteps(travel / steps, steps, {"learning rate": f"about {travel / steps:.2g}, {where}"})
    return InferredSteps(
        travel, 1, {"learning rate": f"about {travel:.2g} if it was one step, else that is rate times steps; {where}"}
    )


def rate_doubt(model: nn.Module, delta: Tensors, input_shape: tuple[int, ...], classes: int, lr: float) -> str | None:
    """That the last bias moved as at another rate than the stated one for one step; None where it does not say so.

    Nesterov's momentum m makes a first step `1 + m` times as long, and several steps taken for one do so too. Not for
    examples that reach into one another's gradients: with batch norm in train mode the softmax of made-up inputs says
    too little of the client's own to contradict anybody.

    Args:
        model: At the weights that were sent out.
        delta: Weights after minus before.
        input_shape: Shape of one example.
        classes: Of the model.
        lr: As stated.
    """
    travel, bias = _last_travel(model, delta, input_shape, classes, coupled=False)
    if travel is None or bias is None or abs(travel / lr - 1) <= SHARE_TOLERANCE:
        return None
    # Made-up inputs may give the labels another share than the client's do, and with it all other classes. But these
    # have no more than all of it: more than `lr` of one step contradicts whatever the inputs are.
    if travel > lr >= float(-delta[bias].double().clamp(max=0).sum()):
        return None
    return f"classes that are in no example moved as at about {travel:.2g} in one step, and {lr:.3g} was stated"


def _last_travel(
    model: nn.Module, delta: Tensors, input_shape: tuple[int, ...], classes: int, *, coupled: bool
) -> tuple[float | None, str | None]:
    """`lr * steps` from the last bias, or None, and the bias's name."""
    names = last_linear(model, classes)
    if names is None or names[1] is None or names[1] not in delta:
        return None, None
    head = head_of(model, {}, input_shape, names[0], count=PROBE_COUNT, training=coupled)
    return _travel(-delta[names[1]].double(), head), names[1]


def _travel(slopes: Tensor, head: Head) -> float | None:
    """`lr * steps` from the last bias's summed slopes `[classes]`, or None where classes do not agree on one share.

    The slope at a class that is in no example is its softmax value only where that is of what the layer returns.
    """
    usual = head.softmax
    if head.kind != "outputs" or slopes.shape != usual.shape or not (slopes > 0).any():
        return None
    # An absent class c has b_c(after) - b_c(before) = -lr * steps * p_c, with its softmax value p_c: one share for all.
    shares = (slopes / usual)[slopes > 0]
    same = shares[shares > (1 - SHARE_TOLERANCE) * shares.max()]
    if len(same) < LEAST_ALIKE or 2 * len(same) < len(shares):
        return None
    # Of many labels every class may be there, and some as often as others by chance: with a label at each place, and
    # where classes moved down by less. (Of 1,600 fresh batches of 4 to 128 digits 7 in 527 are off by a fifth and more
    # so, and 31 in 630 else.)
    if 2 * len(same) < len(slopes) and (head.places > 1 or len(same) < MOST_ALIKE * len(shares)):
        return None
    travel = float(same.median())
    # Each step's positive slopes sum to less than 1.
    return max(travel, float(slopes.clamp(min=0).sum()))


def infer_size(found: UpdateAnalysis) -> tuple[int | None, str]:
    """The batch size by the rank of the layers, and where it was read; None, and why, where they do not show it.

    Examples that the model is sure of leave next to nothing in the update, so there may be more than the rank.

    Args:
        found: Of the update, by itself.
    """
    if found.rank is None:
        rounded = any(one.name == "rounded" for one in found.defenses) and bool(found.layers)
        return None, found.changed or (
            "rounding hides it" if rounded else "no fully connected layer tells it by its rank"
        )
    # A layer behind others can have no higher rank than they leave it; one that reads the input is bound by itself.
    inputs = [layer for layer in found.layers if layer.reads == "input"]
    once = found.single or not inputs  # each of several steps on the same examples adds inner vectors, and no input
    most = found.rank if once else max(layer.examples for layer in inputs)
    tells = inputs or [layer for layer in found.layers if layer.reads == "features" and layer.examples == found.rank]
    bound = [layer for layer in tells if layer.full or layer.rank in (layer.neurons, layer.width)]
    # Of two classes the last layer has rank one whatever comes in; what is in front of its features has its own.
    tells = [layer for layer in tells if layer not in bound or not (layer.last or inputs)] or tells
    tells.sort(key=lambda layer: -layer.examples)  # of inputs that several layers read each is bound by itself
    full = next((layer for layer in tells if layer in bound), None)
    if full is None and tells[0].examples < most:
        return None, "the ranks of the layers contradict one another"
    if full is not None:
        many = f"{found.rank} examples or more, noise, or entries left out"
        return None, f"{full.weight} has the highest rank that it can have, by {many}"
    first = tells[0]
    if first.more:
        return None, f"the rank of {first.weight} has no clear end: more than rounding is left behind it"
    more = ", to which the batch norm behind it adds one" if first.centered else ""
    words = f"{first.examples} or more, from the rank of {first.weight}{more}, augmented views counted"
    words += "" if found.single or first.reads == "input" else ", if it was one step"
    return first.examples, words if found.at_least else f"assumed: {words}{found.provided}"


def infer_sizes(observed: Path, model: Architecture | None = None) -> dict[str, tuple[int, str]]:
    """The batch size of each recorded folder that has none, with its source, as far as the update shows it.

    Args:
        observed: An `observed/` folder, or one with several below it.
        model: Use this model instead of the recorded one.

    Returns:
        By the folder's name. Folders that cannot be read are left out: who attacks them says why.
    """
    found = {}
    for folder in list_transcripts(observed):
        try:
            if read_facts(folder).batch_size is not None:
                continue
            seen = open_transcript(folder, architecture=model)
            size, words = (None, "") if seen[0].batch_size is not None else infer_size(UpdateAnalysis(seen))
        except SeepageError:
            continue
        if size is not None:
            found[folder.name] = size, words
    return found
