"""Partial access, selective encryption and withheld tensors: the server can read only a part of the update.

Of a tensor that is sent, hidden entries read as zero, and who knows of the defense leaves zeros out of the comparison
(`Hidden`). A tensor that is withheld is not in the update at all, so every attack knows that it is not there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar, Literal

import torch
from torch import Generator, nn

from seepage.base.registry import defenses
from seepage.errors import SeepageError, short
from seepage.federation.defenses.sparsify import Pruned
from seepage.federation.types import ClientView, Defense, DefenseModel, Tensors, Update


@defenses.register("partial_access")
@dataclass(frozen=True, kw_only=True)
class PartialAccess(Defense):
    """Show only the highest or only the lowest entries by magnitude; the others read as zero (FedLeak, Figure 8).

    FedLeak does not say whether it ranks within tensors or over all of them; here it is over all of them.

    Args:
        share: Share of entries shown, in [0, 1].
        which: `highest` or `lowest` by magnitude. Equal magnitudes: the earlier entry ranks higher.

    Example:
        >>> show_part({"w": torch.tensor([3.0, -1.0, 2.0, 0.5])}, 2, highest=False)
        {'w': tensor([ 0.0000, -1.0000,  0.0000,  0.5000])}
    """

    reads_examples: ClassVar[bool] = False
    only_hides: ClassVar[bool] = True
    acts_on: ClassVar[Literal["update", "group", "view"]] = "view"

    share: float
    which: Literal["highest", "lowest"] = "highest"

    def __post_init__(self) -> None:
        _check_share("PartialAccess shows", self.share)
        if self.which not in ("highest", "lowest"):
            raise SeepageError(
                f"PartialAccess shows the 'highest' or the 'lowest' entries, got which={self.which!r}; "
                "correct the recipe"
            )

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        count = round(self.share * _size(update.tensors))
        return replace(update, tensors=show_part(update.tensors, count, highest=self.which == "highest"))

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return (Hidden() if self.which == "lowest" else Pruned("model"),)


@defenses.register("selective_encryption")
@dataclass(frozen=True, kw_only=True)
class SelectiveEncryption(Defense):
    """Encrypt the largest entries by magnitude; what is left readable is sent on, the others read as zero (FedLeak,
    Section 7).

    The server can still add ciphertexts up, so training loses nothing: judge accuracy on the undefended update. The
    encryption itself is taken to be perfect and is not run. Which entries are encrypted shows.

    Args:
        share: Share of entries encrypted, in [0, 1], of all tensors together; FedLeak proposes 0.8.
    """

    reads_examples: ClassVar[bool] = False
    only_hides: ClassVar[bool] = True
    acts_on: ClassVar[Literal["update", "group", "view"]] = "view"

    share: float = 0.8

    def __post_init__(self) -> None:
        _check_share("SelectiveEncryption encrypts", self.share)

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        size = _size(update.tensors)
        return replace(update, tensors=show_part(update.tensors, size - round(self.share * size), highest=False))

    def attacker_models(self, model: nn.Module) -> tuple[DefenseModel, ...]:
        return (Hidden(),)

    def wire_bytes(self, update: Update) -> int:
        """Bytes of all entries: encrypted ones are sent as ciphertexts, counted without any expansion."""
        return update.nbytes


@defenses.register("withhold")
@dataclass(frozen=True, kw_only=True)
class Withhold(Defense):
    """Send some tensors not at all: layers that are the client's own, or whose updates are encrypted as a whole.

    The client trains them all the same, so after local steps the server knows neither their gradients nor their
    weights. Training in a simulation continues with the whole update: in the case of encryption that is what the server
    has, and where the layers are personal it is the client's own.

    Args:
        tensors: Names of the tensors, with wildcards as in `head.*`.

    Example:
        >>> update = Update({"0.weight": torch.ones(1), "2.weight": torch.ones(1), "2.bias": torch.ones(1)})
        >>> defense, view = Withhold(tensors=["2.*"]), None
        >>> defense(update, view, generator=Generator()).tensors
        {'0.weight': tensor([1.])}
    """

    reads_examples: ClassVar[bool] = False
    withholds: ClassVar[bool] = True
    acts_on: ClassVar[Literal["update", "group", "view"]] = "view"

    tensors: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", tuple(self.tensors))  # a list, where it comes from TOML
        if not self.tensors:
            raise SeepageError("withhold names no tensors; give it names such as ['head.*'], or leave it out")

    def __call__(self, update: Update, client: ClientView, *, generator: Generator) -> Update:
        kept = {name: t for name, t in update.tensors.items() if not any(fnmatchcase(name, p) for p in self.tensors)}
        unused = [p for p in self.tensors if not any(fnmatchcase(name, p) for name in update.tensors)]
        if unused or not kept:
            why = f"no tensor of the update is called {short(unused[0])}" if unused else "nothing would be sent"
            raise SeepageError(f"withhold: {why}; name some of {', '.join(map(short, list(update.tensors)[:3]))}, ...")
        return replace(update, tensors=kept)


def show_part(tensors: Tensors, count: int, *, highest: bool) -> Tensors:
    """Set all but `count` entries, the highest or lowest by magnitude over all tensors, to zero."""
    shown = ranked(tensors, count, highest=highest)
    return {name: torch.where(shown[name], tensor, 0) for name, tensor in tensors.items()}


def ranked(tensors: Tensors, count: int, *, highest: bool = True) -> Tensors:
    """Where the `count` highest or lowest entries by magnitude over all tensors are: a mask for each.

    Equal magnitudes: the earlier entry ranks higher.
    """
    flat = torch.cat([tensor.flatten().abs() for tensor in tensors.values()])
    order = flat.argsort(descending=True, stable=True)
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    chosen[order[:count] if highest else order[len(order) - count :]] = True
    masks = chosen.split([tensor.numel() for tensor in tensors.values()])
    return {name: mask.reshape(tensors[name].shape) for name, mask in zip(tensors, masks, strict=True)}


def _size(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _check_share(what: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise SeepageError(f"{what} a share in [0, 1], got share={share}; correct the recipe")


@dataclass(frozen=True)
class Hidden(DefenseModel):
    """Entries that were sent as zero were hidden.

    Args:
        weight: Factor for the dummy's gradient at these entries: 0 if nothing is known of them, `SMALL_ENTRY_WEIGHT`
            if they were small.
    """

    weight: float = 0.0

    def __call__(self, dummy: Tensors, target: Tensors) -> Tensors:
        return {name: torch.where(target[name] == 0, self.weight * tensor, tensor) for name, tensor in dummy.items()}
