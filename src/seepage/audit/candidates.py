"""Files of a run folder for membership tests (candidates; separately, which are members) and for bounds (the prior).

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
    """Write the candidates of each round into `observed`, and which of them are members into `private`."""
    tensors: Tensors = {"public/inputs": parts.public.inputs, "public/labels": parts.public.labels}
    for t, batch in enumerate(parts.candidates):
        tensors |= {f"{t:06d}/inputs": batch.inputs, f"{t:06d}/labels": batch.labels}
    write_tensors(observed / FILE, tensors)
    write_tensors(private / FILE, {f"{t:06d}/member": member for t, member in enumerate(parts.members)})


def open_candidates(observed: Path, device: str = "cpu") -> tuple[list[Batch], Batch]:
    """The candidates of the membership tests, and the public examples.

    Args:
        observed: The run's `observed/` folder.
        device: Where the tensors go.

    Returns:
        One batch of candidates per round, in the order of rounds, and the batch of public examples.

    Raises:
        SeepageError: Where the file is missing or damaged.
    """
    path = observed / FILE
    tensors = read_tensors(path)
    try:
        batches = {
            part: Batch(tensors[f"{part}/inputs"], tensors[f"{part}/labels"]).to(device)
            # Round numbers have six digits, so alphabetical order is their order.
            for part in sorted({name.partition("/")[0] for name in tensors})
        }
        public = batches.pop("public")
    except KeyError as error:
        raise SeepageError(f"{path} lacks {str(error)[:80]}; record it again") from error
    return list(batches.values()), public


def open_members(private: Path) -> list[Tensor]:
    """Which candidates are members: per round `[k]` bool, true where the candidate was in the client's batch.

    Args:
        private: The run's `private/` folder.

    Raises:
        SeepageError: Where the file is missing or damaged.
    """
    path = private / FILE
    tensors = read_tensors(path)
    if any(tensor.dtype != torch.bool or tensor.ndim != 1 for tensor in tensors.values()):
        raise SeepageError(f"{path} does not say of each candidate whether it was in the batch; record it again")
    return [tensors[name] for name in sorted(tensors)]


def save_unseen(setting: Setting, private: Path) -> None:
    """Write the examples that estimate the attacker's prior in the bounds; nothing where a case has no bounds."""
    plan = setting.recipe.bounds
    if plan is None or not setting.recipe.bounded or not len(setting.unseen) or not plan.public:
        return
    draw = generator(setting.recipe.seed, "bounds")
    places = setting.unseen[torch.randperm(len(setting.unseen), generator=draw)[: plan.public]]
    batch = setting.batch(places)
    write_tensors(private / UNSEEN, {"inputs": batch.inputs.cpu(), "labels": batch.labels.cpu()})


def open_unseen(private: Path) -> Batch | None:
    """The examples that `save_unseen` wrote; None where there is no such file.

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
