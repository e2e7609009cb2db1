"""What an update gives away by itself, with no attack run: in closed form, layer by layer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.linear import LinearLeak
from seepage.attacks.matching.labels import largest_remainder
from seepage.core.nn import last_linear
from seepage.errors import Inapplicable, SeepageError
from seepage.leakage.batch_norm import BatchNormLeak, batch_norm_leaks
from seepage.leakage.fingerprints import TensorMarks, length_of, looks_like, marks_of
from seepage.leakage.head_features import head_features
from seepage.leakage.layers import LayerLook, look_at_layers
from seepage.privacy.ledger import Spent, open_spent
from seepage.transcript.recorded import RecordedTranscript, open_transcript
from seepage.transcript.simulated import OneRound
from seepage.types import ClientUpdate, Knowledge, Round, Tensors, Transcript, Update

SCHEMA = 1
HEAD_SIZE = 2000
"""Examples times classes up to which the features of the head are solved for; more takes longer than a round may."""
CERTAIN_SIZE = 2**14
"""Neurons times classes up to which rows of the first layer are checked against the model's own backward pass."""
NEGATIVE = 1e-5
"""Share of the largest entry of the last bias gradient below which a negative entry may be rounding."""


@dataclass(frozen=True)
class LabelLook:
    """What the last layer says of the labels.

    Attributes:
        present: Classes that are in the batch: only these have a negative entry in the last bias gradient.
        counts: Estimated examples of each class, where the batch size is known; None: unknown.
        doubt: Largest distance of a count from a whole number before rounding, 0 to 0.5; None without counts.
        sound: Whether the entries of the bias gradient sum to zero, as those of an unchanged cross-entropy gradient
            do; else `present` and `counts` are not to be believed.
    """

    present: tuple[int, ...]
    counts: tuple[int, ...] | None
    doubt: float | None
    sound: bool


@dataclass(frozen=True)
class NormLook:
    """What one batch norm says of the client: see `seepage.leakage.batch_norm`.

    Attributes:
        norm: Name of the batch norm.
        mode: `train`, `eval` or `unclear`.
        variances: Channels whose variance over the batch can be read to within 10 %.
        channels: Channels in all.
    """

    norm: str
    mode: str
    variances: int
    channels: int


@dataclass(frozen=True)
class TensorSays:
    """The answer to "is it safe to share this tensor?".

    Attributes:
        name: Of the parameter.
        gives: What it gives away, with its layer's other tensors; None: no closed form found, which is no proof.
        withhold: Whether it would have to be withheld or noised to close what is named.
    """

    name: str
    gives: str | None
    withhold: bool


@dataclass(frozen=True)
class Exposure:
    """What an update gives away in closed form. Nothing found is no proof of safety: no attack was run.

    Attributes:
        t: The round.
        kind: `gradient` or `delta`, as it was sent.
        norm: Euclidean norm of what was sent, over all tensors.
        batch_size: Examples behind it, where known.
        at_least: Examples behind it at the least, by the rank of its layers; None where no layer tells.
        layers: Fully connected layers.
        norms: Batch norms; none are looked at in a difference of weights, whose local steps blur them.
        labels: What the last layer says, or None.
        features: What the head's equations say, in words, or None.
        marks: What the values of each tensor look like.
        looks_like: Sentences on defenses and formats that the update looks like.
        tensors: What each tensor gives away.
        notes: What could not be looked at, and why; and what the client states of its privacy.
        stated: The client's own statement of differential privacy, where its recording holds one. Not measured here.
    """

    t: int
    kind: str
    norm: float
    batch_size: int | None
    at_least: int | None
    layers: tuple[LayerLook, ...]
    norms: tuple[NormLook, ...]
    labels: LabelLook | None
    features: str | None
    marks: tuple[TensorMarks, ...]
    looks_like: tuple[str, ...]
    tensors: tuple[TensorSays, ...]
    notes: tuple[str, ...]
    stated: Spent | None = None

    @property
    def examples(self) -> int:
        """Private examples that the layer which reads the input gives away exactly."""
        return max((look.found for look in self.layers if look.reads == "input"), default=0)

    @property
    def vectors(self) -> int:
        """Inputs of any one fully connected layer, private examples or their features, given away exactly."""
        return max((look.found for look in self.layers), default=0)

    @property
    def line(self) -> str:
        """One line for a log."""
        size = self.batch_size or (f"at least {self.at_least}" if self.at_least else "an unknown number of")
        words = [f"gives away {self.examples} of {size} examples exactly"]
        if self.vectors > self.examples:
            words.append(f"and inner features of {self.vectors}")
        if any(look.noisy for look in self.layers):
            words.append("its one example but for noise")
        if any(look.unmixable for look in self.layers):
            words.append("fewer examples than neurons")
        if self.labels is not None and self.labels.sound and self.labels.present:
            words.append(f"{len(self.labels.present)} labels")
        return "; ".join([*words, *self.looks_like])

    def table(self) -> dict[str, Any]:
        """As JSON: the fields, the two counts and a schema version."""
        return {"schema": SCHEMA, "examples": self.examples, "vectors": self.vectors, **asdict(self)}


def exposure(transcript: Transcript | Path | str, *, t: int = 0) -> Exposure:
    """What a round's update gives away in closed form, with no attack run and no truth at hand.

    Args:
        transcript: A transcript or the path of an `observed/` folder.
        t: The round.

    Raises:
        SeepageError: For a damaged folder, and for a round that is not there.

    Example:
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 5)
        >>> private = Batch(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([3]))
        >>> found = exposure(record(model, private))
        >>> found.examples, found.at_least, found.labels.present
        (1, 1, (3,))
    """
    seen: Transcript = open_transcript(Path(transcript)) if isinstance(transcript, str | Path) else transcript
    if not 0 <= t < len(seen):
        raise SeepageError(f"there is no round {t}: the recording has {len(seen)}; name one from 0 to {len(seen) - 1}")
    observed, knowledge = seen[t], seen.knowledge
    sent, notes = observed.update.tensors, list[str]()
    gradient, scaled = _gradient(observed, knowledge, notes)
    labels = _labels(observed, knowledge, gradient, scaled=scaled) if knowledge.client.linear_in_gradient else None
    marks = [marks_of(name, tensor) for name, tensor in sent.items()]
    length = length_of(sent)
    looks = looks_like(marks, length, _last_bias(sent, knowledge))
    leveled = [mark.name for mark in marks if mark.bits is not None]
    layers = look_at_layers(observed, knowledge, gradient, leveled) if knowledge.client.linear_in_gradient else []
    layers = [_certified(look, OneRound(seen, t)) for look in layers]
    changed = _changed(looks, labels)
    if changed:
        notes.append(f"{changed}, so neither batch size nor mode of batch norm is read off it")
    stated = open_spent(seen.folder) if isinstance(seen, RecordedTranscript) else None
    if stated is not None:
        notes += [f"the client states {stated.line}", *(f"doubt on that: {doubt}" for doubt in stated.doubts)]
    norms = _norms(observed, knowledge) if observed.update.kind == "gradient" and not changed else []
    return Exposure(
        t=t,
        kind=observed.update.kind,
        norm=length,
        batch_size=observed.batch_size,
        at_least=None if changed else _at_least(layers, observed.update.kind == "delta"),
        layers=tuple(layers),
        norms=tuple(norms),
        labels=labels,
        features=_features(observed, knowledge, notes) if scaled and labels is not None and not changed else None,
        marks=tuple(marks),
        looks_like=tuple(looks),
        tensors=tuple(_says(sent, layers, norms, labels, knowledge)),
        notes=tuple(notes),
        stated=stated,
    )


@dataclass(frozen=True)
class _Gradient(Mapping[str, Tensor]):
    """The update read as a gradient; each tensor is made when it is asked for, as a whole gradient is a whole model.

    Attributes:
        update: What was sent.
        examples: Behind it, where known.
        rule: What it is read by; None: only its direction is known.
    """

    update: Update
    examples: int | None
    rule: ClientUpdate | None

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.update.tensors[name]
        if self.rule is None:
            return -tensor if self.update.kind == "delta" else tensor
        return self.rule.as_gradient(Update({name: tensor}, self.update.kind), self.examples)[name]

    def __contains__(self, name: object) -> bool:
        return name in self.update.tensors  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self.update.tensors)

    def __len__(self) -> int:
        return len(self.update.tensors)


def _gradient(observed: Round, knowledge: Knowledge, notes: list[str]) -> tuple[Mapping[str, Tensor], bool]:
    """The update as a gradient, and whether its scale is right: of unknown local steps only the direction is known."""
    if not knowledge.client.linear_in_gradient:
        notes.append("the client's optimizer divides every entry by a size of its own, so no layer has a closed form")
        return observed.update.tensors, False
    found = _Gradient(observed.update, observed.batch_size, knowledge.client)
    try:
        found[min(found, key=lambda name: observed.update.tensors[name].numel())]
    except SeepageError as error:
        notes.append(f"read up to a factor, so without counts of labels: {error}")
        return replace(found, rule=None), False
    return found, True


def _last_bias(sent: Tensors, knowledge: Knowledge) -> Tensor | None:
    names = last_linear(knowledge.model, knowledge.num_classes)
    return None if names is None or names[1] is None else sent.get(names[1])


def _certified(look: LayerLook, seen: Transcript) -> LayerLook:
    """The layer that reads the input, with what `linear` certifies by the model itself where that is more.

    A row that no other row agrees with may still be one example's: its own backward pass must give what was sent.
    """
    classes = seen.knowledge.num_classes
    if look.reads != "input" or look.bias is None or look.neurons * classes > CERTAIN_SIZE or classes == 2:
        return look
    try:
        certified = LinearLeak()(seen, seed=0).certified
    except SeepageError:
        return look  # such as an unknown batch size
    return look if certified is None else replace(look, found=max(look.found, int(certified.sum())))


def _labels(observed: Round, knowledge: Knowledge, gradient: Mapping[str, Tensor], *, scaled: bool) -> LabelLook | None:
    names = last_linear(knowledge.model, knowledge.num_classes)
    if names is None or names[1] is None or names[1] not in gradient:
        return None
    bias = gradient[names[1]].double()
    largest = float(bias.abs().max())
    if not largest > 0:
        return None
    present = tuple(torch.nonzero(bias < -NEGATIVE * largest).flatten().tolist())
    sound = abs(float(bias.sum())) <= 1e-3 * float(bias.abs().sum())
    if not scaled or observed.batch_size is None:
        return LabelLook(present, None, None, sound)
    shares = observed.batch_size * (1 / len(bias) - bias)
    counts = largest_remainder(shares, observed.batch_size)
    doubt = float((shares - shares.round()).abs().max())
    return LabelLook(present, tuple(counts.tolist()), doubt, sound)


def _norms(observed: Round, knowledge: Knowledge) -> list[NormLook]:
    try:
        leaks = batch_norm_leaks(observed, knowledge)
    except Inapplicable:
        return []  # no batch norm is nothing to tell
    return [NormLook(leak.norm, leak.mode, _readable(leak), len(leak.variance)) for leak in leaks]


def _readable(leak: BatchNormLeak) -> int:
    known: Tensor = leak.variance.isfinite() & (leak.variance > 0) & (leak.error < 0.1)
    return int(known.sum()) if leak.mode == "train" else 0


def _features(observed: Round, knowledge: Knowledge, notes: list[str]) -> str | None:
    size, names = observed.batch_size, last_linear(knowledge.model, knowledge.num_classes)
    if size is None or observed.update.kind == "delta" or names is None or names[0] not in observed.update.tensors:
        return None
    if size * knowledge.num_classes > HEAD_SIZE:
        notes.append(f"the head's features were not solved for: {size} examples are too many for a quick look")
        return None
    try:
        found = head_features(observed, knowledge)
    except Inapplicable as error:
        notes.append(f"the head's features cannot be solved for: {error.reason}")
        return None
    if found.doubt is not None:
        notes.append(f"the head's features were solved for and are not to be believed: {found.doubt}")
        return None
    return f"the {found.features.shape[1]} features of each of its {len(found.features)} examples, solved from the head"


def _changed(looks: Sequence[str], labels: LabelLook | None) -> str:
    """Why the update is taken for one that a defense has changed in more than its length, or an empty string."""
    for word in looks:
        if word.startswith(("looks noised", "looks quantized", "looks sparsified")):
            return f"the update {word.partition(':')[0]}"
    if labels is not None and not labels.sound:
        return "the last bias gradient does not sum to zero, as that of an unchanged cross-entropy gradient does"
    return ""


def _at_least(layers: Sequence[LayerLook], moved: bool) -> int | None:
    """Examples by rank. A layer that reads positions counts those; features move with the weights of local steps."""
    tell = ("input",) if moved else ("input", "features")
    return max((look.rank for look in layers if look.reads in tell and look.rank), default=None)


def _says(
    sent: Tensors,
    layers: Sequence[LayerLook],
    norms: Sequence[NormLook],
    labels: LabelLook | None,
    knowledge: Knowledge,
) -> list[TensorSays]:
    gives: dict[str, list[str]] = {name: [] for name in sent}
    for look in layers:
        words = _layer_words(look)
        for name in filter(None, (look.weight, look.bias if look.found or look.noisy else None)):
            if words:
                gives[name].append(words)
    last = last_linear(knowledge.model, knowledge.num_classes)
    if labels is not None and labels.sound and labels.present and last is not None:
        told = "the labels" if labels.counts is None else "the labels and about how many of each"
        for own in last:
            if own in gives:
                gives[own].append(told)
    for one in norms:
        name = f"{one.norm}.weight"
        if one.variances and name in gives:
            gives[name].append(f"the batch's variance in {one.variances} of {one.channels} channels")
    return [TensorSays(name, "; ".join(words) or None, bool(words)) for name, words in gives.items()]


def _layer_words(look: LayerLook) -> str:
    what = "private examples" if look.reads == "input" else "inner vectors"
    words = []
    if look.found:
        words.append(f"{look.found} {what if look.found > 1 else what.removesuffix('s')} exactly, row by row")
    if look.noisy:
        words.append(f"its one {what.removesuffix('s')}, but for noise ({look.error:.0%} of a row)")
    if look.unmixable:
        words.append(
            f"the span of its {look.rank} {what}, fewer than its {look.neurons} neurons: unmixing "
            "(cocktail_party) applies"
        )
    return "; ".join(words)
