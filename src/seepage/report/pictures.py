"""Read the examples of a run, pair them with the truth, and reduce pictures to the size of a page."""

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

import torch
from torch import Tensor

from seepage.audit.case import Kind
from seepage.audit.record import case_folder
from seepage.audit.row import PASSED_OVER, Case
from seepage.base.storage import read_tensors
from seepage.errors import SeepageError
from seepage.federation.transcript.truth import open_truth
from seepage.federation.types import Tensors
from seepage.report.run import RunFolder

_ROUND = re.compile("[0-9]{1,9}")

Place = tuple[int, int]
"""A private example: its round, and its place in that round's batch."""


@dataclass(frozen=True)
class Guesses:
    """One attack's reconstructions, in the truth's order.

    Attributes:
        inputs: Round to `[n, ...]`.
        matched: Round to `[n]` bool; False: the attack returned no guess for that example.
        certified: Without a truth: round to `[n]` bool, which guesses the attack certifies; empty where it cannot tell.
    """

    inputs: dict[int, Tensor]
    matched: dict[int, Tensor]
    certified: dict[int, Tensor] = field(default_factory=dict)

    def at(self, place: Place) -> Tensor | None:
        """The guess at an example, or None where the attack returned none."""
        t, i = place
        if t not in self.inputs or i >= len(self.inputs[t]) or not self.matched[t][i]:
            return None
        return self.inputs[t][i]

    def is_certified(self, place: Place) -> bool | None:
        """Whether the attack certifies the guess of an example; None where it says nothing of that."""
        t, i = place
        return bool(self.certified[t][i]) if t in self.certified and i < len(self.certified[t]) else None


@dataclass(frozen=True)
class Examples:
    """The examples of one case, and what attacks made of them.

    Attributes:
        truth: Round to `[n, ...]` private examples; None where they are not in the folder.
        guesses: Attack to its reconstructions; attacks without any are absent.
        kind: What they are; None where there are none.
    """

    truth: dict[int, Tensor] | None = None
    guesses: dict[str, Guesses] = field(default_factory=dict)
    kind: Kind | None = None

    @property
    def places(self) -> list[Place]:
        """All examples, in order; without a truth all places that some attack has a guess for."""
        sizes: dict[int, int] = {}
        for inputs in [self.truth] if self.truth else [guess.inputs for guess in self.guesses.values()]:
            for t, tensor in inputs.items():
                sizes[t] = max(sizes.get(t, 0), len(tensor))
        return [(t, i) for t in sorted(sizes) for i in range(sizes[t])]

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the pictures, or None where there are none."""
        return (self.some.shape[2], self.some.shape[3]) if self.kind == "pictures" else None

    @property
    def some(self) -> Tensor:
        """One round's examples; there must be one."""
        return next(iter((self.truth or next(iter(self.guesses.values())).inputs).values()))

    def private(self, place: Place) -> Tensor | None:
        """The private example, where it is in the folder."""
        return None if self.truth is None else self.truth[place[0]][place[1]]


def open_examples(run: RunFolder, case: Case) -> Examples:
    """Read the private and the reconstructed examples of a case, all of one kind; all others are skipped.

    Raises:
        SeepageError: For damaged files, and where truth and reconstructions do not pair up.
    """
    folder = truth_folder(run, case)
    held = {} if folder is None else {t: batch.inputs for t, batch in enumerate(open_truth(folder))}
    kind = next((one for one in map(_kind_of, held.values()) if one), None)
    truth = {t: inputs for t, inputs in held.items() if _kind_of(inputs) == kind} or None
    guesses = {}
    for row in run.result.rows_of(case):
        path = inside(run.folder / "reconstructions", case.name, f"{row.attack}.safetensors")
        there = path is not None and path.exists() and row.space not in ("feature", "token")
        if row.status not in ("inapplicable", *PASSED_OVER) and path is not None and there:
            tensors = read_tensors(path)
            kind = kind or next((one for one in map(_kind_of, tensors.values()) if one), None)
            found = _guesses(tensors, path, kind)
            _check_pairs(found, truth, path)
            if found.inputs:
                guesses[row.attack] = found
    return Examples(truth, guesses, kind if truth or guesses else None)


def truth_folder(run: RunFolder, case: Case) -> Path | None:
    """The folder of a case's private examples; None where they are not in the run's folder."""
    # A run of one case has no folder per case, unless its truth was brought along under the case's name.
    options = [
        inside(run.folder / "private", case.name),
        case_folder(run.folder, "private", case.name, len(run.result.cases)),
    ]
    # A stranger may have chosen the name, which must not lead out of the run's folder.
    known = [path for path in options if path is not None and _is_plain(case.name)]
    return next((path for path in known if (path / "truth.safetensors").exists()), None)


def inside(folder: Path, *names: str) -> Path | None:
    """`folder/names`, or None where a name, which may come from a foreign file, would lead out of the folder."""
    return folder.joinpath(*names) if all(map(_is_plain, names)) else None


def _is_plain(name: str) -> bool:
    """Whether a name is a single path component on every operating system."""
    single = PurePosixPath(name).name == name == PureWindowsPath(name).name
    return single and name not in ("", "..") and "\0" not in name


def _guesses(tensors: Tensors, path: Path, kind: Kind | None) -> Guesses:
    inputs, matched, certified = {}, {}, {}
    for key, tensor in tensors.items():
        number, _, part = key.partition("/")
        if part != "inputs" or not _ROUND.fullmatch(number) or _kind_of(tensor) != kind:
            continue
        mask = tensors.get(f"{number}/matched", torch.ones(len(tensor), dtype=torch.bool))
        if mask.shape != (len(tensor),):
            raise SeepageError(f"{path} is damaged: {number}/matched has shape {tuple(mask.shape)}; make the run again")
        inputs[int(number)], matched[int(number)] = tensor, mask.bool()
        sure = tensors.get(f"{number}/certified")
        if sure is not None and sure.shape == (len(tensor),):
            certified[int(number)] = sure.bool()
    return Guesses(inputs, matched, certified)


def _check_pairs(found: Guesses, truth: dict[int, Tensor] | None, path: Path) -> None:
    for t, tensor in found.inputs.items():
        if truth is not None and (t not in truth or truth[t].shape != tensor.shape):
            raise SeepageError(
                f"{path} does not fit the private examples of round {t}; the two come from different runs, "
                "so make the run again"
            )


def _kind_of(tensor: Tensor) -> Kind | None:
    """What these are, by their shape `[n, ...]`; None for what no page shows."""
    if tensor.ndim == 2 and min(tensor.shape) > 0:
        return "records" if tensor.is_floating_point() else "texts"
    whole = tensor.is_floating_point() and tensor.ndim == 4 and min(tensor.shape) > 0
    return "pictures" if whole and tensor.shape[1] in (1, 3) else None
