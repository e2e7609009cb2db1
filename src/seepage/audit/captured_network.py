"""The network of captured weights: for which shape of an example and how many classes they were made.

    how it is built --> a sketch --> classes, from the head --> likely shapes, from its first layer and from the weights
                                                                   |
    a network that takes such examples  <--  one guarded pass  <--  weights that fit it, shape by shape

Whatever a network raises for an example is a sentence here, before anything is inferred with it.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.network.outputs import outputs_of
from seepage.base.nn import Table, as_inputs, in_mode, logits_in, logits_words, on_meta, try_inputs
from seepage.base.registry import is_network_file, models
from seepage.errors import SeepageError
from seepage.federation.models import build, trusted, warned_words
from seepage.federation.models.factories import is_told
from seepage.federation.models.naming import other_names, tied_names
from seepage.federation.models.normalize import TAKEN
from seepage.federation.models.trial import Untaken, tried
from seepage.federation.types import Architecture

Shape = tuple[int, ...]

COMMON_SHAPES: tuple[Shape, ...] = (
    (3, 32, 32), (1, 28, 28), (1, 32, 32), (3, 28, 28), (3, 64, 64), (1, 64, 64), (3, 224, 224), (1, 8, 8),
)  # fmt: skip
"""Shapes of examples that weights are tried against, the likeliest first."""
SIDES = (32, 28, 64, 224, 8, 16, 48, 96, 112, 128, 160, 192, 256, 299, 384)
"""Sides of square pictures that a first convolution is tried with, the likeliest first."""
MORE_TRIES = 4
"""Shapes that are tried after the first one that passes, to say whether it is the only one."""
PHOTOGRAPH, PHOTOGRAPH_CLASSES = 224, 1000
"""Side of the pictures of a network for so many classes whose first convolution takes two pixels at a step."""
UNTOLD = "nothing in the files tells"
"""Beginning of an error that asks for the shape."""
FEWEST_PLACES = 8
"""Rows of a table from which on it may be one of places, so that no text is longer."""

DEFAULT_LENGTH = 16
"""Tokens of a text that are assumed where nothing tells them."""

ANOTHER_SHAPE = "if examples have another shape, give it with --shape"
"""The remedy where the inferred shape may be wrong."""
TAKEN_FOR = "examples are assumed to be"
"""Beginning of the remark on the assumed shape, where others fit the weights as well."""
DEFAULT_CLASSES = 10
"""Number of classes that is assumed where nothing determines it."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network that takes examples of a shape, with the weights that it was built with.

    Attributes:
        model: The network.
        input_shape: Shape of one example.
        outputs: Number of outputs that it was built with, or has, where its factory takes no such number.
        inferred: Name of each inferred fact, to its source.
        warned: A sentence on warnings of its factory.
        pools: A sentence where pictures of other sizes fit as well, so that the result depends on the assumed size.
        unfit: Addition to an error about weights that do not fit it; empty where the shape was stated.
        classes_last: The last axis of its outputs is that of the classes, and they have more than two.
    """

    model: nn.Module
    input_shape: Shape
    outputs: int
    inferred: Mapping[str, str]
    warned: str | None = None
    pools: str | None = None
    unfit: str = ""
    classes_last: bool = False


def find_network(
    architecture: Architecture,
    state: Mapping[str, Tensor],
    shape: Shape | None,
    classes: int | None,
    moved: Callable[[], Mapping[str, Tensor]] = dict,
) -> Network:
    """The network that weights belong to. A shape or a number of classes that is not stated is found by trial.

    Args:
        architecture: How to build it; this runs user code.
        state: The weights, by name.
        shape: Shape of one example; None: not stated.
        classes: Outputs, if known.
        moved: Makes what each of them moved by, or its gradient, as far as it was sent: tells how long texts were.

    Raises:
        SeepageError: Where it cannot be built or takes no such example, and where nothing tells the shape.
    """
    factory_warnings: list[str] = []
    stated = DEFAULT_CLASSES if classes is None else classes
    sketch = _sketch(architecture, factory_warnings, COMMON_SHAPES if shape is None else (shape,), stated)
    head = None if classes is not None else _head(sketch, state, DEFAULT_CLASSES)
    outputs = stated if head is None else head
    texts = [one for one in sketch.modules() if isinstance(one, Table)] if shape is None else []
    tensors = (_in_names_of(sketch, moved()), _in_names_of(sketch, state)) if texts else None
    length, source = (DEFAULT_LENGTH, "") if tensors is None else _length(sketch, texts, *tensors)
    if shape is not None:
        shapes = [shape]
    else:
        shapes = [(length,)] if texts else list(_likely(architecture, sketch, state, outputs))
    tries = _Tries(architecture, state, outputs, sketch, as_asked=outputs == stated)
    warned = warned_words(architecture, factory_warnings)
    tries.add(shapes)
    if texts and not (tries.passing and (source or _reads_last(*tries.passing[0][:2]))):
        source, tries.passing = "", []
        tries.add(_lengths(sketch, texts))
        tries.passing = [one for one in tries.passing if _reads_last(*one[:2])]
        if not tries.passing:
            raise _untold_text(architecture, texts)
    if not tries.passing and shape is None:
        tries.add(COMMON_SHAPES)
    inferred = {} if classes is not None else {"classes": _source_of_classes(outputs, head, outputs)}
    if not tries.passing:
        if tries.failed is not None:
            raise _refusal(architecture, *tries.failed, known=shape is not None)
        taken = shape or next((one for one in shapes if tries.builds(one)), COMMON_SHAPES[0])
        model, unfit = build(architecture, taken, outputs), _unfit(shape, taken, state)
        return Network(model=model, input_shape=taken, outputs=outputs, inferred=inferred, unfit=unfit, warned=warned)
    taken, model, output = tries.passing[0]
    pools = None
    if shape is None:
        words = ",".join(map(str, taken))
        fits = f"{words}, to which the weights fit"
        if source:
            # The last input of a text whose tokens are each predicted from those before has no gradient.
            more = ", or one more where a last token is only predicted" * (logits_in(output).ndim > 2)
            fits = f"{words}, {source}{more}"
        elif texts and taken == (DEFAULT_LENGTH,):
            fits = f"assumed: {words} tokens; {ANOTHER_SHAPE}"
        inferred = {"input shape": fits, **inferred}
        other = next((one for one, *_ in tries.passing[1:] if math.prod(one) != math.prod(taken)), None)
        if other is not None:
            more = ",".join(map(str, other))
            inferred["input shape"] = f"assumed: {fits}, as they do {more} and perhaps others; {ANOTHER_SHAPE}"
            pools = (
                f"{TAKEN_FOR} {words}, and reconstructions are of that shape, though the network takes pictures of any "
                f"size; {ANOTHER_SHAPE}, such as --shape {more}"
            )
    where, wide = model.__dict__.get(TAKEN, logits_words(output)), logits_in(output)
    inferred |= {} if where is None else {"logits": where}
    made = outputs_of(model, taken, bent=True) if wide.ndim > 2 or classes is None else None
    last, axis = False, 1
    if made is not None:
        outputs, axis = made.classes, made.axis
        tied, own = tied_names(model), f"{made.layer}." if made.layer else ""
        rows = {tied.get(name, name) for name in (f"{own}weight", f"{own}bias")}
        if classes is None and not rows & set(_in_names_of(model, state)):
            inferred["classes"] = _source_of_classes(outputs, None, outputs)
        elif classes is None:
            inferred["classes"] = f"{outputs}, the rows of {made.layer or 'the last layer'}, which makes the outputs"
    elif classes in wide.shape[2:] and classes != wide.shape[1]:
        axis = wide.ndim - 1 if wide.shape[-1] == classes else 1
    elif classes is None and wide.ndim == 1:
        outputs, inferred["classes"] = 1, "1, as the network returns one number for each example"
    elif classes is None and wide.ndim > 1:
        head = _head(model, state, wide.shape[1])  # of a network that takes no number of classes, its own
        outputs, told = wide.shape[1], wide.ndim == 2
        inferred["classes"] = _source_of_classes(outputs, head, built_for=DEFAULT_CLASSES if told else outputs)
    last = wide.ndim > 2 and axis == wide.ndim - 1
    if last:
        inferred["class axis"] = f"the last of {wide.ndim}"
    return Network(
        model=model,
        input_shape=taken,
        outputs=outputs,
        inferred=inferred,
        pools=pools,
        warned=warned,
        classes_last=last,
    )


class _Tries:
    """Shapes that were tried: those whose network has the weights' shapes and takes such an example.

    Attributes:
        passing: Each with the network and what that returned.
        failed: The first one whose network has the weights' shapes and does not take it, with the error.
    """

    def __init__(
        self,
        architecture: Architecture,
        state: Mapping[str, Tensor],
        outputs: int,
        sketch: nn.Module,
        *,
        as_asked: bool,
    ) -> None:
        self.passing: list[tuple[Shape, nn.Module, Any]] = []
        self.failed: tuple[Shape, Untaken] | None = None
        self._architecture, self._state, self._outputs = architecture, state, outputs
        own = models.is_foreign(architecture.use)
        saved = is_network_file(architecture.use)
        shaped, counted = (
            (False, False) if saved else is_told(models.find(architecture.use).make) if own else (True, True)
        )
        self._same = not shaped  # the same network, whatever the shape
        self._built = sketch if self._same and (as_asked or not counted) else None

    def add(self, shapes: Iterable[Shape]) -> None:
        """Try shapes until two pass; few after the first one, which only show that it is not the only one."""
        more = MORE_TRIES
        for shape in shapes:
            if len(self.passing) > 1 or not more:
                return
            self._try(shape)
            more -= bool(self.passing)

    def builds(self, shape: Shape) -> bool:
        """Whether there is a network for such examples, whatever its weights."""
        try:
            return self._network(shape) is not None
        except SeepageError:
            return False

    def _try(self, shape: Shape) -> None:
        try:
            model = self._network(shape)
        except SeepageError:
            return
        if not _fits(model, self._state):
            return
        if self._same:
            try_inputs(model, shape)  # which it saw with examples of another shape, or not at all
        try:
            zeros = torch.zeros(2, *shape, device=next(model.parameters()).device)
            self.passing.append((shape, model, tried(model, as_inputs(model, zeros))))
        except Untaken as error:
            self.failed = self.failed or (shape, error)

    def _network(self, shape: Shape) -> nn.Module:
        """A network for such examples; of one that cannot be the first to pass a sketch."""
        if self._same and self._built is not None:
            return self._built
        sketch = None if self._same else _on_meta(self._architecture, shape, self._outputs)
        if sketch is not None and (self.passing or not _fits(sketch, self._state)):
            return sketch
        self._built = build(self._architecture, shape, self._outputs)
        return self._built


def _sketch(architecture: Architecture, heard: list[str], shapes: tuple[Shape, ...], classes: int) -> nn.Module:
    """The network for the first of these shapes that it can be built for: of those known by name on the meta device."""
    first: SeepageError | None = None
    for shape in shapes:
        try:
            sketch = _on_meta(architecture, shape, classes) if trusted(architecture) else None
            return build(architecture, shape, classes, heard=heard) if sketch is None else sketch
        except SeepageError as error:
            first = first or error
    assert first is not None
    raise first


def _on_meta(architecture: Architecture, shape: Shape, classes: int) -> nn.Module | None:
    """The network on the meta device, where nothing is allocated; None where it cannot be built there."""
    try:
        with on_meta():
            return build(architecture, shape, classes)
    except SeepageError:
        return None  # some networks read tensor values while they are built, which the meta device does not have


def _in_names_of(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    given = other_names(state, model)
    return {given.get(name, name): tensor for name, tensor in state.items()}


def _fits(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """Whether a network has the state's names and shapes; personal layers and frozen ones may be missing."""
    own, given = dict(model.named_parameters()), _in_names_of(model, state)
    there = [name for name in own if name in given]
    return bool(there) and all(given[name].shape == own[name].shape for name in there)


def _head(model: nn.Module, state: Mapping[str, Tensor], built_for: int) -> int | None:
    """Number of classes of the weights: rows of the last layer with that many; None: it is not among the weights."""
    own, given = dict(model.named_parameters()), _in_names_of(model, state)
    last = next((name for name in reversed(own) if own[name].ndim and len(own[name]) == built_for), None)
    if last is None:
        return None
    layer = last.rpartition(".")[0]
    rows = [name for name in own if name.rpartition(".")[0] == layer and name in given and own[name].ndim]
    return next((len(given[name]) for name in rows if given[name].shape[1:] == own[name].shape[1:]), None)


# --- likely shapes ------------------------------------------------------------------------------------------------

_READS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)


def _likely(architecture: Architecture, model: nn.Module, state: Mapping[str, Tensor], classes: int) -> Iterator[Shape]:
    """Shapes of pictures and rows to try, the likeliest first.

    Raises:
        SeepageError: Where the first layer takes examples of any length, so that nothing tells theirs.
    """
    name, first = next(((name, one) for name, one in model.named_modules() if isinstance(one, _READS)), ("", None))
    weight = _in_names_of(model, state).get(f"{name}.weight" if name else "weight")
    if isinstance(first, nn.Linear):
        yield from _rows(first.in_features if weight is None or weight.ndim != 2 else weight.shape[1])
    elif isinstance(first, nn.Conv2d):
        channels = first.in_channels if weight is None or weight.ndim != 4 else weight.shape[1] * first.groups
        yield from ((channels, side, side) for side in _sides(model, first, channels, classes))
    elif first is not None:
        size = first.input_size if isinstance(first, nn.RNNBase) else first.in_channels
        sides = f"LENGTH,{size}" if isinstance(first, nn.RNNBase) else f"{size},LENGTH"
        sides += ",HEIGHT,WIDTH" if isinstance(first, nn.Conv3d) else ""
        raise SeepageError(
            f"{UNTOLD} the shape of one example of {architecture.use!r}, whose first layer is a "
            f"{type(first).__name__}; give it with --shape {sides}"
        )
    else:
        yield from COMMON_SHAPES


def _untold_text(architecture: Architecture, tables: Iterable[Table]) -> SeepageError:
    # Beside the tokens' table one of places has a row for each, and none for a text that is longer.
    rows = [len(one.weight) for one in tables if len(one.weight) >= FEWEST_PLACES]
    longest = min(rows) if len(rows) > 1 else 60
    return SeepageError(
        f"{UNTOLD} the shape of one example of {architecture.use!r}, which looks up whole numbers in a table; give "
        f"the number of tokens of one example with --shape LENGTH, such as --shape {min(longest, 60)}, or the "
        "columns of a row that holds codes"
    )


def _length(
    model: nn.Module, tables: list[Table], moved: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> tuple[int, str]:
    """Tokens of the longest text, and by what: of a table of places the rows that moved, one after another.

    A row that no text reached stood still, or moved by `-c w` of a decay, to the rounding of w. Without such a table,
    `DEFAULT_LENGTH` and no words: the same network takes texts of any length.
    """
    looked_up = [table.weight for table in tables]
    most = max(looked_up, key=len)
    for name, own in model.named_parameters():
        shape = own.shape[-2:]
        wide = own.ndim >= 2 and math.prod(own.shape[:-2]) == 1 and shape[1] == most.shape[1]
        # Other matrices of this width are layers that read tokens: a table's rows, or a parameter's with a 1 before.
        placed = (
            wide and FEWEST_PLACES <= shape[0] < len(most) and (own.ndim > 2 or any(own is one for one in looked_up))
        )
        if not placed or name not in moved or name not in state or moved[name].shape != own.shape:
            continue
        rows, weights = (one[name].detach().reshape(shape).double() for one in (moved, state))
        decay = -(rows * weights).sum(1, keepdim=True) / weights.square().sum(1, keepdim=True).clamp(min=1e-300)
        rounding = torch.finfo(torch.float32).eps * weights.abs() * (decay != 0)
        found = ((rows + decay * weights).abs() > rounding).any(1).nonzero().flatten()
        if len(found) and bool((found.diff() == 1).all()):
            return len(found), f"the places whose rows of {name} moved"
    return DEFAULT_LENGTH, ""


def _lengths(model: nn.Module, tables: list[Table]) -> Iterator[Shape]:
    """Tokens, or columns of codes, that a fully connected layer reads side by side: its width over a table's."""
    wide = [one.in_features for one in model.modules() if isinstance(one, nn.Linear)]
    for width, table in itertools.product(wide, tables):
        count, left = divmod(width, table.embedding_dim)
        if count > 1 and not left:
            yield (count,)


def _reads_last(shape: Shape, model: nn.Module) -> bool:
    """Whether outputs depend on the last of so many tokens: more than a row of codes has are not all read."""
    codes = torch.zeros(2, *shape, dtype=torch.long, device=next(model.parameters()).device)
    codes[1, -1] = 1
    with torch.no_grad(), in_mode(model, training=False):
        first, second = logits_in(model(codes))
    return not torch.equal(first, second)


def _rows(width: int) -> Iterator[Shape]:
    """Pictures of so many values, and a row of them, as of a table."""
    yield from (shape for shape in COMMON_SHAPES if math.prod(shape) == width)
    for channels in (3, 1):
        side = math.isqrt(width // channels)
        if channels * side**2 == width and side >= 8 and (channels, side, side) not in COMMON_SHAPES:
            yield channels, side, side
    yield (width,)


def _sides(model: nn.Module, first: nn.Conv2d, channels: int, classes: int) -> list[int]:
    """Sides of pictures: what the network says of itself, that of photographs, then common ones."""
    stated: list[int] = []
    for module in model.modules():
        for name in ("img_size", "image_size"):
            side = getattr(module, name, getattr(getattr(module, "config", None), name, None))
            side = side[-1] if isinstance(side, tuple | list) and side else side
            stated += [side] if isinstance(side, int) and side > 0 else []
    stride = first.stride[0] if isinstance(first.stride, tuple) else first.stride
    if classes >= PHOTOGRAPH_CLASSES and stride > 1:
        stated.append(PHOTOGRAPH)
    if channels == 1:
        stated.append(28)
    return list(dict.fromkeys([*stated, *SIDES]))


# --- words --------------------------------------------------------------------------------------------------------


def _source_of_classes(classes: int, head: int | None, built_for: int) -> str:
    """Where a number of classes comes from that nobody stated: the weights, the network's own code, or nothing."""
    if head is not None:
        return f"{classes}, to which the weights fit"
    if classes != built_for:
        return f"{classes}, as the network is built"
    return f"{classes}, assumed: nothing tells which layer of the weights makes the outputs"


def _refusal(architecture: Architecture, shape: Shape, error: Untaken, *, known: bool) -> SeepageError:
    words = ",".join(map(str, shape))
    what = f"the network {architecture.use!r} cannot take examples of shape {words} ({error})"
    if error.wants_more:
        return SeepageError(
            f"{what}; it takes more than the examples: give it the rest in a module around it, as the page my-model "
            "shows"
        )
    tried_ones = "" if known else ", nor any other shape that was tried"
    return SeepageError(f"{what}{tried_ones}; give the shape of one example, as it takes them, with --shape")


def _unfit(known: Shape | None, taken: Shape, state: Mapping[str, Tensor]) -> str:
    """What to do where the example's shape was only assumed; suggests a table row's shape if the weights tell one."""
    if known is not None:
        return ""
    first = next((tensor for tensor in state.values() if tensor.ndim > 1), None)
    such = "3,32,32" if first is None or first.ndim > 2 else f"{first.shape[1]} for rows of {first.shape[1]} numbers"
    return f"; or give the shape of one example, which was assumed to be {','.join(map(str, taken))}: --shape {such}"
