"""What a client minimizes: each loss by its name, of the model's outputs and the targets.

    target   outputs                        labels of a batch             losses
    class    [n, classes], [n, classes, T]  [n] or [n, T] int64           cross_entropy, mse, bce
    class    [n, 1]                         [n] int64, 0 or 1             binary
    value    [n, k]                         [n, k] float                  mse, bce
    map      [n, classes, h, w]             [n, h, w] int64               cross_entropy; of [n, 1, h, w] binary

Somebody's own `module:function` may be of any of them.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.base.nn import NO_TARGET
from seepage.base.registry import import_dotted, is_dotted
from seepage.errors import SeepageError, refuse, short, unknown
from seepage.federation.types import Batch, Reduction, Target

LOSSES: dict[str, str] = {
    "cross_entropy": "of the softmax of the outputs, against class numbers (one each, or one at each pixel) or chances",
    "mse": "squared difference of outputs and values, or of outputs and one-hot labels (Hui and Belkin 2021)",
    "bce": "binary cross-entropy of each class by itself, mean over the classes",
    "binary": "binary cross-entropy of one logit, the model's only output, for two classes",
}
SHARES_TOLERANCE = 1e-4
"""How far the probabilities of the classes may be from a sum of 1 and still be such."""


def check_loss(name: str, label_smoothing: float, class_weights: tuple[float, ...] = ()) -> None:
    """Raise `SeepageError` for an unknown loss, or for options that the loss does not have.

    A user-defined loss is not imported here: a rule may be named in an untrusted file (see `own_loss`).
    """
    if name not in LOSSES and not is_dotted(name):
        raise unknown("loss", name, [*LOSSES, "module:function"])
    if not 0 <= label_smoothing < 1 or (label_smoothing and name != "cross_entropy"):
        raise SeepageError(
            f"client.label_smoothing must be from 0 to below 1, and only cross_entropy has it, got {label_smoothing} "
            f"with {name}; correct the recipe's [client]"
        )
    numbers = all(isinstance(weight, int | float) and 0 <= weight < float("inf") for weight in class_weights)
    if class_weights and (name != "cross_entropy" or not numbers or not any(class_weights)):
        raise SeepageError(
            f"client.class_weights must be from 0 up, not all 0, and only cross_entropy has them, got "
            f"{short(class_weights)} with {short(name)}; correct the recipe's [client]"
        )


def target_of(labels: Tensor, loss: str, *, tokens: bool = False) -> Target:
    """Kind of training target of examples with these labels.

    Whole numbers of more than one dimension are maps, but for those of a text's `tokens`, `[n, T]`.
    Floating-point labels are probabilities of classes where they are shares of 1, or where none is negative and the
    loss is cross-entropy; else they are values.

    >>> target_of(torch.tensor([[0.2, 0.8]]), "mse"), target_of(torch.tensor([[1.7]]), "mse")
    ('class', 'value')
    """
    if not labels.is_floating_point():
        return "map" if labels.ndim > 1 and not tokens else "class"
    shares = labels.ndim == 2 and labels.shape[1] > 1 and bool((labels >= 0).all())
    if shares and loss != "cross_entropy":
        shares = bool(((labels.sum(1) - 1).abs() <= SHARES_TOLERANCE).all())
    return "class" if shares else "value"


def likely_target(outputs: tuple[int, ...], loss: str, *, tokens: bool = False) -> Target:
    """The likely kind of training target of a model, where none is stated.

    Args:
        outputs: Shape of its outputs for one example.
        loss: Name of the client's loss.
        tokens: Whether examples are texts, whose tokens each have a class of their own.

    >>> likely_target((3, 8, 8), "cross_entropy"), likely_target((1,), "mse"), likely_target((4,), "mse")
    ('map', 'value', 'class')
    """
    if len(outputs) > 1 and not tokens:
        return "map"
    return "value" if outputs == (1,) and loss == "mse" else "class"


def with_inputs(batch: Batch, outputs: Sequence[int]) -> Batch:
    """The batch of an autoencoder: each example is its own target, in the shape of the model's outputs.

    Raises:
        SeepageError: Where the outputs are of another size.
    """
    if batch.inputs[:1].numel() != math.prod(outputs):
        raise SeepageError(
            f"the targets are the inputs and the model returns outputs of shape {tuple(outputs)} for inputs of shape "
            f"{tuple(batch.inputs.shape[1:])}; leave out client.target=input, or let it return as many numbers"
        )
    return replace(batch, labels=batch.inputs.reshape(len(batch), *outputs))


def check_target(loss: str, target: Target, num_classes: int, class_weights: Sequence[float] = ()) -> None:
    """Raise `SeepageError` where a loss is not of such targets; a user-defined one may be of any.

    Args:
        loss: Its name.
        target: What the examples are trained towards.
        num_classes: Number of classes.
        class_weights: Of the classes; empty: none.
    """
    if class_weights and len(class_weights) != num_classes:
        raise SeepageError(
            f"client.class_weights has {len(class_weights)} weights for {num_classes} classes; give one for each"
        )
    if target == "value" and loss in ("cross_entropy", "binary"):
        raise SeepageError(
            f"the targets are values and the loss {loss} is of classes; train on squared errors with --loss mse, or "
            "save classes as whole numbers"
        )
    if target == "map" and loss in ("mse", "bce"):
        raise SeepageError(
            f"the targets are maps, a class at each pixel, and the loss {loss} is not of such; use --loss cross_entropy"
            ", or add --target value where they are numbers, as of a series or a picture"
        )
    if loss == "cross_entropy" and target in ("class", "map") and num_classes == 1:
        what, place = ("one output", "") if target == "class" else ("one output for each pixel", " at each pixel")
        remedy = (
            "add --loss binary where it is the logit of two classes, --loss mse where it is a value, or --loss "
            "module:function, your own loss"
            if target == "class"
            else "add --loss mse --target value where it is a number, or --loss module:function, your own loss of "
            "these outputs and of the maps"
        )
        raise SeepageError(f"the model has {what}, and a softmax of one has no gradient{place}; {remedy}")
    if loss == "binary" and num_classes != 2:
        raise SeepageError(f"the loss binary is of one logit for 2 classes, and there are {num_classes}; use another")


def loss_of(
    name: str,
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    class_weights: tuple[float, ...] = (),
    reduction: Reduction = "mean",
) -> Tensor:
    """A loss by its name: a number, or `[n]` (of tokens and pixels `[n, ...]`) where `reduction` is `none`.

    Args:
        name: One of `LOSSES`, or `module:function`.
        logits: Outputs of the model; their shapes and those of labels are in the table above.
        labels: Class numbers, or `[n, classes]` probabilities, or `[n, k]` values.
        label_smoothing: Share of each label that is spread evenly over all classes (Szegedy et al. 2016).
        class_weights: Of cross_entropy: what each class's examples are multiplied with. As in PyTorch, the mean is then
            over the sum of these weights and not over the examples.
        reduction: `mean` or `sum` over the examples, or `none`.

    >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> loss_of("mse", logits, labels), loss_of("mse", logits, labels, reduction="none")
    (tensor(0.2500), tensor([0.5000, 0.0000]))
    """
    if name == "cross_entropy":
        weights = logits.new_tensor(class_weights) if class_weights else None
        return F.cross_entropy(logits, labels, weights, reduction=reduction, label_smoothing=label_smoothing)
    if name == "binary":
        return _binary(logits, labels, reduction)
    if name not in LOSSES:
        return _own(name, logits, labels, reduction)
    targets = _targets(labels, logits)
    if name == "mse":
        entries = (logits - targets).square()  # [n, classes]
    else:
        entries = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")  # [n, classes]
    each = entries.flatten(1).mean(1)
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


def _targets(labels: Tensor, logits: Tensor) -> Tensor:
    """Class numbers `[n]` as one-hot rows `[n, classes]`; probabilities and values in the shape of the outputs."""
    if labels.is_floating_point():
        return labels.reshape(logits.shape)  # `[n]` values of a model with one output
    # `F.one_hot` looks at the values, which `vmap` over examples does not allow.
    return (labels[:, None] == torch.arange(logits.shape[1], device=logits.device)).to(logits)


def _binary(logits: Tensor, labels: Tensor, reduction: Reduction) -> Tensor:
    """Binary cross-entropy of `[n, 1, ...]` logits, the second class's chance being their sigmoid.

    Softmax of (0, z) is the sigmoid of z: it has the value and the gradient of a cross-entropy of two classes.
    """
    z = logits[:, 0]  # [n, ...]
    if labels.is_floating_point():  # `[n, 2, ...]` chances
        return _reduced(F.binary_cross_entropy_with_logits(z, labels[:, 1], reduction="none"), reduction)
    known = labels != NO_TARGET
    each = F.binary_cross_entropy_with_logits(z, (labels == 1).to(z), reduction="none") * known
    return each.sum() / known.sum() if reduction == "mean" else _reduced(each, reduction)


def _reduced(each: Tensor, reduction: Reduction) -> Tensor:
    return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


# --- a user-defined loss -----------------------------------------------------------------------------------------


@cache
def own_loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Somebody's own loss: a function of outputs and targets, or a class made without arguments. Its module is run.

    Raises:
        SeepageError: Where there is no such thing.
    """
    found = import_dotted(name)
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            raise SeepageError(
                f"the loss {short(name)} is a class that takes arguments ({error}); name one that you made of it, or a "
                "function of outputs and targets"
            ) from error
    if not callable(found):
        raise SeepageError(
            f"the loss {short(name)} is a {type(found).__name__}; name a function of outputs and targets"
        )
    own: Callable[[Tensor, Tensor], Tensor] = found
    return own


def _own(name: str, logits: Tensor, labels: Tensor, reduction: Reduction) -> Tensor:
    """Somebody's own loss. Of the whole batch it is what they wrote; of single examples that of batches of one."""
    loss = own_loss(name)
    if reduction == "mean":
        return _called(name, loss, logits, labels).mean()
    whole = _called(name, loss, logits, labels)
    if len(logits) and whole.shape[:1] == logits.shape[:1] and whole.ndim:
        each = whole.flatten(1).mean(1) if whole.ndim > 1 else whole
    else:  # a mean or a sum over the batch
        parts = zip(logits.split(1), labels.split(1), strict=True)
        each = torch.stack([_called(name, loss, *part).mean() for part in parts])
    return _reduced(each, reduction)


def _called(name: str, loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    """What user code makes of outputs and targets: in the first form of these that it takes, else in one sentence."""
    first: Exception | None = None
    for targets in _forms(logits, labels):
        try:
            with warnings.catch_warnings():
                if logits.ndim > 3:  # of [n, 1, h, w] outputs and [n, h, w] maps each would meet every other
                    warnings.filterwarnings("error", message="Using a target size")
                found: object = loss(logits, targets)
        except Exception as error:  # user code may raise anything
            first = first or error
            continue
        if not isinstance(found, Tensor) or not found.is_floating_point():
            raise SeepageError(f"the loss {short(name)} returns no tensor of numbers; let it return the loss")
        return found
    assert first is not None  # as there is a form, and none went through
    text = (str(first).splitlines() or [""])[0]
    raise refuse("does_not_run")(
        f"the loss {short(name)} fails ({type(first).__name__}: {text}) on outputs {tuple(logits.shape)} and "
        f"{str(labels.dtype).removeprefix('torch.')} targets {tuple(labels.shape)}, and on them as class numbers or "
        "chances",
        "correct it, or say what it is trained towards (--target value, map or class)",
    ) from first


def _forms(logits: Tensor, labels: Tensor) -> Iterator[Tensor]:
    """Targets as a loss may want them: as they are, as class numbers or chances, in the shape of the outputs.

    A search for labels hands over chances, and a loss may take class numbers alone; what it found are class numbers,
    and a loss of several findings at once takes none.
    """
    yield labels
    if labels.is_floating_point():
        if labels.ndim == logits.ndim - 1 and logits.shape[1] == 1:
            yield labels[:, None]
        elif labels.ndim > 1 and labels.shape[1] > 1:
            yield labels.argmax(1)
        elif labels.ndim == logits.ndim and labels.shape[1] == 1:
            yield labels[:, 0]
            yield (labels[:, 0] > 0.5).long()
        return
    if labels.ndim == logits.ndim - 1 and logits.shape[1] == 1:
        yield labels[:, None].to(logits)
    elif labels.ndim == logits.ndim - 1:
        numbers = torch.arange(logits.shape[1], device=logits.device).reshape(-1, *[1] * (labels.ndim - 1))
        yield (labels[:, None] == numbers).to(logits)
    yield labels.to(logits)
