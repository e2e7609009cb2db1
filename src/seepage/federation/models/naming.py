"""Names that one parameter goes by: tied weights have two, and `peft` saves adapters under shorter ones.

What `named_parameters` calls it, and what files and messages call it too:

    transformer.wte.weight                     lm_head.weight (tied)
    features.0.weight                          1.features.0.weight, model.features.0.weight (a network inside another)
    layer.lora_A.default.weight                base_model.model.layer.lora_A.weight
    layer.base_layer.weight                    layer.weight (a checkpoint of the network without its adapter)
    head.modules_to_save.default.weight        base_model.model.head.weight
"""

import re
from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

from seepage.errors import SeepageError, short
from seepage.federation.types import Tensors

PEFT_PREFIX = "base_model.model."
"""What `peft` puts before the names of the network that it wraps."""
UNNAMED = re.compile(r"arr_\d+")
"""Names of arrays that were saved without one, as `numpy.savez` numbers them."""
_LORA = re.compile(r"\.(lora_(?:A|B|embedding_A|embedding_B))(\.weight)?$")


def tied_names(model: nn.Module) -> dict[str, str]:
    """Second names of tied parameters, each with the name that `named_parameters` gives.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> model[1].weight = model[0].weight
    >>> tied_names(model)
    {'1.weight': '0.weight'}
    """
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in every if name != first[id(parameter)]}


def known_names(model: nn.Module) -> set[str]:
    """Names of the model's parameters and buffers; of a tied parameter the first one."""
    return {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}


def renamed(names: Collection[str], own: Collection[str], tied: Mapping[str, str]) -> dict[str, str]:
    """For each name of a file or message that the model knows under another, that other one.

    Args:
        names: In the file or message.
        own: The model's `known_names`.
        tied: Its `tied_names`.

    >>> own, tied = {"a.weight", "a.lora_A.default.weight"}, {"b.weight": "a.weight"}
    >>> renamed(["a.bias", "b.weight", "a.lora_A.weight"], own, tied)
    {'a.lora_A.weight': 'a.lora_A.default.weight', 'b.weight': 'a.weight'}
    """
    out = {}
    for name in sorted(names):
        if name not in own:
            found = next((tied.get(one, one) for one in _spellings(name) if tied.get(one, one) in own), None)
            if found is not None:
                out[name] = found
    return out or _behind_prefix(names, {**dict.fromkeys(own), **tied})


def _behind_prefix(names: Collection[str], own: Mapping[str, str | None]) -> dict[str, str]:
    """The same where all names have one prefix more, or less, than the model's; none where two prefixes would do.

    A network inside another has such a prefix (`1.` behind a normalization, `model.` in a training module), and so has
    a head by itself (`heads.`).

    >>> _behind_prefix(["1.a.weight", "1.a.bias"], dict.fromkeys(["a.weight", "a.bias", "b.bias"]))
    {'1.a.weight': 'a.weight', '1.a.bias': 'a.bias'}
    >>> _behind_prefix(["weight"], dict.fromkeys(["a.weight", "b.weight"]))
    {}
    """
    if not names or any(name in own for name in names):
        return {}
    one = min(names)
    more = {one.removesuffix(name) for name in own if one.endswith(f".{name}")}
    less = {name.removesuffix(one) for name in own if name.endswith(f".{one}")}
    ways = [
        *({name: name.removeprefix(prefix) for name in names if name.startswith(prefix)} for prefix in more),
        *({name: prefix + name for name in names} for prefix in less),
    ]
    fitting = [way for way in ways if len(way) == len(names) and all(name in own for name in way.values())]
    return {name: own[new] or new for name, new in fitting[0].items()} if len(fitting) == 1 else {}


def other_names(state: Mapping[str, Tensor], model: nn.Module) -> dict[str, str]:
    """For each name of a file that the model knows under another, that other one; of arrays without names, by order.

    Arrays in order are those of the model's `state_dict()`, or of its trained parameters, as many and of as many axes.

    >>> other_names({"arr_0": torch.zeros(2, 2), "arr_1": torch.zeros(2)}, nn.Linear(2, 2))
    {'arr_0': 'weight', 'arr_1': 'bias'}
    """
    if not state or not all(UNNAMED.fullmatch(name) for name in state):
        return renamed(state.keys(), known_names(model), tied_names(model))
    names = sorted(state, key=lambda name: int(name.removeprefix("arr_")))
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for own in ([*model.state_dict().items()], trained, [*model.named_parameters()]):
        if len(own) == len(names) and all(_alike(state[n], one) for n, (_, one) in zip(names, own, strict=True)):
            tied = tied_names(model)
            return {n: tied.get(name, name) for n, (name, _) in zip(names, own, strict=True)}
    return {}


def _alike(given: Tensor, own: Tensor) -> bool:
    """Whether an array may be this tensor, of a model whose number of classes may differ; counters may have an axis."""
    return given.ndim == own.ndim or (own.ndim == 0 and given.numel() <= 1)


def in_own_names(state: Mapping[str, Tensor], model: nn.Module, what: str) -> Tensors:
    """The tensors under the model's own names. A single number has no axis, and is left out where it was lost.

    Args:
        state: By the names of a file or a message. Names that lead nowhere are kept as they are.
        model: The model.
        what: How to call the state in messages.

    Raises:
        SeepageError: Where two names of one parameter come with different values.
    """
    other = other_names(state, model)
    out = {name: tensor for name, tensor in state.items() if name not in other}
    for name, own in other.items():
        if own not in out:
            out[own] = state[name]
        elif not torch.equal(out[own], state[name]):
            raise SeepageError(
                f"{what} holds {short(name)} and {short(own)} with different values, and in the model they are one "
                "parameter; use the model, with the same options, that the update was made with"
            )
    # torch.Tensor makes of an array without axes one of no entries, as clients do that rebuild a state of arrays.
    single = {name for name, buffer in model.named_buffers() if buffer.ndim == 0}
    return {
        name: tensor.reshape(()) if name in single and tensor.numel() == 1 else tensor
        for name, tensor in out.items()
        if tensor.numel() or name not in single
    }


def _spellings(name: str) -> Iterator[str]:
    """Possible names in the model, the likeliest first."""
    for one in (name, name.removeprefix(PEFT_PREFIX), PEFT_PREFIX + name):
        yield one
        yield _LORA.sub(r".\1.default\2", one)
        head, dot, last = one.rpartition(".")
        yield f"{head}{dot}base_layer.{last}"
        yield f"{head}{dot}modules_to_save.default.{last}"
