"""What an update reveals by itself, with no attack run: in closed form, layer by layer."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.attacks.base import Needs
from seepage.attacks.exposure.adapters import adapter_findings
from seepage.attacks.exposure.balance import ONE_STEP, Balance, balance_of
from seepage.attacks.exposure.batch_norm import BatchNormLeak, batch_norm_findings, batch_norm_leaks
from seepage.attacks.exposure.columns import column_findings
from seepage.attacks.exposure.decay import decay_of_directions
from seepage.attacks.exposure.finding import ClosedForm
from seepage.attacks.exposure.fingerprints import (
    CHANGES_VALUES,
    Fingerprint,
    defense_findings,
    euclidean_norm,
    fingerprint,
    rounded_finding,
    rounded_weights,
)
from seepage.attacks.exposure.indexed import IndexedRounds, indexed_findings, indexed_rounds
from seepage.attacks.exposure.labels import (
    HARD_ONLY,
    SOFTMAX_ONLY,
    ZERO_SUM_SHARE,
    Head,
    LabelLeak,
    at_places,
    finding_leak,
    head_of,
    label_findings,
    label_leak,
    map_leak,
    names_labels,
    signed_label_leak,
    sums_to_zero,
    target_findings,
)
from seepage.attacks.exposure.layers import LayerLeak, hidden_layers, layer_findings, layer_leaks, rests_on
from seepage.attacks.exposure.patches import patch_findings
from seepage.attacks.exposure.rules import adaptive_step, along_gradient, vanishing_sums
from seepage.attacks.exposure.sent import SentParts, sent_parts
from seepage.attacks.exposure.text import bag_findings, code_findings, place_findings, text_findings
from seepage.attacks.linear import LinearLeak
from seepage.attacks.network.outputs import outputs_of
from seepage.attacks.reading.head import head_features
from seepage.attacks.reading.head.features import CONTRADICTED, SIZE_REMEDY
from seepage.attacks.text.token_set import looked_up
from seepage.base.nn import at_state, input_layer, last_linear, token_table
from seepage.base.rounding import DEVIATIONS, FLOAT32_NETWORK, FLOAT32_SAME
from seepage.base.schema import Finding
from seepage.base.storage import LazyTensors
from seepage.base.words import plural
from seepage.errors import Inapplicable, SeepageError
from seepage.federation.clients.losses import LOSSES
from seepage.federation.measured import EVEN, Step, format_told
from seepage.federation.sent_tensors import check_finite
from seepage.federation.transcript.foreign import read_facts
from seepage.federation.transcript.recorded import RecordedTranscript, open_transcript
from seepage.federation.transcript.simulated import OneRound
from seepage.federation.types import Knowledge, Round, Transcript, Update
from seepage.measure.privacy.ledger import LedgerEntry, open_entry

SCHEMA = 1
HALF_PRECISION = 0.02
"""Share of the entries' absolute sum up to which the sum of the last bias gradient is taken for the rounding of half
precision, whose steps are 2^-8 (bfloat16) of a number."""
ALIKE = 0.1
"""Relative difference of the sizes of a bias's entries up to which their signs alone make a sum of them small."""
PROBES, PROBED_PLACES = 256, 4096
"""Made-up examples by which the mean softmax is told, and how many places they may have together."""
FEWEST_VALUES = 64
"""Values of an example from which as many outputs are taken for an example, and not for classes."""
OTHER_OUTPUTS = "other outputs"
"""Name of the fact that parameters moved on which the network's outputs do not depend."""
OPTIMIZER = "optimizer"
"""Name of the fact that nobody stated how the client's optimizer makes a step of a gradient."""
HALF = "half precision"
"""Name of the fact that the returned weights are numbers of half precision."""
ANOTHER_RATE = "another rate"
"""Name of the fact that the update contradicts the learning rate that was stated."""
UNKNOWN_RATE = "unknown rate"
"""Name of the fact that nothing shows the learning rate, so that the update is a gradient up to a factor."""
STEP = frozenset({"learning rate", UNKNOWN_RATE, "local steps"})
"""Names of the facts that nobody stated that the update is one step at a stated rate."""
ASSUMED_LOSS = "assumed loss"
"""Name of the fact that nobody stated the loss, so that labels may be soft and more may have been added."""
UNKNOWN_LOSS = "unknown loss"
"""Name of the fact that nobody stated the loss, and that the update contradicts the one that is assumed."""
NEEDS = Needs(linear_in_gradient="no layer has a closed form")
"""What closed forms need of the client's rule, as the attacks do."""
MAX_HEAD_EXAMPLES = 64
"""Examples up to which the head's features are solved for by their zeros: 64 of 200 classes take about a second of a
core, 99 of 100 over a minute; classes matter little (16 of 1,000: 0.3 s)."""
MAX_HEAD_UNKNOWNS = 1_500_000
"""Entries of the Jacobian of the softmax equations up to which features without zeros are solved for (24 examples of
100 classes: 5 s)."""
MAX_CERTIFIED_SIZE = 2**14
"""Neurons times classes up to which rows of the first layer are checked against the model's own backward pass."""


@dataclass(frozen=True)
class TensorLeak:
    """The answer to "is it safe to share this tensor?".

    Attributes:
        name: Of the parameter.
        gives: What it reveals, with its layer's other tensors; None: no closed form found, which is no proof.
        withhold: Whether it would have to be withheld or noised to close the finding.
    """

    name: str
    gives: str | None
    withhold: bool


@dataclass(frozen=True)
class Exposure:
    """What an update reveals in closed form. Nothing found is no proof of safety: no attack was run.

    Attributes:
        t: The round.
        kind: `gradient` or `delta`, as it was sent.
        sent: Which of the model's tensors it holds, and why not the others.
        norm: Euclidean norm of what was sent, over all tensors.
        batch_size: Examples behind it, where known.
        at_least: Examples behind it at the least, by the rank of its layers; None where no layer shows it.
        at_once: The same of one local step, which it may not be.
        findings: What each closed form says: the numbers behind it, its limit, and the tensors it is read from.
        defenses: Defenses and number formats that the update looks like.
        fingerprints: What the values of each tensor look like.
        notes: What could not be read, and why; and what the client states of its privacy.
        stated: The client's own statement of differential privacy, where its recording holds one. Not measured here.
        or_more: The batch size was inferred, by a rank that more examples may have.
    """

    t: int
    kind: str
    sent: SentParts
    norm: float
    batch_size: int | None
    at_least: int | None
    at_once: int | None
    findings: tuple[ClosedForm, ...]
    defenses: tuple[Finding, ...]
    fingerprints: tuple[Fingerprint, ...]
    notes: tuple[str, ...]
    stated: LedgerEntry | None = None
    or_more: bool = False

    def of(self, name: str) -> list[ClosedForm]:
        """The findings of one name."""
        return [one for one in self.findings if one.name == name]

    @property
    def examples(self) -> int:
        """Private examples that a closed form reveals exactly."""
        return max((one.examples for one in self.findings), default=0)

    @property
    def vectors(self) -> int:
        """Inputs of any one fully connected layer, private examples or their features, revealed exactly."""
        return max([self.examples, *(one.vectors for one in self.findings)])

    @property
    def tensors(self) -> tuple[TensorLeak, ...]:
        """The findings by tensor."""
        said = {
            one.name: [two.message for two in self.findings if one.name in two.tensors] for one in self.fingerprints
        }
        return tuple(TensorLeak(name, "; ".join(words) or None, bool(words)) for name, words in said.items())

    @property
    def looks_like(self) -> tuple[str, ...]:
        """Sentences on defenses and formats that the update looks like."""
        return tuple(finding.message for finding in self.defenses)

    @property
    def line(self) -> str:
        """One line for a log."""
        return "; ".join([self.given, *self.looks_like])

    @property
    def given(self) -> str:
        """What is given away, on one line."""
        size = self.batch_size or (f"at least {self.at_least}" if self.at_least else "an unknown number of")
        size = f"{size} or more" if self.batch_size and self.or_more else size
        many = "" if (self.batch_size or self.at_least) == 1 and not self.or_more else "s"
        # What is not proved may still be read: of nothing proved "reveals 0" would say too much.
        found, of = self.examples, f"{size} example{many}"
        words = [f"reveals {found} of {of} exactly" if found else f"0 of {of} proved"]
        told = [one.evidence for one in self.of("layer") if found and one.evidence["found"] == found]
        if told:
            words[0] += rests_on(told[0]["provided"], rated=any(one["rated"] for one in told))
        for one in self.of("text") * (not self.examples):
            ordered = ", and its texts where token_sequences puts them together" * one.evidence["ordered"]
            words = [f"reveals its tokens{ordered}{one.evidence['condition']}"]
        for one in self.of("codes"):
            words.append(f"{plural(len(one.evidence['rows']), 'token' if one.evidence['tokens'] else 'code')} by name")
        words += [
            f"the token at {one.evidence['known']} of {len(one.evidence['tokens'])} places" for one in self.of("places")
        ]
        for one in self.of("columns"):
            known = "both values" if "pairs" in one.evidence else "the mean"
            known = f"{known} of {plural(len(one.evidence['mean']), 'column')}"
            words += [one.message if "rows" in one.evidence else known] * (not one.examples)
        if self.vectors > self.examples:
            rows = [one for one in self.of("exact-rows") if one.vectors == self.vectors]
            parts = any(one.evidence["part"] for one in rows)
            words.append(f"and {'parts' if parts else 'inner features'} of {self.vectors}")
        words += [f"{'an' if self.or_more else 'its one'} example but for noise"] * bool(self.of("noisy-rows"))
        words += ["fewer examples than neurons"] * bool(self.of("span"))
        for one in self.of("labels"):
            words += [plural(len(one.evidence["present"]), "label") + one.evidence["condition"]] * bool(one.tensors)
        return "; ".join(words)

    def table(self) -> dict[str, Any]:
        """As JSON: the fields, the counts and a schema version."""
        fields = asdict(replace(self, findings=(), defenses=()))
        marks = fields.pop("fingerprints")
        seen = {"findings": self.findings, "defenses": self.defenses}
        fields |= {key: [one.model_dump(exclude={"case", "attack"}) for one in found] for key, found in seen.items()}
        return {
            "schema": SCHEMA,
            "examples": self.examples,
            "vectors": self.vectors,
            **fields,
            "marks": marks,
            "tensors": [asdict(one) for one in self.tensors],
            "looks_like": self.looks_like,
            "sent_words": "" if self.sent.whole else self.sent.line,
        }


def exposure(transcript: Transcript | Path | str, *, t: int = 0) -> Exposure:
    """What a round's update reveals in closed form, with no attack run and no truth at hand.

    Args:
        transcript: A transcript or the path of an `observed/` folder.
        t: The round.

    Raises:
        SeepageError: For a damaged folder, and for a round that is not there.

    Example:
        >>> import torch
        >>> from seepage import Architecture, Batch, build, record
        >>> model = build(Architecture("fc2", {"hidden": 16}), (1, 8, 8), 5)
        >>> private = Batch(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([3]))
        >>> found = exposure(record(model, private))
        >>> found.examples, found.at_least, found.of("labels")[0].evidence["present"]
        (1, 1, (3,))
    """
    seen: Transcript = open_transcript(Path(transcript)) if isinstance(transcript, str | Path) else transcript
    if not 0 <= t < len(seen):
        raise SeepageError(f"there is no round {t}: the recording has {len(seen)}; name one from 0 to {len(seen) - 1}")
    return UpdateAnalysis(seen, t).exposure


@dataclass(frozen=True)
class UpdateAnalysis:
    """One round's update, opened once. Each part is computed when it is first asked for, and once.

    Attributes:
        seen: The transcript.
        t: The round of it.
        inferred: Names of facts that the transcript holds and that nobody stated; None: as its folder says.
    """

    seen: Transcript
    t: int = 0
    inferred: Collection[str] | None = None

    @cached_property
    def observed(self) -> Round:
        """The round."""
        return self.seen[self.t]

    @property
    def knowledge(self) -> Knowledge:
        """What the attacker knows."""
        return self.seen.knowledge

    @cached_property
    def _read(self) -> tuple[LazyTensors, bool, str | None]:
        """The update as a gradient, whether its scale is known, and what limits the reading.

        Each tensor is made when it is asked for, as a whole gradient is a whole model. Of an unknown number of local
        steps only the direction is known, and of Adam's not even that.
        """
        update, rule, size = self.observed.update, self.knowledge.client, self.observed.batch_size
        names = {name: name for name in update.tensors}
        moved = update.kind == "delta"  # weights after minus before, so against the gradient
        direction = LazyTensors(names, lambda name: -update.tensors[name] if moved else update.tensors[name])

        def scaled(name: str) -> Tensor:
            found = rule.as_gradient(Update({name: update.tensors[name]}, update.kind), size)
            if moved:
                check_finite(found, self.observed.t, "gradient that the client's rule and update make")
            return found[name]

        gradient = LazyTensors(names, scaled)
        try:
            NEEDS.check_rule(self.knowledge, self.observed)
        except Inapplicable as error:
            return direction, False, error.reason
        try:
            gradient[min(names, key=lambda name: update.tensors[name].numel())]  # the cheapest one
        except SeepageError as error:
            return direction, False, f"read up to a factor, so without counts of labels: {error}"
        if UNKNOWN_RATE in self._guessed:
            return direction, False, "read up to a factor, so without counts of labels: the learning rate is not known"
        return gradient, True, None

    @cached_property
    def norm(self) -> float:
        """Euclidean norm of what was sent, over all tensors."""
        return euclidean_norm(self.observed.update.tensors)

    @cached_property
    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """What the values of each tensor look like."""
        update = self.observed.update
        return tuple(fingerprint(name, tensor, self._unit(name)) for name, tensor in update.tensors.items())

    def _unit(self, name: str) -> float:
        """The last place of a tensor's largest weight in the units of what was sent; 0 of a gradient that was sent."""
        update, weights = self.observed.update, self.observed.params.get(name)
        scale = 1.0 if update.kind == "delta" or update.rate is None else update.rate * update.rates.get(name, 1.0)
        if (update.kind == "gradient" and update.rate is None) or weights is None or not weights.is_floating_point():
            return 0.0
        return float(torch.finfo(torch.float32).eps * weights.abs().max()) / scale

    @cached_property
    def defenses(self) -> tuple[Finding, ...]:
        """Defenses and number formats that the update looks like."""
        update, params = self.observed.update, self.observed.params
        moved, start = update.tensors, {name: params[name] for name in update.tensors if name in params}
        if update.step is not None:
            form = self._weights_format
            return () if form is None else (rounded_weights(form),)
        if update.rate is not None:
            own = {name: -update.rate * update.rates.get(name, 1.0) for name in start}
            moved = {name: own[name] * moved[name] - update.decayed.get(name, 0.0) * start[name] for name in start}
        elif update.kind == "gradient":
            start = {name: torch.zeros_like(tensor) for name, tensor in moved.items()}
        adaptive = adaptive_step(moved, start, sums=self._sums)
        # Examples of zeros and ones leave SGD entries of one size, too, which a stated rule explains.
        stated = OPTIMIZER not in self._guessed and self.knowledge.client.linear_in_gradient
        if adaptive is not None and not (stated and adaptive.flat and adaptive.best is None):
            form = self._weights_format
            # Levels, zeros and a round norm are what such a step leaves.
            return (adaptive.finding,) if form is None else (adaptive.finding, rounded_weights(form))
        names = last_linear(self.knowledge.model, self.knowledge.num_outputs)
        bias = None if names is None or names[1] is None else update.tensors.get(names[1])
        found = defense_findings(self._prints_but_for_decay(moved, start), self.norm, bias)
        if self._coarse:
            rounded = rounded_finding(self.observed.measured(self.knowledge.client, [self._largest]))
        elif self._weights_format is not None:
            rounded = rounded_weights(self._weights_format)
        else:
            return tuple(found)
        # Rounding leaves errors like noise, levels and zeros.
        rest = [finding for finding in found if finding.name not in ("noised", "quantized", "rounded", "sparsified")]
        return (rounded, *rest)

    def _prints_but_for_decay(self, moved: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> list[Fingerprint]:
        """Fingerprints without what looks like noise and is decay: random weights that shrank along themselves."""
        noisy = {one.name for one in self.fingerprints if one.noise is not None and one.name in start}
        decay = decay_of_directions(start, {name: moved[name] for name in noisy}) if noisy else None
        own = {} if decay is None else decay.shares
        return [replace(one, noise=None, share=None) if one.name in own else one for one in self.fingerprints]

    @cached_property
    def _sums(self) -> tuple[str, ...]:
        """Tensors of the last layer whose rows add up to zero in a gradient of the client's loss."""
        known, params = self.knowledge, self.observed.params
        if self.makes_examples or UNKNOWN_LOSS in self._guessed:
            return ()
        own = (known.model, known.num_outputs, known.client, known.target)
        return vanishing_sums(*own, known.input_shape, params)

    @cached_property
    def along_gradient(self) -> bool | None:
        """Whether the update is linear in gradients; None where nothing tells, and nobody stated it."""
        update, params = self.observed.update, self.observed.params
        if update.step is not None:
            return None if update.step.scaled else True  # as stated
        if OPTIMIZER not in self._guessed:
            return self.knowledge.client.linear_in_gradient
        if self.balance is not None:
            return True
        names = [name for name in self._sums if name in update.tensors and name in params]
        largest = self._largest  # whose entries tell the number format
        return along_gradient(
            {name: self._moved[name] for name in {*names, largest} & self._moved.keys()}, params, sums=names
        )

    @property
    def _moved(self) -> LazyTensors:
        """By how much each tensor changed, but for decay."""
        update, scale = self.observed.update, 1.0 if self.observed.update.rate is None else -self.observed.update.rate
        names = {name: name for name in update.tensors if name in self.observed.params}
        return LazyTensors(names, lambda name: scale * update.rates.get(name, 1.0) * update.tensors[name])

    @cached_property
    def balance(self) -> Balance | None:
        """What neurons between layers say of the client's step, where nobody stated it and weights are known."""
        update = self.observed.update
        if OPTIMIZER not in self._guessed or update.step is not None or (update.kind == "gradient" and not update.rate):
            return None
        return balance_of(self.knowledge.model, self.knowledge.input_shape, self._moved, self.observed.params)

    @property
    def _weights_format(self) -> str | None:
        """The coarse format of the returned weights, where the client's step leaves no plain gradient to read."""
        update, params = self.observed.update, self.observed.params
        bent = update.kind == "delta" and not self.knowledge.client.linear_in_gradient
        if not bent and update.step is None:
            return None
        name = self._largest
        sign = 1 if update.step is not None else -1
        told = format_told(sign * update.tensors[name], params.get(name), update.step or Step.sgd(), 0.0)
        return None if told.stored == "float32" else told.stored

    @property
    def bent(self) -> bool:
        """The gradient is the inverse of an optimizer's step, so that large entries are known worse than small ones."""
        return self.observed.update.step is not None

    @cached_property
    def rough(self) -> bool:
        """It is so, and the median entry is known worse than a network's float32: ranks and rows are hidden."""
        if not self.bent:
            return False
        middle = self.observed.measured(self.knowledge.client).accuracy()
        return middle is None or middle > FLOAT32_NETWORK

    @cached_property
    def _counted(self) -> bool:
        """Whether the last bias gradient is known well enough for its sum to be seen."""
        if self._last_bias is None:
            return False
        found = self.observed.measured(self.knowledge.client, [self._last_bias])
        error, value = found.error[self._last_bias], found.value[self._last_bias]
        return bool(DEVIATIONS * error.square().sum().sqrt() <= ZERO_SUM_SHARE * value.abs().sum())

    @cached_property
    def signs(self) -> bool:
        """Hardly more than the signs of the gradient are left, so that its rows are multiples of no input."""
        return not self.knowledge.client.linear_in_gradient or any(one.name == "adaptive" for one in self.defenses)

    @property
    def one_size(self) -> bool:
        """Whether what was given as a gradient has entries of one size, as a difference of weights by Adam has.

        Such a difference has the other sign, so that nothing is read off signs.
        """
        update = self.observed.update
        plain = update.kind == "gradient" and update.step is None and update.rate is None
        return plain and self.signs and self.knowledge.client.linear_in_gradient

    @property
    def _largest(self) -> str:
        """Name of the tensor with the most entries."""
        return max(self.observed.update.tensors, key=lambda name: self.observed.update.tensors[name].numel())

    @cached_property
    def _coarse(self) -> bool:
        """Whether returned weights, or a gradient that was read off two checkpoints, are of a format below float32."""
        update, rule = self.observed.update, self.knowledge.client
        moved = update.kind == "delta" or update.rate is not None
        if not moved or not rule.linear_in_gradient:
            return False
        try:
            return self.observed.formats(rule).coarse is not None
        except SeepageError:
            return False  # the scale of a gradient is not known

    def _label_rounding(self) -> float:
        """How far an entry of the last bias gradient may be off: by its format, and by the terms that it adds up.

        Those are softmax values and labels, of up to 1, so where they cancel 2^-23 is left.
        """
        if self._last_bias is None:
            return 0.0
        least, update = torch.finfo(torch.float32).eps, self.observed.update
        if not (self._coarse or self.bent or update.rate is not None):
            return least
        error = self.observed.measured(self.knowledge.client, [self._last_bias]).error[self._last_bias]
        return max(float(error.max() / EVEN), least)

    @cached_property
    def labels(self) -> LabelLeak | None:
        """What the last layer says of the labels; nothing, where the loss's gradient is not softmax minus label."""
        gradient, scaled, _ = self._read
        rule = self.knowledge.client
        sigmoids = rule.loss == "bce" and self.head is not None and self.head.same
        named = self.own_loss_names and self.head is not None and self.head.kind != "other"
        if (sigmoids or named) and not (self.signs or self.one_size):
            return finding_leak(*self._signed_bias(gradient, scaled=scaled))
        softmax = rule.softmax_gradient and self.knowledge.target in ("class", "map")
        if not (softmax or rule.one_logit) or OTHER_OUTPUTS in self._guessed:
            return None
        if self.bent and UNKNOWN_LOSS in self._guessed:
            return None
        if self._map_head is not None and not (self.signs or self.bent):
            rounding = self._sum_rounding(str(self._map_head[1])) if scaled else 0.0
            of_maps = map_leak(gradient[str(self._map_head[1])], rounding)
            least = (-gradient[str(self._map_head[1])].double()).clamp(min=0).tolist()
            return replace(of_maps, shares=tuple(least)) if scaled and of_maps.sound and self._one_step else of_maps
        kind = None if self.makes_examples or self.head is None else self.head.kind
        if self.bent and kind in ("outputs", "rises") and not self._counted:
            step = self.observed.update.step
            assert step is not None  # as it is bent
            moved = LazyTensors({name: name for name in gradient}, lambda name: step.psi(gradient[name]))
            return signed_label_leak(moved, self.observed.params, self.knowledge, self.most_labels)
        if self.one_size:
            return None
        if kind == "rises" or (self.signs and kind == "outputs"):
            return signed_label_leak(gradient, self.observed.params, self.knowledge, self.most_labels)
        if self.signs or kind != "outputs":
            return None
        # Places may have no label of their own, so that nothing counts those that have.
        places = 1 if self.head is None else self.head.places
        size = self.observed.batch_size if scaled and self.explained_step and places == 1 else None
        # Up to a factor, a difference of weights has errors too.
        rounding = self._label_rounding() if scaled or self.observed.update.rate is not None else 0.0
        inferred = "batch size" in self._guessed
        alike, longest = self._alike if scaled else None, 2.0 if OPTIMIZER in self._guessed else 1.0
        found = label_leak(
            gradient, self.knowledge, size, rounding, lower_bound=inferred, longest=longest, alike=alike,
            noise=0.0 if self.knowledge.client.one_logit else self._sums_off,
        )  # fmt: skip
        if found is not None and found.sound and self.head is not None and places > 1 and scaled:
            every = None if self.observed.batch_size is None or inferred else self.observed.batch_size * places
            typical = self._head(max(2, min(PROBES, PROBED_PLACES // places)), self._words)
            placed = at_places(found, gradient[str(self._last_bias)], typical, every, longest, rounding)
            # That counts come out whole says that this is one step at this rate; shares do not.
            return placed if placed.places is not None or self.explained_step else found
        bias = gradient[str(self._last_bias)]
        if found is not None and not self.along_gradient and len(bias) > 2 and self._one_sized(bias):
            return replace(found, counts=None, least=None, most=None, signed=True)
        whole = found is not None and not inferred and len(found.present) == self.observed.batch_size and places == 1
        return replace(found, complete=True) if found is not None and whole else found

    @staticmethod
    def _one_sized(bias: Tensor) -> bool:
        """Whether a bias has entries of about one size, which cancel by their signs."""
        sizes = bias.abs() / bias.abs().max()
        return bool((sizes > 1 - ALIKE).logical_or(sizes < ALIKE).all())

    @property
    def most_labels(self) -> int | None:
        """How many labels the examples have, one at each place, where their number is known."""
        size = self.observed.batch_size
        return None if size is None else size * (1 if self.head is None else self.head.places)

    @cached_property
    def told_labels(self) -> LabelLeak | None:
        """The labels with what they rest on where nobody stated the loss.

        Each is one class where the softmax of the head's features says so, or counts come out whole.
        """
        leak, size = self.labels, None if "batch size" in self._guessed else self.observed.batch_size
        proved = leak is None or leak.places is not None or (leak.complete and self._alike is not None)
        if leak is None or proved or ASSUMED_LOSS not in self._guessed:
            return leak
        if leak.signed or self.solved_head[0]:
            return replace(leak, condition=SOFTMAX_ONLY * leak.signed)
        several = size is not None and self.head is not None and self.head.places == 1 and len(leak.present) > size
        words = f"; so many classes of {plural(size or 0, 'example')} contradict that" * several
        words = words or "; the head's equations contradict that, or the rate" * (
            CONTRADICTED in (self.solved_head[1] or "")
        )
        return replace(leak, condition=HARD_ONLY + words)

    def _signed_bias(self, gradient: LazyTensors, *, scaled: bool) -> tuple[Tensor, float | Tensor]:
        """The last bias's gradient, or what it moved by of a step that keeps its signs, and how far each may be off."""
        assert self._last_bias is not None  # as it has a head
        name = self._last_bias
        if not self.bent:
            return gradient[name], self._label_rounding() if scaled else 0.0
        found = self.observed.measured(self.knowledge.client, [name])
        moved, error = found.moved.get(name, (found.value[name], found.error[name]))
        return moved, DEVIATIONS * error

    @cached_property
    def own_loss_names(self) -> bool:
        """Whether a loss of the user's own pulls up the outputs of labels alone."""
        own = self.knowledge.client.loss not in LOSSES and self.knowledge.target in ("class", "map")
        model = self.knowledge.model
        return (
            own
            and not self.makes_examples
            and names_labels(
                self.knowledge.client.loss, at_state(model, self.observed.params), self.knowledge.input_shape
            )
        )

    @property
    def _alike(self) -> tuple[Tensor, int] | None:
        """The softmax that all examples have where the last layer's weights are zero, and their stated number."""
        names, size = last_linear(self.knowledge.model, self.knowledge.num_outputs), self.observed.batch_size
        unknown = size is None or "batch size" in self._guessed or self.knowledge.client.one_logit
        weight = None if names is None else self.observed.params.get(names[0])
        if unknown or self.head is None or weight is None or bool(weight.any()):
            return None
        assert size is not None
        return self.head.softmax, size

    @cached_property
    def _map_head(self) -> tuple[str, str | None] | None:
        """Weight and bias of the convolution that makes a network's maps; None of one that ends in a full layer."""
        if self.knowledge.target != "map" or self._last_bias is not None:
            return None
        made = outputs_of(self.knowledge.model, self.knowledge.input_shape)
        own = "" if made is None or not made.layer else f"{made.layer}."
        return None if made is None or f"{own}bias" not in self._read[0] else (f"{own}weight", f"{own}bias")

    @cached_property
    def head(self) -> Head | None:
        """What the last layer is to the outputs; None where the model has no such layer with a bias that was sent."""
        return None if self._last_bias is None else self._head(2)

    @property
    def _words(self) -> Tensor | None:
        """`[v]` by how much each row of the table moved that was looked up; None where that does not show."""
        table = token_table(self.knowledge.model)
        if table is None:
            return None
        try:
            found = looked_up(self.knowledge, self.observed, table[0])
        except SeepageError:
            return None
        moved = self.observed.update.tensors[found.name].double().norm(dim=1) * found.rows.moved
        return moved if bool(moved.any()) else None

    def _head(self, count: int, words: Tensor | None = None) -> Head:
        names, observed = last_linear(self.knowledge.model, self.knowledge.num_outputs), self.observed
        assert names is not None  # as it has a bias
        own = (self.knowledge.model, observed.params, self.knowledge.input_shape, names[0])
        return head_of(*own, buffers=observed.buffers, count=count, words=words)

    @property
    def unread_head(self) -> str | None:
        """Why nothing is read off the last bias of a cross-entropy, in words; None where something can be."""
        if not self.knowledge.softmax_labels or self.head is None or self.head.kind != "other":
            return None
        assert self._last_bias is not None  # as there is a head
        return f"the network changes what {self._last_bias.rpartition('.')[0] or 'its last layer'} returns"

    @cached_property
    def _guessed(self) -> Collection[str]:
        """Names of facts that nobody stated."""
        if self.inferred is not None:
            return self.inferred
        return read_facts(self.seen.folder).said if isinstance(self.seen, RecordedTranscript) else ()

    @property
    def makes_examples(self) -> bool:
        """Whether the network has as many outputs as an example has values: it predicts no classes."""
        values = math.prod(self.knowledge.input_shape)
        return values >= FEWEST_VALUES and self.knowledge.num_outputs == values

    @property
    def single(self) -> bool:
        """Whether the update is known to be of one local step: stated, shown, or a gradient that was sent."""
        said = self._guessed if isinstance(self._guessed, Mapping) else {}
        shown = said.get("local steps", "").startswith(ONE_STEP.partition("{")[0])
        update = self.observed.update
        known = not STEP & set(self._guessed)
        return update.kind == "gradient" and (shown or known or update.step is not None)

    @property
    def _one_step(self) -> bool:
        """Whether the update is one step at a stated rate, or a gradient that was sent, of a loss as it is stated."""
        guessed = {*STEP, ANOTHER_RATE, "loss", OPTIMIZER} & set(self._guessed)
        rule = self.knowledge.client
        one = self.observed.update.kind == "gradient" or (rule.linear_in_gradient and getattr(rule, "steps", None) == 1)
        return one and not guessed

    @cached_property
    def explained_step(self) -> bool:
        """Whether the update is one step at a stated rate, of a softmax on each example by itself, in float32.

        Only then do the entries of the last bias gradient count anything. Several steps, or batches that were added up
        under autocast, have the same signs.
        """
        update, rule = self.observed.update, self.knowledge.client
        if update.step is not None and update.step.scaled:
            return False  # epsilon is a guess, and with it the scale
        if update.kind != "gradient" or rule.batch_coupled(self.knowledge.model):
            return False
        if {*STEP, ANOTHER_RATE} & set(self._guessed):
            return False
        bias = self._last_bias
        return rule.one_logit or bias is None or sums_to_zero(self._read[0][bias], self._sum_rounding(bias))

    @cached_property
    def _last_bias(self) -> str | None:
        """Name of the last layer's bias where that was sent."""
        names = last_linear(self.knowledge.model, self.knowledge.num_outputs)
        return None if names is None or names[1] not in self._read[0] else names[1]

    @cached_property
    def low_precision(self) -> bool:
        """Whether the gradient of the last bias adds up to zero as that of a network in half precision does.

        One step's, and not that of a network whose update has noise on it, which may be anything.
        """
        name = self._last_bias
        plain = self.observed.update.kind == "gradient" and self.knowledge.softmax_labels and not self.bent
        noised = any(finding.name == "noised" for finding in self.defenses)
        if not plain or name is None or self.signs or noised or self.unread_head is not None:
            return False
        bias, names = self._read[0][name].double(), last_linear(self.knowledge.model, self.knowledge.num_outputs)
        if names is not None and names[0] in self._read[0] and self._rows_off:  # rounded as those of the bias are
            return False
        small = abs(float(bias.sum())) <= HALF_PRECISION * float(bias.abs().sum())
        # As several steps of Adam leave them.
        return small and not self._one_sized(bias) and not sums_to_zero(bias, self._sum_rounding(name))

    def _sum_rounding(self, bias: str) -> float:
        """How far the sum of the last bias gradient may be off, where it is a difference of weights over a rate."""
        update, weights = self.observed.update, self.observed.params.get(bias)
        if weights is None or (update.rate is None and not self._read[1]):
            return 0.0
        if update.rate is None:
            return self._label_rounding() * len(weights)
        coarse = self._label_rounding() * len(weights)
        return coarse + float(torch.finfo(torch.float32).eps * weights.double().abs().sum()) / update.rate

    @cached_property
    def layers(self) -> tuple[LayerLeak, ...]:
        """Fully connected layers, by their rows alone; none where these hold signs.

        The rows `sign(g_i x)` of one example are multiples of one vector too, `sign(x)`, which is not the example.
        """
        if self.signs:
            return ()
        if self.rough:
            return tuple(hidden_layers(self.observed, self.knowledge))
        quantized = [one.name for one in self.fingerprints if one.bits is not None]
        known = {"loss_known": self._loss_known, "size_known": "batch size" not in self._guessed}
        return tuple(layer_leaks(self.observed, self.knowledge, self._read[0], quantized, **known))

    @property
    def provided(self) -> str:
        """What has to hold for ranks to count examples, where nothing proves it, as the end of a sentence."""
        if self.along_gradient:
            return ""
        return f", if the optimizer is {'SGD' if self.observed.update.step is None else 'as inferred'}"

    @property
    def _loss_known(self) -> bool:
        """Whether the loss is one of this package's, which was stated or which the sum of the last bias bears out."""
        loss, labels = self.knowledge.client.loss, self.labels
        if loss != "cross_entropy" or not {ASSUMED_LOSS, UNKNOWN_LOSS} & set(self._guessed):
            return loss in LOSSES and (labels is None or labels.sound)
        return UNKNOWN_LOSS not in self._guessed and labels is not None and labels.sound and not labels.signed

    @cached_property
    def changed(self) -> str:
        """Why a defense seems to have changed the update in more than its length, or an empty string."""
        for finding in self.defenses:
            if finding.name in CHANGES_VALUES:
                return f"the update looks {finding.name}"
        # A loss that only was assumed is contradicted first, and whatever it was leaves ranks and rows as they are.
        contradicted = UNKNOWN_LOSS in self._guessed
        if self.labels is not None and not self.labels.sound and not self.rough and not contradicted:
            if self.knowledge.client.one_logit:
                return "the last bias gradient is larger than that of one step of one logit can be at this rate"
            if self.labels.signed:
                return "the last bias moved as no cross-entropy of so many examples moves it"
            return "the last bias gradient does not sum to zero, as that of an unchanged cross-entropy gradient does"
        if self.along_gradient is False and not self.rough and self._rows_off:
            return "the rows of the last layer do not sum to zero, though its bias does"
        return ""

    @property
    def _sums_off(self) -> float:
        """Error of an entry of the last layer's gradient by the sums of its columns, which vanish but for errors."""
        names = [name for name in self._sums if name in self._read[0] and self._read[0][name].ndim > 1]
        rows = self._read[0][names[0]].double().flatten(1) if names else torch.zeros(1, 1)
        return float(rows.sum(0).square().mean().sqrt()) / math.sqrt(len(rows))

    @property
    def _rows_off(self) -> bool:
        """Whether the rows of the last layer's gradient add up to more than half precision leaves of zero."""
        names = [name for name in self._sums if name in self._read[0] and self._read[0][name].ndim > 1]
        rows = self._read[0][names[0]].double().flatten(1) if names else torch.zeros(1, 1)
        return float(rows.sum(0).norm()) > HALF_PRECISION * float(rows.abs().sum(0).norm())

    @property
    def at_least(self) -> int | None:
        """Examples behind the update at the least, by the rank of its layers; None where no layer shows it.

        A layer that reads positions counts those. Inner features move with the weights, so that each local step on the
        same examples adds vectors: they count where one step is known.
        """
        return self._rank(inner=self.single) if self.along_gradient else None

    @property
    def at_once(self) -> int | None:
        """The same of one local step, whatever the update is."""
        return self.rank if self.along_gradient else None

    @property
    def rank(self) -> int | None:
        """The same if the update is one step and linear in gradients, as nothing contradicts."""
        return self._rank(inner=True)

    def _rank(self, *, inner: bool) -> int | None:
        step = self.observed.update.step
        cut = step is not None and math.isfinite(step.limit)  # entries were cut off, and rows with them
        if self.changed or cut or self.along_gradient is False or any(one.name == "rounded" for one in self.defenses):
            return None
        tell = ("input", "features") if inner and self.observed.update.kind != "delta" else ("input",)
        return max((layer.examples for layer in self.layers if layer.reads in tell and layer.rank), default=None)

    @cached_property
    def exposure(self) -> Exposure:
        """All of it together."""
        knowledge, update = self.knowledge, self.observed.update
        # Of rows with noise in them the number formats alone say nothing of how well they are known.
        marks = {mark.name for mark in self.defenses}
        noised = "noised" in marks
        layers = tuple(
            replace(
                self._certified(layer),
                believed=not self.changed and not self.low_precision,
                accuracy=None if noised else layer.accuracy,
                provided=self.provided,
            )
            # Absolute errors have slopes of one size, so that examples of one label are one row under a loss like that.
            if not ((layer.last and UNKNOWN_LOSS in self._guessed) or "centered" in marks)
            else replace(layer, believed=False, found=0, error=None)
            for layer in self.layers
        )
        features, unsolved = self.solved_head
        indexed, unindexed = self._indexed()
        last = self._map_head or last_linear(knowledge.model, knowledge.num_outputs) or ()
        head = [name for name in last if name is not None and name in self._read[0]]
        size = self.observed.batch_size
        if "batch size" in self._guessed and not self.single and self._rank(inner=False) is None:
            size = None  # of inner vectors, of which several steps on the same examples make more than there are
        alone = OneRound(self.seen, self.t)
        stated_size = None if "batch size" in self._guessed else self.observed.batch_size
        findings = (
            *([] if self.signs else adapter_findings(alone, self._read[0])),
            *layer_findings([replace(one, rated=self._at_one_rate(one)) for one in layers]),
            *label_findings(self.told_labels, [name for name in head if bool(self._read[0][name].any())]),
            *self._targets(layers),
            *batch_norm_findings(self._batch_norms()),
            *features,
            *([] if self.signs or self.rough else (*patch_findings(alone), *text_findings(alone))),
            *code_findings(knowledge, self.observed, stated_size),
            *place_findings(knowledge, self.observed),
            *([] if self.signs or "batch size" in self._guessed else bag_findings(knowledge, self.observed)),
            *column_findings(knowledge, self.observed, stated_size),
            *indexed_findings(indexed),
        )
        stated = open_entry(self.seen.folder) if isinstance(self.seen, RecordedTranscript) else None
        return Exposure(
            t=self.t,
            kind=update.kind,
            sent=sent_parts(self.observed, knowledge.model),
            norm=self.norm,
            batch_size=size,
            at_least=self.at_least,
            at_once=self.at_once,
            findings=findings,
            defenses=self.defenses,
            fingerprints=self.fingerprints,
            notes=(*self._notes(stated), *(why for why in (unsolved, unindexed) if why is not None)),
            stated=stated,
            or_more="batch size" in self._guessed,
        )

    def _targets(self, layers: Sequence[LayerLeak]) -> list[ClosedForm]:
        """The values that a lone example was to have, where the loss is a squared error of the last layer's outputs."""
        guessed = {"batch size", UNKNOWN_RATE, ANOTHER_RATE, UNKNOWN_LOSS} & set(self._guessed)
        last = next((one for one in layers if one.last and one.found == 1), None)
        if last is None or last.bias is None or guessed or self.observed.batch_size != 1 or self.observed.update.step:
            return []
        plain = self.knowledge.client.loss == "mse" and not (self.changed or self.signs or self.rough)
        if not plain or self.head is None or not self.head.same or self.head.places > 1:
            return []
        return target_findings((last.weight, last.bias), self._read[0], self.observed.params)

    def _at_one_rate(self, layer: LayerLeak) -> bool:
        """Whether a layer's weight and bias moved by one rate, as was stated or as the balance of neurons proves."""
        own = OPTIMIZER not in self._guessed or self.observed.update.step is not None
        return own or (self.balance is not None and {layer.weight, layer.bias} <= self.balance.names)

    def _certified(self, layer: LayerLeak) -> LayerLeak:
        """The layer that reads the input, with what `linear` certifies by the model itself where that is more.

        A row that no other row agrees with may still be one example's: its own backward pass must give what was sent.
        """
        knowledge, classes = self.knowledge, self.knowledge.num_classes
        too_large = layer.neurons * classes > MAX_CERTIFIED_SIZE
        if layer.reads != "input" or layer.bias is None or too_large:
            return layer
        own = input_layer(knowledge.model, self.observed.params, knowledge.input_shape)
        if own is None or own.weight != layer.weight:  # of several the attack reads one
            return layer
        # With two classes one number decides, which a mixture meets by chance: about as often as the tolerance is wide.
        attack = LinearLeak(tolerance=FLOAT32_SAME) if classes == 2 else LinearLeak()
        try:
            certified = attack(OneRound(self.seen, self.t), seed=0).certified
        except SeepageError:
            return layer  # such as an unknown batch size
        return layer if certified is None else replace(layer, found=max(layer.found, int(certified.sum())))

    def _batch_norms(self) -> list[BatchNormLeak]:
        """Batch norms of a plain gradient; local steps blur them, and a model without one has none."""
        if self.observed.update.kind != "gradient" or self.changed or self.rough:
            return []
        try:
            leaks = batch_norm_leaks(self.observed, self.knowledge)
        except Inapplicable:
            return []
        if "passes" in self._guessed:  # <w, g> adds up over the batches of one step, whose variances differ
            return [replace(leak, variance=torch.full_like(leak.variance, torch.nan)) for leak in leaks]
        return leaks

    @cached_property
    def solved_head(self) -> tuple[list[ClosedForm], str | None]:
        """What the head's equations give; or why they were not solved, where that is worth a note."""
        observed, knowledge = self.observed, self.knowledge
        size, names = observed.batch_size, last_linear(knowledge.model, knowledge.num_outputs)
        readable = (
            self._read[1]
            and self.labels is not None
            and (self.head is None or self.head.kind == "outputs")
            and not self.changed
            and not self.rough
            and observed.update.kind != "delta"
        )
        if not readable or size is None or names is None or names[0] not in observed.update.tensors:
            return [], None
        if MAX_HEAD_EXAMPLES < size < knowledge.num_classes:
            why = f"more than {MAX_HEAD_EXAMPLES} examples take over a minute; gauss_newton and head_features do it"
            return [], f"the head's features were not looked at: {why}"
        try:
            found = head_features(observed, knowledge, most=MAX_HEAD_UNKNOWNS)
        except Inapplicable as error:
            return [], f"the head's features cannot be solved for: {error.reason}"
        if found.doubt is not None:
            return [], f"the head's features were solved for and are not to be believed: {found.doubt}"
        count, width = found.features.shape
        whose = "its one example" if count == 1 else f"each of its {count} examples"
        if "batch size" in self._guessed:
            whose = f"{count} example{'' if count == 1 else 's'}, if it has no more"
        words, evidence = f"the {width} features of {whose}, solved from the head", {"examples": count, "width": width}
        return [ClosedForm(name="features", message=words, evidence=evidence, lines=(f"head: {words}",))], None

    def _indexed(self) -> tuple[IndexedRounds | None, str | None]:
        """What all rounds determine where the indices are known, or why that was not looked at."""
        try:
            return indexed_rounds(self.seen), None
        except SeepageError as error:
            return None, f"what the known indices determine was not looked at: {error}"

    def _notes(self, stated: LedgerEntry | None) -> Iterator[str]:
        flat = any(one.name == "adaptive" and one.evidence["flat"] for one in self.defenses)
        if flat and self.knowledge.client.loss in LOSSES:
            yield "of SGD on zeros and ones rows over biases are examples: --client fedavg:lr=…,steps=1, if you know it"
        limited = self._read[2]
        if limited is not None:
            yield limited
        if self.one_size:
            yield "its entries are of one size, as those of a difference of weights by Adam are: --difference FILE"
        if self.unread_head is not None:
            yield f"{self.unread_head}, so no label is read off its bias"
        if self.changed and not self.signs:  # of which no layer is read
            yield f"{self.changed}, so neither batch size nor mode of batch norm is read off it"
        wrong = size_doubt(self.observed.batch_size, self.at_once)
        if wrong is not None:
            yield wrong
        if stated is not None:
            yield f"the client states {stated.line}"
            yield from (f"against that: {doubt}" for doubt in stated.caveats)


def size_doubt(batch_size: int | None, at_once: int | None) -> str | None:
    r"""That a batch size is too small for the rank of a layer's gradient; None where nothing contradicts it.

    >>> print(size_doubt(2, 4).replace("; ", ";\n"))
    a layer has a gradient of rank 4, which one step of SGD on 2 examples cannot give;
    give the right --batch-size, augmented views counted (or, of two checkpoints, --steps if there were more)
    >>> size_doubt(4, 4), size_doubt(None, 4)
    (None, None)
    """
    if batch_size is None or at_once is None or at_once <= batch_size:
        return None
    examples = f"{batch_size} example{'' if batch_size == 1 else 's'}"
    return f"a layer has a gradient of rank {at_once}, which one step of SGD on {examples} cannot give; {SIZE_REMEDY}"
