"""Examples set aside in a run folder: those of membership tests, apart from them who is a member, and those for bounds.

observed/membership.safetensors    public/inputs, public/labels, 000000/inputs, 000000/labels (candidates of round 0)
private/membership.safetensors     000000/member: [k] bool
private/unseen.safetensors         inputs, labels: neither trained on nor attacked, the attacker's prior of the bounds
"""

from pathlib import Path

import torch
from torch import Tensor

from seepage.audit.simulate.setting import MembershipParts, Setting
from seepage.base.nn import generator
from seepage.base.storage import read_tensors, write_tensors
from seepage.errors import SeepageError
from seepage.federation.types import Batch, Tensors

FILE, UNSEEN = "membership.safetensors", "unseen.safetensors"


def save_candidates(parts: MembershipParts, observed: Path, private: Path) -> None:
    """Write both files."""
    tensors: Tensors = {"public/inputs": parts.public.inputs, "public/labels": parts.public.labels}
    for t, batch in enumerate(parts.candidates):
        tensors |= {f"{t:06d}/inputs": batch.inputs, f"{t:06d}/labels": batch.labels}
    write_tensors(observed / FILE, tensors)
    write_tensors(private / FILE, {f"{t:06d}/member": member for t, member in enumerate(parts.members)})


def open_candidates(observed: Path, device: str = "cpu") -> tuple[list[Batch], Batch]:
    """The candidates of each round, and the public examples.

    Raises:
        SeepageError: Where the file is missing or damaged.
    """
    path = observed / FILE
    tensors = read_tensors(path)
    try:
        batches = {
            part: Batch(tensors[f"{part}/inputs"], tensors[f"{part}/labels"]).to(device)
            for part in sorted({name.partition("/")[0] for name in tensors})
        }
        public = batches.pop("public")
    except KeyError as error:
        raise SeepageError(f"{path} lacks {str(error)[:80]}; record it again") from error
    return list(batches.values()), public


def open_members(private: Path) -> list[Tensor]:
    """For each round `[k]` bool: which of its candidates were in the batch.

    Raises:
        SeepageError: Where the file is missing or damaged.
    """
    path = private / FILE
    tensors = read_tensors(path)
    if any(tensor.dtype != torch.bool or tensor.ndim != 1 for tensor in tensors.values()):
        raise SeepageError(f"{path} does not say of each candidate whether it was in the batch; record it again")
    return [tensors[name] for name in sorted(tensors)]


def save_unseen(setting: Setting, private: Path) -> None:
    """Write the examples that the bounds take for the attacker's prior, if the case is bounded and has any."""
    plan = setting.recipe.bounds
    if plan is None or not setting.recipe.bounded or not len(setting.unseen) or not plan.public:
        return
    draw = generator(setting.recipe.seed, "bounds")
    places = setting.unseen[torch.randperm(len(setting.unseen), generator=draw)[: plan.public]]
    batch = setting.batch(places)
    write_tensors(private / UNSEEN, {"inputs": batch.inputs.cpu(), "labels": batch.labels.cpu()})


def open_unseen(private: Path) -> Batch | None:
    """Read them; None where there are none.

    Raises:
        SeepageError: For a damaged file.
    """
    path = private / UNSEEN
    if not path.exists():
        return None
    tensors = read_tensors(path)
    try:
        return Batch(tensors["inputs"], tensors["labels"])
    except KeyError as error:
        raise SeepageError(f"{path} lacks {str(error)[:80]}; record it again") from error
