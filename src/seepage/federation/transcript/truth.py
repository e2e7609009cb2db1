"""The private examples behind a transcript, in memory and in `private/`. For metrics and audits; no attack may see it.

private/truth.safetensors     000000/inputs, /labels, /indices     a batch per round, or else
data/inputs, data/labels, data/draws one data set that all rounds draw from
units/mean, units/scale       where the labels are values that were scaled
typical/inputs                of a table: the mean of rows that are not private
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from seepage.base.nn import vocabulary_of
from seepage.base.storage import read_tensors, write_tensors
from seepage.base.units import Units
from seepage.errors import SeepageError
from seepage.federation.transcript.labels import misfit_of_labels
from seepage.federation.types import Batch, Knowledge, Tensors


@dataclass(frozen=True)
class Truth:
    """The private examples: a batch per round, or one data set that all rounds draw from.

    Attributes:
        batches: One per round; only one, the data set, where there are `draws`.
        draws: `[T, K]` int64 indices of each round's examples in the data set; smaller batches are padded with -1.
        units: Of the targets, where these are values that were scaled.
        typical: `[d]` the mean of public rows of a table, which anybody may guess; None where there is none.
    """

    batches: tuple[Batch, ...]
    draws: Tensor | None = None
    units: Units | None = None
    typical: Tensor | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)

    def __getitem__(self, place: int) -> Batch:
        return self.batches[place]

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.batches) if self.draws is None else len(self.draws)

    @property
    def whole(self) -> Batch:
        """All examples together, against which an attack on all rounds is scored."""
        if len(self.batches) == 1:
            return self.batches[0]
        parts = [batch.indices for batch in self.batches]
        known = [part for part in parts if part is not None]
        return Batch(
            torch.cat([batch.inputs for batch in self.batches]),
            torch.cat([batch.labels for batch in self.batches]),
            torch.cat(known) if len(known) == len(parts) else None,
        )

    def of_round(self, t: int) -> Batch:
        """The examples of round `t`."""
        if self.draws is None:
            return self.batches[t]
        data, drawn = self.batches[0], self.draws[t]
        drawn = drawn[drawn >= 0]
        return Batch(data.inputs[drawn], data.labels[drawn], drawn)


def save_truth(truth: Truth | Sequence[Batch], folder: Path) -> None:
    """Write `private/truth.safetensors`; given batches alone, they are one per round."""
    tensors: Tensors = {}
    if isinstance(truth, Truth) and truth.draws is not None:
        data = truth.batches[0]
        tensors = {"data/inputs": data.inputs, "data/labels": data.labels, "data/draws": truth.draws}
    else:
        for t, batch in enumerate(truth):
            tensors |= {f"{t:06d}/inputs": batch.inputs, f"{t:06d}/labels": batch.labels}
            if batch.indices is not None:
                tensors[f"{t:06d}/indices"] = batch.indices
    if isinstance(truth, Truth) and truth.units is not None:
        tensors |= {"units/mean": truth.units.mean, "units/scale": truth.units.scale}
    if isinstance(truth, Truth) and truth.typical is not None:
        tensors |= {"typical/inputs": truth.typical}
    write_tensors(folder / "truth.safetensors", tensors)


def open_truth(folder: Path) -> Truth:
    """Read `private/truth.safetensors`.

    Raises:
        SeepageError: Where the file is missing or damaged.
    """
    path = folder / "truth.safetensors"
    tensors = read_tensors(path)
    units, typical = _units(tensors, path), tensors.get("typical/inputs")
    try:
        if "data/draws" in tensors:
            inputs, draws = tensors["data/inputs"], tensors["data/draws"]
            data = Batch(inputs, tensors["data/labels"], torch.arange(len(inputs) if inputs.ndim else 1))
            _check_draws(draws, len(data), path)
            return _with_typical(Truth((data,), draws, units), typical, path)
        rounds = sorted({name.partition("/")[0] for name in tensors} - {"units", "typical"})
        indices = [tensors[f"{t}/indices"] for t in rounds if f"{t}/indices" in tensors]
        if any(part.dtype != torch.int64 or part.ndim != 1 for part in indices):
            raise SeepageError(f"{path} does not give indices as one whole number per example; record it again")
        batches = [Batch(tensors[f"{t}/inputs"], tensors[f"{t}/labels"], tensors.get(f"{t}/indices")) for t in rounds]
        return _with_typical(Truth(tuple(batches), units=units), typical, path)
    except KeyError as error:
        raise SeepageError(f"{path} lacks {str(error)[:80]}; record it again") from error


def _units(tensors: Tensors, path: Path) -> Units | None:
    found = [tensors.get(f"units/{part}") for part in ("mean", "scale")]
    mean, scale = found
    if mean is None or scale is None:
        return None
    fits = mean.ndim == 1 and mean.shape == scale.shape and mean.is_floating_point() and scale.is_floating_point()
    if not fits or not bool(mean.isfinite().all() and scale.isfinite().all() and (scale > 0).all()):
        raise SeepageError(f"{path} does not say what a target's numbers mean; record it again")
    return Units(mean.double(), scale.double())


def _with_typical(truth: Truth, typical: Tensor | None, path: Path) -> Truth:
    if typical is None:
        return truth
    fits = typical.is_floating_point() and bool(typical.isfinite().all())
    if not fits or any(batch.inputs.shape[1:] != typical.shape for batch in truth.batches):
        raise SeepageError(f"{path} has a typical row that does not fit the others; record it again")
    return replace(truth, typical=typical)


def _check_draws(draws: Tensor, samples: int, path: Path) -> None:
    fits = draws.dtype == torch.int64 and draws.ndim == 2 and len(draws) and bool((draws[:, :1] >= 0).all())
    if not fits or bool((draws < -1).any()) or bool((draws >= samples).any()):
        raise SeepageError(f"{path} does not say which of its {samples} examples each round drew; record it again")


def misfit(truth: Truth, rounds: int, batch_sizes: Sequence[int | None], knowledge: Knowledge) -> str | None:
    """The reason why a truth cannot belong to a transcript; None if it can.

    Args:
        truth: The truth.
        rounds: Rounds of the transcript.
        batch_sizes: Batch size of its first rounds, where known.
        knowledge: What the attacker knows.
    """
    if truth.rounds != rounds:
        return f"has {truth.rounds} batches and the recording has {rounds} rounds"
    for t, size in enumerate(batch_sizes):
        batch = truth.of_round(t)
        wanted = (size or len(batch), *knowledge.input_shape)
        tokens = vocabulary_of(knowledge.model) is not None
        if tuple(batch.inputs.shape) != wanted or not _is_input(batch.inputs, knowledge, tokens=tokens):
            return f"holds {tuple(batch.inputs.shape)} in batch {t}, expected {wanted}"
    for t, batch in enumerate(truth):
        if not batch.inputs.isfinite().all():
            return f"holds NaN or infinite values in batch {t}"
        odd = misfit_of_labels(batch.labels, knowledge)
        if odd is not None:
            return f"{odd} in batch {t}"
        if truth.units is not None and truth.units.mean.numel() != batch.labels[:1].numel():
            return f"says what {truth.units.mean.numel()} numbers of a target mean, which has others in batch {t}"
    return None


def _is_input(inputs: Tensor, knowledge: Knowledge, *, tokens: bool) -> bool:
    """Whether inputs are of a kind that the model takes: whole numbers where it reads tokens."""
    if tokens:
        return inputs.dtype == torch.int64
    own = next((parameter.dtype for parameter in knowledge.model.parameters()), torch.float32)
    return inputs.dtype in (torch.float32, own)
