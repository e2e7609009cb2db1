"""Weights from files and from model hubs, put into a model; nothing in a file is run."""

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from seepage.base.npz import read_arrays
from seepage.base.storage import MOST_TENSORS, PICKLE_SUFFIXES, check_kinds, check_regular, read_tensors, tensor_names
from seepage.base.zip_safety import DAMAGED, refuse_expansion
from seepage.errors import SeepageError, printable, short
from seepage.federation.models.naming import in_own_names
from seepage.federation.types import Tensors

MOST_WRAPPED = 8
"""Tables inside of one another that a checkpoint's tensors are looked for in."""
LARGEST_ARRAYS = 2**33
"""Bytes of the arrays of one `.npz`, which are held in memory."""
WRAPPED = ("state_dict", "model_state_dict", "model", "params", "net")
"""Keys under which training scripts keep a model's state in a checkpoint."""
PREFIXES = ("module.", "_orig_mod.", "_module.")
"""What `DistributedDataParallel`, `torch.compile` and Opacus put before each name."""
T = TypeVar("T")
MOST_SHARED = 8
"""Times its size that a file's tensors may have together, where several share their values."""
LARGEST_NAMES = 2**23
"""Bytes of the names, shapes and places of a file's tensors, as `torch.save` writes them."""
LARGEST = 2**36
"""Bytes of one file of weights; more is refused before it is read."""


FOLDER_FILES = (
    "adapter_model.safetensors",
    "model.safetensors",
    "adapter_model.bin",
    "pytorch_model.bin",
    "diffusion_pytorch_model.safetensors",
)
"""Files of weights in a folder that a library's save_pretrained wrote, beside its configuration."""


def weights_in(path: Path) -> Path | None:
    """The file of weights in a folder of `save_pretrained`; None for another folder, and for a file."""
    if not path.is_dir() or (path / "knowledge.json").exists():  # a recording, which has weights too
        return None
    return next((path / name for name in FOLDER_FILES if (path / name).is_file()), None)


def _kind(path: Path) -> Literal["torch", "npz", "safetensors"]:
    """The format of a file, by its first bytes and members and not by its name."""
    with path.open("rb") as file:
        head = file.read(10)
    if head[:1] == b"P" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            return "npz" if members and all(one.filename.endswith(".npy") for one in members) else "torch"
    # A pickle that torch.save wrote before 1.6 begins with its protocol; a safetensors file with the length of its
    # table, whose first letter is an opening brace.
    return (
        "safetensors"
        if head[8:9] == b"{" or (head[:1] not in (b"\x80", b"P") and path.suffix not in PICKLE_SUFFIXES)
        else "torch"
    )


def check_head(path: Path) -> None:
    """Raise for a file that `read_state` would refuse by its size, its head or its list of members.

    Raises:
        SeepageError: As `read_state` does.
    """
    path = weights_in(path) or path
    check_regular(path, LARGEST)
    try:
        kind = _kind(path)
    except FileNotFoundError as error:
        raise SeepageError(f"{path} does not exist; check the path") from error
    except DAMAGED as error:
        raise _damaged(path, error) from error
    if kind == "safetensors":
        tensor_names(path)  # refuses what is not whole
    elif kind == "torch":
        _check_packing(path)
        with path.open("rb") as file:
            if file.read(1) not in (b"P", b"\x80"):  # of an archive, and of the pickle that torch.save wrote before 1.6
                raise SeepageError(f"{path} is not a whole file of torch.save; copy or save it again")


def read_state(path: Path) -> Tensors:
    """The named tensors of a file, whose format its first bytes tell.

    A `.safetensors` file, a `state_dict` or a list that `torch.save` wrote, an `.npz` of `numpy.savez`, or a folder of
    `save_pretrained` with one of them. Tensors without names are `arr_0`, `arr_1`, … in their order. What `torch.save`
    wrote is read by PyTorch's restricted loader, which makes tensors and plain containers and runs nothing; objects of
    other classes that lie beside the tensors, such as options, are left out.

    Raises:
        SeepageError: For a missing or damaged file, for one with code in it, and for one without tensors.
    """
    check_head(path)
    path = weights_in(path) or path
    kind = _kind(path)
    if kind == "safetensors":
        return stripped(read_tensors(path))
    if kind == "npz":
        return stripped(_as_tensors(read_arrays(path, most=LARGEST_ARRAYS), path))
    try:
        content, left_out = _loaded(path)
        try:
            return stripped(_tensors(content, path))
        except SeepageError:
            if not left_out:
                raise
            raise pickle.UnpicklingError from None  # what was left out may be the model itself
    except SeepageError:
        raise
    except pickle.UnpicklingError as error:
        raise SeepageError(
            f"{path} holds more than tensors, and reading that could run code; save the model's state_dict() alone, "
            "best with safetensors.torch.save_file"
        ) from error
    except Exception as error:  # whatever a damaged file may raise in the loader
        raise _damaged(path, error) from error


def _as_tensors(arrays: Mapping[str, Any], path: Path) -> Tensors:
    """Arrays as tensors; of one that was saved under a list of one name there is none."""
    try:
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
    except TypeError as error:
        raise SeepageError(f"{path} holds no numbers ({error}); save the weights as arrays of floats") from error


def _loaded(path: Path) -> tuple[Any, list[str]]:
    """What PyTorch's restricted loader makes of a file, with an empty dictionary for each object of another class."""
    unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path) if zipfile.is_zipfile(path) else []
    empty: list[Any] = [
        (type("LeftOut", (), {"__new__": lambda cls, *_, **__: OrderedDict()}), name) for name in unknown
    ]
    with torch.serialization.safe_globals(empty):
        return torch.load(path, map_location="cpu", weights_only=True), unknown


def _damaged(path: Path, error: Exception) -> SeepageError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return SeepageError(f"{path} is not a whole file of torch.save ({reason}); copy or save it again")


def _check_packing(path: Path) -> None:
    """Refuse archives that unpack to more than they are: `torch.save` packs without compression."""
    try:
        if not path.exists() or not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > 2 * MOST_TENSORS or any(
                member.filename.endswith("data.pkl") and member.file_size > LARGEST_NAMES for member in members
            ):
                raise SeepageError(f"{path} has more than {MOST_TENSORS:,} tensors; save the model's alone")
            refuse_expansion(members, path, ratio=1)
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise SeepageError(f"{path} is compressed, which no file of torch.save is; save it again")
    except SeepageError:
        raise
    except DAMAGED as error:
        raise _damaged(path, error) from error


def _check_sizes(tensors: Collection[Tensor], path: Path) -> None:
    """Refuse tensors that take memory when copied which no file holds: repeated or missing values, absurd shapes."""
    odd = any(t.layout != torch.strided or t.is_quantized or t.is_nested or t.device.type != "cpu" for t in tensors)
    if odd or any(t.nbytes > t.untyped_storage().nbytes() for t in tensors):
        raise SeepageError(
            f"{path} holds tensors that are more than their values, such as sparse ones; save dense ones"
        )
    if sum(t.nbytes for t in tensors) > MOST_SHARED * path.stat().st_size:
        raise SeepageError(f"{path} names the same values again and again; save each tensor once")


def _tensors(content: Any, path: Path) -> Tensors:
    """The named tensors of a loaded checkpoint, copied; searched also under the keys of `WRAPPED`.

    Raises:
        SeepageError: Where there are none, or too many.
    """
    for _ in range(MOST_WRAPPED):  # one may hold itself
        inner = (
            next((content[key] for key in WRAPPED if key in content), None) if isinstance(content, Mapping) else None
        )
        if not isinstance(inner, Mapping | list | tuple):
            break
        content = inner
    if isinstance(content, list | tuple):
        content = {f"arr_{place}": tensor for place, tensor in enumerate(content)}
    if isinstance(content, Mapping):
        found = {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
        if len(found) > MOST_TENSORS:
            raise SeepageError(f"{path} has more than {MOST_TENSORS:,} tensors; save the model's alone")
        if found and all(isinstance(name, str) for name in found):
            _check_sizes(found.values(), path)
            check_kinds(found, path)
            return {name: tensor.detach().clone() for name, tensor in found.items()}
    raise SeepageError(f"{path} holds no tensors by name or in a list; save the model's state_dict()")


def stripped(state: Mapping[str, T]) -> dict[str, T]:
    """The state without what wrappers, one around the other, put before every name.

    >>> list(stripped({"_orig_mod._module.0.weight": torch.zeros(1), "_orig_mod._module.0.bias": torch.zeros(1)}))
    ['0.weight', '0.bias']
    """
    out = dict(state)
    while prefix := next((part for part in PREFIXES if out and all(name.startswith(part) for name in out)), None):
        out = {name.removeprefix(prefix): value for name, value in out.items()}
    return out


def load_weights(
    model: nn.Module, state: Mapping[str, Tensor], num_classes: int, what: str, *, optional: Collection[str] = ()
) -> str | None:
    """Copy a state into a model, in place.

    A last layer for another number of classes is left as it is; buffers that are not there too.

    Args:
        model: The model.
        state: Named tensors.
        num_classes: Classes of the model.
        what: How to call the state in messages.
        optional: Parameters that the state may lack, and that are left as they are then.

    Returns:
        A sentence where something was left as it was, else None.

    Raises:
        SeepageError: Where names or shapes do not fit, with the names.
    """
    own, state = {**dict(model.named_parameters()), **dict(model.named_buffers())}, in_own_names(state, model, what)
    fresh = [name for name in own if name in state and _is_other_head(state[name], own[name], num_classes)]
    spared = {name for name, _ in model.named_buffers()} | set(optional)
    missing = [name for name in own if name not in state and name not in spared]
    extra = [name for name in state if name not in own]
    wrong = [
        f"{name} {tuple(state[name].shape)} for {tuple(own[name].shape)}"
        for name in own
        if name in state and name not in fresh and state[name].shape != own[name].shape
    ]
    if missing or extra or wrong:
        words = [_words(kind, names) for kind, names in (("lacks", missing), ("has", extra), ("differs in", wrong))]
        raise SeepageError(
            f"{what} does not fit the model: it {'; '.join(filter(None, words))}; name the model, with its options, "
            "that the weights were made for"
        )
    bad = [name for name in own if name in state and not state[name].isfinite().all()]
    if bad:
        raise SeepageError(f"{what} holds NaN or infinite values in {short(bad[0])}; use another checkpoint")
    with torch.no_grad():
        for name, tensor in own.items():
            if name in state and name not in fresh:
                tensor.copy_(state[name])
    return f"the last layer is fresh: {what} has another number of classes" if fresh else None


def _is_other_head(given: Tensor, own: Tensor, num_classes: int) -> bool:
    """Whether two tensors of a last layer, fully connected or a 1x1 convolution, differ in the classes alone."""
    same_inputs = given.ndim == own.ndim and given.ndim > 0 and given.shape[1:] == own.shape[1:]
    return same_inputs and len(own) == num_classes != len(given)


def _words(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{kind} {', '.join(short(name, printable) for name in names[:3])}{more}" if names else ""


def pretrained_state(use: str) -> Tensors:
    """The weights that torchvision or timm offer for one of their models; downloaded once by them.

    Raises:
        SeepageError: For another model, and where they cannot be had.
    """
    library, _, name = use.partition(":")
    if library not in ("torchvision", "timm"):
        raise SeepageError(
            f"only torchvision and timm models have weights to fetch, and this one is {use!r}; give a file of weights"
        )
    try:
        if library == "torchvision":
            from torchvision import models

            return dict(models.get_model_weights(name).DEFAULT.get_state_dict(progress=False))
        import timm

        return dict(timm.create_model(name, pretrained=True).state_dict())
    except (OSError, RuntimeError, ValueError, AttributeError, ImportError) as error:
        raise SeepageError(
            f"the pretrained weights of {use} cannot be had ({type(error).__name__}: {str(error)[:120]}); download "
            "them where there is a network and name the file with --weights FILE"
        ) from error
