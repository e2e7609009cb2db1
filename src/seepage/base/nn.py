"""Small pure helpers on models and named gradients: modes, states, seeds, the layers that matter."""

import copy
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from seepage.base.adapters import inside_adapters
from seepage.base.clock import look
from seepage.base.storage import Tensors
from seepage.errors import SeepageError, refuse

ONE_VALUE = "Expected more than 1 value per channel when training"
"""What PyTorch's batch norm says where a channel's variance cannot be taken."""

NO_TARGET = -100
"""The label of a token that has none, as in `torch.nn.functional.cross_entropy`."""


def generator(seed: int, purpose: str, t: int = 0, device: torch.device | str = "cpu") -> Generator:
    """A generator of its own for one use, derived from `(seed, purpose, t)`; no global seed is touched.

    >>> a, b = generator(0, "noise", 3), generator(0, "noise", 3)
    >>> torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b))
    True
    """
    return Generator(device=device).manual_seed(derived_seed(seed, purpose, t))


def derived_seed(seed: int, purpose: str, t: int = 0) -> int:
    """A seed of its own for one use: a whole number from 0 to below 2**63."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{t}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def frozen_randomness(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Run code that draws from torch's global generators reproducibly, then restore them.

    Args:
        seed: Seeds them.
        device: Where the code draws beside the CPU; None: nowhere, as layers are initialized.
    """
    there = torch.accelerator.is_available()
    own = there and device is not None and device.type not in ("cpu", "meta")
    with torch.random.fork_rng(devices=[device] if own else [], device_type=device.type if device and own else "cuda"):
        if there:
            torch.manual_seed(seed)
        else:  # the same, without the stack trace that is kept for devices which never come
            torch.default_generator.manual_seed(seed)
        yield


class _Undrawn(TorchFunctionMode):
    """Draws no normal numbers: the meta device has none, and to say so it loads PyTorch's compiler, for a second."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Build networks on the meta device, where nothing is allocated or drawn."""
    with torch.device("meta"), _Undrawn():
        yield


@contextmanager
def in_mode(model: nn.Module, *, training: bool, dropout: bool = False) -> Iterator[None]:
    """Put a model in train or eval mode for a block and restore every module's own mode after it.

    Train mode reaches normalization layers only. Dropout and stochastic depth, in whatever form, stay off unless they
    are asked for: their masks, which only the client knows, are drawn from torch's global generator.

    Args:
        model: Its modules' modes are set.
        training: Of normalization layers.
        dropout: Of all other modules.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in before:
            _put_in_mode(module, training if isinstance(module, nn.modules.batchnorm._NormBase) else dropout)
        yield
    finally:
        for module, mode in before:
            _put_in_mode(module, mode)


def _put_in_mode(module: nn.Module, training: bool) -> None:
    # To set a module's attribute takes microseconds, so loops of thousands of small passes are in one mode throughout.
    if module.training != training:
        module.training = training


@contextmanager
def without_hooks(model: nn.Module) -> Iterator[bool]:
    """Take the forward hooks off a model for a block, and say whether there were any."""
    before = [(module, module._forward_hooks) for module in model.modules() if module._forward_hooks]
    for module, hooks in before:
        module._forward_hooks = type(hooks)()
    try:
        yield bool(before)
    finally:
        for module, hooks in before:
            module._forward_hooks = hooks


def state_of(model: nn.Module) -> tuple[Tensors, Tensors]:
    """Detached copies of a model's trainable parameters and of its buffers, by name."""
    params = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    return params, buffers


def at_state(model: nn.Module, params: Tensors, buffers: Tensors | None = None) -> nn.Module:
    """A copy of a model at these parameters and buffers; what they lack stays as it is."""
    copied = copy.deepcopy(model)
    own = {**dict(copied.named_parameters()), **dict(copied.named_buffers())}
    with torch.no_grad():
        for name, tensor in {**params, **(buffers or {})}.items():
            own[name].copy_(tensor)
    return copied


def sorted_labels(labels: Tensor) -> Tensor:
    """The labels in sorted order, in which an attacker may know them: the order of the batch stays private.

    Maps are sorted whole, by their pixels from the first one on.

    >>> sorted_labels(torch.tensor([2, 0, 1])), sorted_labels(torch.tensor([[0.1, 0.9], [0.7, 0.3]]))
    (tensor([0, 1, 2]), tensor([[0.7000, 0.3000],
            [0.1000, 0.9000]]))
    """
    if labels.ndim == 1:
        return labels.sort().values
    rows, sign = labels.flatten(1).tolist(), -1 if labels.is_floating_point() else 1
    order = sorted(range(len(rows)), key=lambda place: [sign * value for value in rows[place]])
    return labels[order]


def forward(model: nn.Module, params: Tensors, inputs: Tensor, *, buffers: Tensors | None = None) -> Tensor:
    """The model's logits at `params`, leaving the module and the given buffers as they were.

    Buffers are copied first: batch norm in train mode writes to them. The rest is as in `called`.
    """
    copies = {name: b.clone() for name, b in (buffers or dict(model.named_buffers())).items()}
    return called(model, {**params, **copies}, inputs)


def output_shape(
    model: nn.Module, params: Tensors, buffers: Tensors | None, input_shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Shape of the model's outputs for one example: `(classes,)`, of maps `(classes, h, w)`."""
    zero = torch.zeros((2, *input_shape), device=next(iter(params.values())).device)
    with torch.no_grad(), in_mode(model, training=False):
        values = forward(model, params, as_inputs(model, zero.to(next(iter(params.values())))), buffers=buffers)
    return tuple(values.shape[1:])


def called(model: nn.Module, state: Tensors, inputs: Tensor) -> Tensor:
    """`[n, ...]` the logits of a model with these parameters and buffers, to which batch norm in train mode writes.

    The inputs are copied first: a model may normalize them in place, which would change a client's own batch, and
    cannot be differentiated. Recurrent layers run without cuDNN, whose kernels have no backward pass in eval mode and
    no second derivative in any.

    Raises:
        SeepageError: Where batch norm in train mode is given one value per channel, and where no logits come out.
    """
    look()
    with ExitStack() as stack:
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        try:
            output = functional_call(model, state, (inputs.clone(),))
        except ValueError as error:
            if ONE_VALUE not in str(error):
                raise
            given = (
                "needs more than one value per channel, and a layer of this model is given one by "
                f"{len(inputs)} example of shape {tuple(inputs.shape[1:])}"
            )
            if not has_batch_norm(model):  # what attacks that run examples one by one meet
                raise refuse("normalized_away")(
                    f"a normalization of one channel at a time {given}, of which it would leave nothing",
                    "use gradient_matching, which runs the batch as a whole, at a --batch-size of 2 or more",
                ) from error
            raise SeepageError(
                f"batch norm in train mode {given}; take two examples or more (--batch-size 2), larger inputs, or a "
                "client in eval mode (--set client.mode=eval)"
            ) from error
    found = logits_in(output)
    # Of one value an example, as behind `squeeze(-1)`: [n] is [n, 1] everywhere else.
    return found.unsqueeze(1) if found.ndim == 1 and len(found) == len(inputs) else found


LOGITS = ("logits", "out")
"""Keys of a dictionary with logits: those of `transformers`, and of torchvision's networks of segmentation."""


def logits_in(output: Any) -> Tensor:
    """The logits in what a model returns: a tensor, those under their name in an object or a dictionary, or the first
    of a tuple.

    The models of `transformers` return a dataclass of several tensors, those of torchvision with auxiliary heads a
    named tuple or, for segmentation, a dictionary.

    Raises:
        SeepageError: Where there are none.

    >>> logits_in({"logits": torch.ones(2, 3), "hidden": torch.ones(2, 8)}).shape
    torch.Size([2, 3])
    """
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        found = next((output[name] for name in LOGITS if name in output), None)
    else:
        found = getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if not isinstance(found, Tensor):
        raise SeepageError(
            f"the model returns a {type(output).__name__}, in which no logits are found; let it return them alone, as "
            "a tensor, with others in a dictionary under the name logits or out, in a dataclass under the name logits, "
            "or as the first of a tuple"
        )
    return found


def logits_words(output: Any) -> str | None:
    """Where in a model's output the logits were found; None where it is nothing else.

    >>> logits_words((torch.ones(1, 2), torch.ones(1, 8))), logits_words(torch.ones(1, 2))
    ('the first of the tuple of 2 that the model returns', None)
    """
    if isinstance(output, Tensor):
        return None
    kind = type(output).__name__
    if isinstance(output, Mapping) or hasattr(output, "logits"):
        return f"logits of the {kind} that the model returns"
    return f"the first of the {kind} of {len(output)} that the model returns"


class LayerCall(NamedTuple):
    """One call of a layer: the first tensor it was given, and what it made of it.

    Attributes:
        input: What it read.
        output: What it made.
        versions: How often each of the two had been written to when the layer returned.
    """

    input: Tensor
    output: Tensor
    versions: tuple[int, int] = (0, 0)


@contextmanager
def captured_calls(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, list[LayerCall]]]:
    """All calls of these layers while the block lasts, by the layer's name, in the order of the first calls.

    Tensors keep their graph; a layer that is not called has no entry, one that is used twice has two calls. While
    hooks are on, PyTorch's fused transformer layers take the plain way, so their inner layers are seen too.

    Args:
        model: Its hooks are left as they were found, whatever happens in the block.
        names: Names of submodules; `""` is the model itself.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> with captured_calls(net, ["1"]) as calls:
    ...     logits = net(torch.ones(3, 2, 2))
    >>> calls["1"][0].input.shape, calls["1"][0].output is logits
    (torch.Size([3, 4]), True)
    """
    calls: dict[str, list[LayerCall]] = {}

    def hook(name: str) -> Any:
        def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            # Recurrent layers and attention return tuples; some models pass all by keyword.
            read, made = first_tensor((*args, *kwargs.values())), first_tensor(output)
            if read is not None and made is not None:
                calls.setdefault(name, []).append(LayerCall(read, made, (read._version, made._version)))

        return keep

    with ExitStack() as hooks:
        for name in names:
            handle = model.get_submodule(name).register_forward_hook(hook(name), with_kwargs=True)
            hooks.callback(handle.remove)
        yield calls


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in what a layer was given or returns, or None."""
    if isinstance(value, Tensor):
        return value
    several = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((one for one in several if isinstance(one, Tensor)), None)


def calls_in_pass(
    model: nn.Module,
    names: Iterable[str],
    params: Tensors,
    inputs: Tensor,
    *,
    buffers: Tensors | None = None,
    dropout: bool = False,
) -> dict[str, list[LayerCall]]:
    """The calls of these layers in one forward pass in eval mode; arguments as of `captured_calls` and `forward`.

    With `dropout` all but the norms are in train mode.
    """
    drawing = frozen_randomness(0, inputs.device) if dropout else nullcontext()
    with captured_calls(model, names) as calls, in_mode(model, training=False, dropout=dropout), drawing:
        forward(model, params, inputs, buffers=buffers)
    return calls


def normalized_layers(
    model: nn.Module, params: Tensors, input_shape: tuple[int, ...], *, buffers: Tensors | None = None
) -> dict[str, str]:
    """Name of each batch norm that reads a layer's output as it is, to that layer's name: one pass on zeros.

    The slopes of such a layer's outputs add up to zero over the batch in train mode, as a norm takes the mean away:
    the gradient of its bias is rounding alone, and that of its weight has at most the rank of one example less. Not so
    where dropout stands in between, in a module or in the code: the masks of examples differ.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Dropout(0.3), nn.BatchNorm1d(2))
    >>> normalized_layers(model, dict(model.named_parameters()), (3,))
    {'1': '0'}
    """
    if not has_batch_norm(model):
        return {}
    kinds = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
    modules = dict(model.named_modules())
    norms = [name for name, module in modules.items() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    layers = [name for name, module in modules.items() if isinstance(module, kinds)]
    like = next(iter(params.values()))
    probe = torch.zeros((2, *input_shape), dtype=like.dtype, device=like.device)
    with torch.no_grad():
        inputs = as_inputs(model, probe)
        calls = calls_in_pass(model, [*layers, *norms], params, inputs, buffers=buffers, dropout=True)
    # The very tensor that a layer made, which nothing has written to since; the calls hold all of them, so that an id
    # stays its tensor's own.
    maker = {(id(call.output), call.versions[1]): name for name in layers for call in calls.get(name, [])}
    pairs = ((norm, maker.get((id(call.input), call.versions[0]))) for norm in norms for call in calls.get(norm, []))
    return {norm: layer for norm, layer in pairs if layer is not None}


def dot(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Inner product of two named gradients, over all tensors."""
    # torch.dot makes no product tensor, forwards or backwards, which counts where this is differentiated.
    return torch.stack([torch.dot(a[name].reshape(-1), b[name].reshape(-1)) for name in b]).sum()


def norm(a: Mapping[str, Tensor]) -> Tensor:
    """Euclidean norm of a named gradient, over all tensors."""
    return dot(a, a).sqrt()


TINY = 1e-30
"""Keeps the root and the division of an all-zero gradient finite; far below any float32 gradient's square."""


def safe_norm(tensors: Tensors) -> Tensor:
    """Euclidean norm over all tensors whose gradient is finite, 0, where all entries are 0.

    So are the entries of a parameter that the loss does not use.
    """
    return (dot(tensors, tensors) + TINY).sqrt()


def has_batch_norm(model: nn.Module) -> bool:
    """Whether any layer is a batch norm, which couples the examples of a batch in train mode."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def has_dropout(model: nn.Module) -> bool:
    """Whether any layer is a dropout."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) for module in model.modules())


@dataclass(frozen=True)
class InputLayer:
    """A fully connected layer that reads the (possibly normalized) input itself.

    Attributes:
        weight: Name of the `[m, d]` weight.
        bias: Name of the `[m]` bias, or None.
        scale: `[d]` what each flattened input is multiplied with before the layer.
        shift: `[d]` what is added after that.
    """

    weight: str
    bias: str | None
    scale: Tensor
    shift: Tensor

    def to_inputs(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        """`[k, d]` inputs of the layer back to `[k, *shape]` inputs of the model."""
        return ((rows - self.shift.to(rows)) / self.scale.to(rows)).reshape(len(rows), *shape)


_TABLE = "_seepage_token_table"
"""Where a network keeps the name of the table that looks its inputs up; None: it takes numbers."""
_ROWS = "_seepage_rows"
"""Where a network that looks rows of a bare parameter up keeps how many there are."""
_CODES = "_seepage_codes"
"""Where it keeps how many codes each number of an example may be; None: as many as the table has rows."""


Table = nn.Embedding | nn.EmbeddingBag
"""A layer that looks up rows."""


def try_inputs(model: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Find out in a pass whether a network with tables takes numbers or tokens, and which table looks those up.

    Numbers are tried before tokens: a network that looks up all of them takes tokens, one that looks up some columns of
    a row takes numbers. The answer is kept on the network, and copies keep it.

    Args:
        model: The network. One that takes neither is left as it was.
        input_shape: Shape of one example.
    """
    names = [name for name, module in model.named_modules() if isinstance(module, Table)]
    like = next(model.parameters(), None)
    if like is None or like.device.type == "meta":
        return
    if not names:
        model.__dict__[_ROWS] = _bare_rows(model, input_shape)
        return
    # Two examples, of zeros and of ones, and the same turned round: what both look up alike are places, not tokens.
    probes = torch.stack([like.new_zeros(input_shape), like.new_ones(input_shape)])
    for values in (probes, probes.long()):
        with torch.no_grad(), in_mode(model, training=False), captured_calls(model, names) as calls:
            try:
                model(values)
                model(values.flip(0))
            except Exception:  # user code may raise anything
                continue
        read = {name: found[0].input for name, found in calls.items() if len(found) > 1}
        told = [name for name in read if not torch.equal(read[name], calls[name][len(calls[name]) // 2].input)]
        whole = (name for name in told if read[name].numel() == probes.numel())
        table = next(whole, next(iter(told), None) if values is not probes else None)
        model.__dict__[_TABLE] = table
        if table is not None:
            model.__dict__[_CODES] = _codes(model, probes.long(), model.get_submodule(table).num_embeddings)  # type: ignore[arg-type]
        return


def _bare_rows(model: nn.Module, input_shape: tuple[int, ...]) -> int | None:
    """Rows of the parameter that a network without tables indexes by its inputs; None: it takes numbers."""
    like = next(model.parameters())
    rows = sorted({len(p) for p in model.parameters() if p.ndim > 1}, reverse=True)
    zeros = like.new_zeros((2, *input_shape))
    if not rows or _takes(model, zeros) or not _takes(model, zeros.long()):
        return None
    return next((one for one in rows if _takes(model, torch.full_like(zeros, one - 1).long())), None)


def _takes(model: nn.Module, values: Tensor) -> bool:
    try:
        with torch.no_grad(), in_mode(model, training=False):
            model(values)
    except Exception:  # user code may raise anything
        return False
    return True


MOST_COLUMNS = 64
"""Numbers of an example up to which it is tried how large each may be."""


def _codes(model: nn.Module, probes: Tensor, rows: int) -> tuple[int, ...] | None:
    """How many codes each number of an example may be, by trial; None: as many as the table has rows, or not known.

    Several fields that share a table behind offsets, and tables of unlike length, take fewer.
    """
    if probes.ndim != 2 or probes.shape[1] > MOST_COLUMNS or _takes(model, torch.full_like(probes, rows - 1)):
        return None
    found, most = list[int](), max(one.num_embeddings for one in model.modules() if isinstance(one, Table))
    for place in range(probes.shape[1]):
        low, high = 2, most + 1  # codes that are taken, and that are not
        while high - low > 1:
            values = torch.zeros_like(probes)
            values[:, place] = (low + high) // 2 - 1
            low, high = ((low + high) // 2, high) if _takes(model, values) else (low, (low + high) // 2)
        found.append(low)
    return tuple(found)


def token_table(model: nn.Module) -> tuple[str, Table] | None:
    """Name and module of the table that looks up a network's inputs; None: they are numbers.

    Of a network that `try_inputs` never saw the first module with parameters decides.
    """
    first = next(
        (n for n, module in model.named_modules() if next(module.parameters(recurse=False), None) is not None), ""
    )
    name = model.__dict__.get(_TABLE, first)
    found = None if name is None else model.get_submodule(name)
    return (name, found) if isinstance(found, Table) else None


def codes_of(model: nn.Module) -> tuple[int, ...] | None:
    """How many codes each number of an example may be, where these are fields of unlike length; None: a text has none.

    >>> class Fields(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table = nn.Embedding(9, 4)
    ...     def forward(self, ids):
    ...         return self.table(ids + torch.tensor([0, 2])).flatten(1)
    >>> model = Fields()
    >>> try_inputs(model, (2,))
    >>> codes_of(model)
    (9, 7)
    """
    return model.__dict__.get(_CODES)


def vocabulary_of(model: nn.Module) -> int | None:
    """Number of tokens that a model over sequences of token numbers knows; None for all other models.

    >>> vocabulary_of(nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 2))), vocabulary_of(nn.Linear(8, 2))
    (50, None)
    """
    found = token_table(model)
    return model.__dict__.get(_ROWS) if found is None else found[1].num_embeddings


def padding_row(model: nn.Module) -> int | None:
    """The row of a model's embedding that stands for no token and is never trained; None where none is named.

    >>> padding_row(nn.Sequential(nn.Embedding(50, 8, padding_idx=0), nn.Linear(8, 2)))
    0
    """
    found = token_table(model)
    return None if found is None else found[1].padding_idx


def as_inputs(model: nn.Module, values: Tensor) -> Tensor:
    """Made-up values as a model reads them: themselves, or token numbers where its first layer looks those up.

    Args:
        model: The model.
        values: `[n, *shape]`, of any range; for token numbers those from 0 to 1 are spread over the vocabulary.

    >>> as_inputs(nn.Embedding(50, 8), torch.tensor([[0.0, 0.5, 1.0]]))
    tensor([[ 0, 24, 49]])
    """
    vocabulary, codes = vocabulary_of(model), codes_of(model)
    if vocabulary is None:
        return values
    most = vocabulary if codes is None else torch.tensor(codes, device=values.device)
    return (values.clamp(0, 1) * (most - 1)).long()


def next_tokens(ids: Tensor) -> Tensor:
    """`[n, tokens]` each token's next one, -100 where there is none.

    >>> next_tokens(torch.tensor([[5, 6, 7], [8, 9, -1]]))
    tensor([[   6,    7, -100],
            [   9, -100, -100]])
    """
    found = torch.full_like(ids, NO_TARGET)
    found[:, :-1] = torch.where(ids[:, 1:] >= 0, ids[:, 1:], NO_TARGET)
    return found


def input_layer(model: nn.Module, params: Tensors, input_shape: tuple[int, ...]) -> InputLayer | None:
    """The fully connected layer that reads the input directly, or None; of several that of most neurons."""
    return next(iter(input_layers(model, params, input_shape)), None)


def input_layers(model: nn.Module, params: Tensors, input_shape: tuple[int, ...]) -> list[InputLayer]:
    """The fully connected layers that read the input directly, those of most neurons first.

    The input of the first module is measured at three probes; it must be the flattened model input, each entry scaled
    and shifted (a normalization). So this works on any module, whatever its code looks like. Others read the same.
    """
    aside = inside_adapters(model)
    parts = [(n, module) for n, module in model.named_modules() if n not in aside]
    own = [n for n, module in parts if next(module.parameters(recurse=False), None) is not None]
    norms = [n for n, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
    names = list(dict.fromkeys([*own, *norms]))
    if not any(isinstance(model.get_submodule(n), nn.Linear) for n in names) or vocabulary_of(model) is not None:
        return []
    like = next(iter(params.values()))
    probe = torch.rand((1, *input_shape), generator=generator(0, "probe"), dtype=torch.float64)
    probes = torch.cat([torch.zeros_like(probe), torch.ones_like(probe), probe]).to(like)
    with torch.no_grad():
        calls = calls_in_pass(model, names, params, probes)
    first, found = next(iter(calls.values()), []), list[tuple[int, InputLayer]]()
    if len(first) != 1 or first[0].input.shape != (3, probes[0].numel()):
        return []
    zero, one, at_probe = first[0].input.double()
    scale, shift = one - zero, zero
    expected = shift + scale * probes[2].flatten().double()
    if not torch.allclose(at_probe, expected, rtol=1e-4, atol=1e-4) or (scale.abs() < 1e-12).any():
        return []
    for name, own_calls in calls.items():
        layer, prefix = model.get_submodule(name), f"{name}." if name else ""
        if isinstance(layer, nn.Linear) and len(own_calls) == 1 and torch.equal(own_calls[0].input, first[0].input):
            bias = f"{prefix}bias" if layer.bias is not None else None
            found.append((layer.out_features, InputLayer(f"{prefix}weight", bias, scale, shift)))
        elif not found:
            return []  # a norm, whose statistics may be the batch's
    layers = [layer for _, layer in sorted(found, key=lambda one: -one[0])]
    if len(layers) > 1:  # experts that see some examples and not others read no whole batch
        noise = 3 * torch.randn((16, *input_shape), generator=generator(0, "routes"), dtype=torch.float64)
        with torch.no_grad():
            calls = calls_in_pass(model, names, params, noise.to(like))
        whole = {f"{name}.weight" for name, own in calls.items() if [len(one.input) for one in own] == [len(noise)]}
        layers = [layer for layer in layers if layer.weight in whole]
    return layers


def last_linear(model: nn.Module, num_classes: int) -> tuple[str, str | None] | None:
    """Names of weight `[classes, k]` and bias of the last fully connected layer with one row per class.

    The bias has the name that `named_parameters` gives it, where another module holds it as well; the weight its
    layer's.
    """
    found, aside = None, inside_adapters(model)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.out_features == num_classes and name not in aside:
            found = name, module
    if found is None:
        return None
    name, layer = found
    prefix = f"{name}." if name else ""
    own = next((n for n, parameter in model.named_parameters() if parameter is layer.bias), f"{prefix}bias")
    return f"{prefix}weight", own if layer.bias is not None else None
