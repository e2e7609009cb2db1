"""Networks saved as a whole: of `torch.export` (.pt2), TorchScript, or a module that `torch.save` wrote.

To read one can run code that is in it, so none is read that the user did not call their own (`trust = true`).

What comes back is an `nn.Module` under its own names. A saved module has all its layers. An exported program has those
whose kind says all of them, fully connected ones, convolutions, embeddings, batch norm and plain activations, so that
attacks that ask for such a layer find it. A TorchScript has one opaque pass, which matching attacks differentiate.
"""

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seepage.base.own_code import first_line
from seepage.base.registry import working_folder_first
from seepage.errors import SeepageError


def read_network(path: Path, *, trust: bool) -> nn.Module:
    """The network in a file.

    Args:
        path: The file.
        trust: Whether the user said that it is theirs.

    Raises:
        SeepageError: Where they did not, and for a file that holds no network.
    """
    if not trust:
        raise SeepageError(
            f"{path} is a saved network, and reading it can run code that is in it; if it is yours, add --trust"
        )
    if not path.is_file():
        raise SeepageError(f"there is no network {path}; check the path")
    try:
        with torch.device("cpu"), working_folder_first():
            found: object = _reader(path)(path)
    except SeepageError:
        raise
    except (AttributeError, ImportError) as error:
        raise SeepageError(
            f"the network in {path} is of a class that is not here ({first_line(error)}); run seepage in the folder of "
            "its code"
        ) from error
    except Exception as error:  # whatever a damaged file may raise in its loader
        raise SeepageError(f"{path} holds no network that can be read ({first_line(error)}); save it again") from error
    if not isinstance(found, nn.Module):
        raise SeepageError(
            f"{path} holds a {type(found).__name__} and no network; name the network with --model module:factory, and "
            "give a file of weights in its own place"
        )
    return found


def _reader(path: Path) -> Callable[[Path], object]:
    if path.suffix.lower() == ".pt2":
        return _exported
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                return lambda path: Scripted(torch.jit.load(path, map_location="cpu"))
    return _pickled


def _pickled(path: Path) -> object:
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except pickle.UnpicklingError as error:
        raise ValueError(first_line(error)) from error


# --- torch.export -------------------------------------------------------------------------------------------------


def _exported(path: Path) -> nn.Module:
    """The network of a `torch.export` file, with PyTorch's own layers in place of exported ones where they are known.

    Raises:
        SeepageError: For a network exported for one batch size.
    """
    program = torch.export.load(path)
    read = program.graph_signature.user_inputs[:1]
    places = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in read]
    sizes = [node.meta["val"].shape[0] for node in places if isinstance(node.meta.get("val"), Tensor)]
    if any(isinstance(size, int) for size in sizes):
        raise SeepageError(
            f"the network in {path} was exported for batches of {sizes[0]} alone; export it with dynamic_shapes="
            "({0: torch.export.Dim.DYNAMIC},), of an example of two"
        )
    whole = torch.export.unflatten(program)
    for name, module in list(whole.named_modules()):
        layer = _layer(module) if name else None
        if layer is not None:
            parent, _, last = name.rpartition(".")
            setattr(whole.get_submodule(parent), last, layer)
    return whole


_PLAIN = {kind.__name__: kind for kind in (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.SiLU, nn.Identity)}


def _layer(module: nn.Module) -> nn.Module | None:
    """The layer that a part of an exported program was, with its parameters; None where its kind does not say all."""
    graph = getattr(module, "graph", None)
    kind = str(getattr(module, "_ty", None) or "").rpartition(".")[2]
    calls = [] if graph is None else [node for node in graph.nodes if node.op == "call_function"]
    own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    if kind in _PLAIN and not own:
        return _PLAIN[kind]()
    if len(calls) != 1 or "weight" not in own:
        return None
    made = _of_kind(kind, calls[0], own["weight"])
    if made is None or {name for name, _ in (*made.named_parameters(), *made.named_buffers())} - set(own):
        return None
    for name, tensor in own.items():
        if name in made._parameters:
            made._parameters[name] = module._parameters[name]
        else:
            made._buffers[name] = tensor
    return made


def _of_kind(kind: str, call: Any, weight: Tensor) -> nn.Module | None:
    """An empty layer of a kind, as its one call in the program says."""
    target, given = str(call.target), list(call.args)
    biased = len(given) > 2 and given[2] is not None
    with torch.device("meta"):
        if kind == "Linear" and target == "aten.linear.default":
            return nn.Linear(weight.shape[1], weight.shape[0], bias=biased)
        if kind == "Embedding" and target == "aten.embedding.default":
            padding = given[2] if len(given) > 2 and given[2] >= 0 else None
            return nn.Embedding(weight.shape[0], weight.shape[1], padding_idx=padding)
        if kind == "Conv2d" and target == "aten.conv2d.default":
            stated: list[Any] = [*given[3:], *[[1, 1], [0, 0], [1, 1], 1][max(len(given) - 3, 0) :]]
            sides: Any = tuple(weight.shape[2:])
            names = {
                "stride": tuple(stated[0]),
                "padding": tuple(stated[1]),
                "dilation": tuple(stated[2]),
                "groups": stated[3],
            }
            return nn.Conv2d(weight.shape[1] * stated[3], weight.shape[0], sides, bias=biased, **names)
        if kind == "BatchNorm2d" and target == "aten.batch_norm.default":
            return nn.BatchNorm2d(len(weight), eps=given[7], momentum=given[6]).train(bool(given[5]))
    return None


# --- TorchScript --------------------------------------------------------------------------------------------------


class Scripted(nn.Module):
    """A TorchScript as a module whose parameters can be replaced, as `torch.func.functional_call` does.

    Args:
        script: The TorchScript.
    """

    def __init__(self, script: Any) -> None:
        super().__init__()
        graph = script.forward.graph.copy()
        torch._C._jit_pass_inline(graph)
        _settle_numbers(graph, script)
        lowered, found = torch._C._jit_pass_lower_graph(graph, script._c)
        held: list[Any] = list(found)
        self._call = torch._C._create_function_from_graph("forward", lowered)
        trained, others = dict(script.named_parameters()), dict(script.named_buffers())
        places = {tensor.data_ptr(): name for name, tensor in (trained | others).items()}
        self._order = [places.get(tensor.data_ptr(), "") for tensor in held]
        if "" in self._order:
            raise ValueError("its code holds a tensor without a name")
        for name, tensor in (trained | others).items():
            *path, last = name.split(".")
            place: nn.Module = self
            for part in path:
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            if name in trained:
                place.register_parameter(last, nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad))
            else:
                place.register_buffer(last, tensor)

    def forward(self, inputs: Tensor) -> Any:
        return self._call(inputs, *(self._named(name) for name in self._order))

    def _named(self, name: str) -> Any:
        place, _, last = name.rpartition(".")
        return getattr(self.get_submodule(place), last)


def _settle_numbers(graph: Any, script: Any) -> None:
    """Let a TorchScript's code have what is no tensor in its modules, such as whether they train, as constants."""
    for node in list(graph.findAllNodes("prim::GetAttr", recurse=True)):
        path, above = [node.s("name")], node.input().node()
        while above.kind() == "prim::GetAttr":
            path, above = [above.s("name"), *path], above.input().node()
        value = script
        for name in path:
            value = getattr(value, name)
        if value is not None and not isinstance(value, bool | int | float | str):
            continue
        constant = graph.insertConstant(value)
        constant.node().moveBefore(next(iter(graph.nodes())))
        node.output().replaceAllUsesWith(constant)
        node.destroy()
