"""Facts on a client, one a line, each with its origin: stated, read, inferred, assumed, or unknown."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from seepage.attacks.exposure import Exposure, UpdateAnalysis
from seepage.attacks.exposure.analysis import ANOTHER_RATE, HALF, OPTIMIZER, UNKNOWN_LOSS, UNKNOWN_RATE
from seepage.attacks.exposure.fingerprints import MIN_NOISE_SHARE, MIN_TAIL_VALUES
from seepage.attacks.exposure.inference import infer_size
from seepage.attacks.exposure.labels import MAX_NAMED_CLASSES
from seepage.attacks.exposure.rules import sgd_words
from seepage.attacks.exposure.running_statistics import STILL
from seepage.attacks.network.outputs import draws
from seepage.audit.capture import NORMALIZATION, VALUES
from seepage.audit.caveats import OPTIMIZERS
from seepage.base.nn import has_batch_norm, input_layer, vocabulary_of
from seepage.base.rounding import FALSE_ALARM
from seepage.base.schema import JsonRecord
from seepage.federation.clients import FedAvg
from seepage.federation.clients.losses import LOSSES
from seepage.federation.models.naming import UNNAMED, other_names
from seepage.federation.models.weights import read_state
from seepage.measure.metrics import is_image

Origin = Literal["stated", "read", "inferred", "assumed", "unknown"]

ADAPTIVE = "--client fedavg:optimizer"


MOST_IN_ORDER = 24
"""Tokens of a text that are listed."""
FEWEST_SUMMED = 8
"""Entries of a last bias from which it is no chance that they add up to zero but for a thousandth."""


class Fact(JsonRecord):
    """One line on the client.

    Attributes:
        name: What it is about.
        value: Its value, or the assumed one.
        origin: `stated`: by the user or the recording, as it is shown. `read`: the files say it, or the network as it
            is built. `inferred`: the likeliest by the update, which its words say how. `assumed`: the default, which
            nothing contradicts. `unknown`: nothing determines it.
        option: Option of the command line that states it; empty where there is none, or the files determine it.
    """

    name: str
    value: str
    origin: Origin
    option: str = ""


def _listed(numbers: Sequence[int], most: int = MAX_NAMED_CLASSES) -> str:
    """The first of them.

    >>> _listed([3, 1, 4, 1], 2)
    '3, 1 and 2 more'
    """
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def facts_of(
    look: UpdateAnalysis, exposure: Exposure, said: Mapping[str, str], stated: Collection[str] | None
) -> list[Fact]:
    """The facts on the client of one round, in the order of a report.

    Args:
        look: Analysis of the round's update.
        exposure: What the update reveals in closed form.
        said: Name of each inferred fact, to its source in words.
        stated: Names of the facts that the user stated of captured files; None: a recording, which states every fact
            that was not inferred.
    """
    return list(_Reader(look, exposure, said, stated).facts())


def keys_fact(before: Path, model: nn.Module, update: Mapping[str, Tensor]) -> Fact:
    """The fact which of the network's parameters the file of weights that were sent out contains, and which changed.

    Args:
        before: The file.
        model: The network.
        update: What the client sent, by the network's names.
    """
    state, own = read_state(before), {name for name, _ in model.named_parameters()}
    other = other_names(state, model)
    found = {other.get(name, name) for name in state} & own
    words = f"{len(found)} of the network's {len(own)} parameters are in the files"
    origin: Origin = "read"
    if other:
        first, place = next(iter(other.items()))
        unnamed = UNNAMED.fullmatch(first) is not None
        how = "which have no names, taken in their order" if unnamed else f"{len(other)} of them under another name"
        words += f", {how} ({first} is {place})"
        origin = "inferred" if unnamed else "read"
    still = [name for name, tensor in update.items() if not bool(tensor.any())]
    if still:
        words += f"; {len(still)} of them did not change, such as {still[0]}"
    return Fact(name="keys", value=words, origin=origin)


class _Reader:
    """Derives the facts on a client; one method for each, all over the same analysis. Arguments as in `facts_of`."""

    def __init__(
        self, look: UpdateAnalysis, exposure: Exposure, said: Mapping[str, str], stated: Collection[str] | None
    ) -> None:
        self.look, self.exposure, self.said, self.stated = look, exposure, said, stated
        self.knowledge, self.observed = look.knowledge, look.observed
        self.rule, self.update = look.knowledge.client, look.observed.update
        self.signs = next((one for one in look.defenses if one.name == "adaptive"), None)
        # A gradient has no steps, rate and decay of its own; two checkpoints do.
        self.moved = self.update.kind == "delta" or self.update.rate is not None or self.update.step is not None

    def facts(self) -> Iterator[Fact]:
        yield from self._network()
        yield self._loss()
        yield self._optimizer()
        if self.moved:
            yield self._rate()
            yield self._steps()
        yield self._batch_size()
        if self.moved:
            yield self._decay()
        yield self._clipping()
        yield self._noise()
        yield from self._compression()
        yield self._precision()
        yield self._batch_norm()
        yield self._dropout()
        yield from self._inputs()
        yield from self._labels()

    def _fact(self, name: str, value: str, origin: Origin, option: str = "") -> Fact:
        """A fact with the origin `stated` where the user or the recording states it, else with the given one."""
        stated = name not in self.said if self.stated is None else name in self.stated
        return self._seen(name, value, "stated" if stated else origin, option)

    def _guess(self, name: str, value: str, option: str) -> Fact:
        """A fact that is inferred, or assumed, as its words begin."""
        return self._fact(name, value, "assumed" if value.startswith("assumed") else "inferred", option)

    def _seen(self, name: str, value: str, origin: Origin, option: str = "") -> Fact:
        """A fact that nobody can state, with the given origin; no option where the files determine it."""
        return Fact(name=name, value=value, origin=origin, option="" if origin in ("stated", "read") else option)

    def _network(self) -> Iterator[Fact]:
        knowledge, sent = self.knowledge, self.exposure.sent
        use = knowledge.architecture.use if knowledge.architecture else "the model"
        words = f"{use}: {sent.of_tensors} tensors, {sent.of_numbers:,} numbers"
        yield self._fact("model", words, "assumed", "--model")
        for name in ("what was sent", "arrays"):
            if name in self.said:
                yield self._seen(
                    name, self.said[name], "inferred", "--difference" if "difference" in self.said[name] else ""
                )
        if "weights" in self.said:
            yield self._seen("weights", self.said["weights"], "assumed", "--model")
        if not sent.whole:
            yield self._seen("sent", sent.line.removeprefix("sent: "), "read")
        shape = ",".join(map(str, knowledge.input_shape))
        yield self._guess("input shape", self.said.get("input shape", shape), "--shape")
        outputs = f"{knowledge.num_outputs}"
        if self.look.makes_examples:
            words = f"none: {outputs} outputs, as many as an example has values"
            yield self._seen("classes", words, "read")
        elif self.rule.one_logit:
            yield self._fact("classes", "2, by one logit", "read")
        else:
            words = self.said.get("classes", outputs)
            if self.knowledge.target == "value":
                yield self._fact("classes", f"none: {words.split(',')[0]} outputs, of values", "read")
            else:
                unsure = self._unsure_of_classes
                told: Origin = "assumed" if unsure or "assumed" in words else "read"
                yield self._fact("classes", words + ", if outputs are classes" * unsure, told, "--classes")
        if vocabulary_of(knowledge.model) is None and (
            VALUES in {*(self.stated or ()), *self.said} or not is_image(knowledge.input_shape)
        ):
            words = self.said.get(VALUES, f"from {knowledge.value_range[0]:g} to {knowledge.value_range[1]:g}")
            yield self._fact(VALUES, words, "inferred" if VALUES in self.said else "assumed", "--values")
        if len(knowledge.input_shape) == 3:
            own = None if knowledge.architecture is None else knowledge.architecture.options.get("normalize")
            words = "not known: none but the network's own is assumed" if own is None else str(own)
            how: Origin = "inferred" if NORMALIZATION in self.said else "unknown"
            yield self._fact(NORMALIZATION, self.said.get(NORMALIZATION, words), how, "--normalize")

    @property
    def _unsure_of_classes(self) -> bool:
        """Whether the outputs may be boxes, points or thresholds: neither a loss of classes nor its sums say other."""
        if self.stated is None or {"loss", "classes"} & set(self.stated):
            values = self.rule.loss == "mse" and not {"classes", "target"} & set(self.stated or ("target",))
            return values or (self.rule.loss not in LOSSES and not self.look.own_loss_names)
        labels = self.look.labels
        shown = labels is not None and labels.sound and (not labels.signed or self._proved)
        return UNKNOWN_LOSS in self.said or not shown

    def _loss(self) -> Fact:
        words, labels = self.said.get("loss", str(self.rule.loss)), self.look.labels
        own = self.rule.loss not in LOSSES  # which says itself what it is of
        words += "" if own else {"map": " at each place", "value": " of values"}.get(self.knowledge.target, "")
        if "outputs" in self.said:
            words += f"; the outputs are {self.said['outputs']}"
        stated = self.stated is None or "loss" in self.stated
        if self.look.makes_examples and not stated:
            words = f"assumed to be {words}, though the network makes examples"
            return self._fact("loss", words, "unknown", "--loss, --target")
        none = "; its last bias would add up to zero without noise and in float32, and does not"
        if UNKNOWN_LOSS in self.said:
            return self._fact("loss", words + none, "assumed", "--loss")
        if labels is not None and self.knowledge.softmax_labels and not (self.signs or stated):
            if not labels.signed:
                sums = "the last bias adds up to zero" if labels.sound else None
            else:  # of a step that was recognized by its sums, and not stated
                sums = "sums of the last layer vanish" if self._proved else ""
            told = f": {sums}, as under any loss of the softmax" * bool(sums)
            return self._fact(
                "loss", words + (none if sums is None else told), "inferred" if told else "assumed", "--loss"
            )
        return self._fact("loss", words, "assumed", "--loss")

    @property
    def _proved(self) -> bool:
        """Whether the rule of one step was recognized by sums that vanish under a softmax's loss alone."""
        step, said = self.update.step, self.said.get("optimizer", "")
        return step is not None and "optimizer" not in (self.stated or ()) and said.startswith("as one step")

    def _optimizer(self) -> Fact:
        """The local optimizer: by the sizes of the update's entries, else the client rule's own."""
        if self.look.one_size:
            words = "entries of one size, as of one step of Adam: given as a gradient, which may be a difference"
            return self._seen("optimizer", words, "inferred", "--difference")
        if not self.moved:
            return self._seen("optimizer", "none: it was given as a gradient", "stated" if self.stated else "read")
        if self.update.step is not None:
            return self._guess("optimizer", self.said.get("optimizer", "one step, inverted"), ADAPTIVE)
        named = "optimizer" in (self.stated or ()) and isinstance(self.rule, FedAvg) and not self.rule.sign_only
        if self.signs is not None and not named:
            return self._guess("optimizer", self.signs.message, ADAPTIVE)
        if isinstance(self.rule, FedAvg):
            words = OPTIMIZERS[self.rule.optimizer]
            words += f" with momentum {self.rule.momentum:g}" if self.rule.momentum else ""
        else:
            words = str(self.rule) if self.update.rate is None else "SGD"  # a rate is that of one step of SGD
        if OPTIMIZER in self.said:
            words = sgd_words(self.look.along_gradient, self.look.balance, self.update.rates)
        return self._guess("optimizer", words, ADAPTIVE)

    def _rate(self) -> Fact:
        known = self.update.rate if self.update.rate is not None else getattr(self.rule, "lr", None)
        if self.update.step is not None:
            step, stated = self.update.step, self.stated is None or "learning rate" in self.stated
            most = step.rate / step.gain if step.gain else step.rate * step.limit
            words = f"{most:.3g} is the most that an entry moves"
            words += "" if stated else ", which of RMSprop is ten times its rate" * step.scaled
            return self._fact("learning rate", f"as stated; {words}" if stated else words, "inferred", "--lr")
        if self.signs is not None and self.rule.sign_only:
            size = f"{known:.3g} is the size of its largest entries"
            size += "" if self.signs.evidence["other"] else ": of Adam, about its rate times its steps"
            return self._seen("learning rate", size, "inferred", "--lr")
        if UNKNOWN_RATE in self.said:
            return self._seen("learning rate", self.said[UNKNOWN_RATE], "unknown", "--lr")
        words = self.said.get("learning rate", "not known" if known is None else f"{known:.3g}")
        if ANOTHER_RATE in self.said:
            words += f"; but {self.said[ANOTHER_RATE]}"
        return self._fact("learning rate", words, "unknown" if known is None else "inferred", "--lr")

    def _steps(self) -> Fact:
        rule = self.rule
        count = f"{rule.steps}" if isinstance(rule, FedAvg) and rule.steps else "1"
        if isinstance(rule, FedAvg) and not rule.steps:
            count = f"{rule.epochs} epoch{'' if rule.epochs == 1 else 's'}"
        words = self.said.get("local steps", count)
        if "local steps" not in self.said and {"learning rate", UNKNOWN_RATE} & set(self.said):
            words = f"assumed: {count}"
        passes = re.match(r"(\d+) in train mode", self.said.get("passes", ""))
        if words == "assumed: 1" and passes is not None:
            words += f"; if each pass was a step, they were {passes[1]}: --steps {passes[1]}"
        unsure = self.update.step is not None and self.signs is None and self.look.along_gradient is None
        if unsure and "local steps" not in (self.stated or ()):
            words = f"assumed: {words}"
        return self._guess("local steps", words, "--steps")

    def _batch_size(self) -> Fact:
        size = self.observed.batch_size
        if size is None:
            why = infer_size(self.look)[1]
            return self._seen("batch size", why, "unknown", "--batch-size")
        return self._guess("batch size", self.said.get("batch size", str(size)), "--batch-size")

    def _decay(self) -> Fact:
        name, shares = "weight decay", self.update.decayed
        coupled = 0.0 if self.update.step is None else self.update.step.coupled
        if coupled:
            words = f"{coupled:.3g} of the weights is in the gradient, if its step is Adam's; taken out of it"
            return self._fact(name, words, "inferred", "--client fedavg:weight_decay")
        if self.signs is not None or not self.rule.linear_in_gradient or (self.update.step is not None and not shares):
            option, stated = "--client fedavg:weight_decay", name in (self.stated or ())
            words = "as stated; such a step does not tell it" if stated else "such a step does not tell it"
            return self._fact(name, words, "unknown", option)
        if name in self.said:
            return self._seen(name, self.said[name], "inferred")
        if shares:
            share, rate = max(shares.values()), self.update.rate
            size = "" if rate is None else f"{share / rate:.3g}, at this rate "
            return self._fact(name, f"{size}{share:.3g} of the weights, taken out", "inferred")
        if self.rule.loss != "cross_entropy":
            return self._fact(name, f"the loss {self.rule.loss} does not tell it", "unknown", "--weight-decay")
        if self.look.labels is None or not self.look.labels.sound or self.look.low_precision:
            return self._fact(name, "the last layer does not tell it", "unknown", "--weight-decay")
        return self._fact(name, "none that the last layer shows", "inferred", "--weight-decay")

    def _clipping(self) -> Fact:
        found = next((one for one in self.look.defenses if one.name == "clipped"), None)
        option = "--client fedavg:clip_norm" if self.moved else ""
        own = {name: getattr(self.rule, name, None) for name in ("clip_norm", "clip_value")}
        if any(own.values()):
            words = ", ".join(f"{name} {value:g}" for name, value in own.items() if value)
            return self._fact("clipping", words, "inferred", option)
        if found is not None:
            return self._seen("clipping", found.message, "inferred", option)
        if "clipping" in (self.stated or ()):
            return self._fact("clipping", "as stated; one factor of the whole gradient, which is not told", "unknown")
        if self.look.bent and self.observed.measured(self.rule).known() < 1:
            return self._seen("clipping", "the norm behind such a step is not known", "unknown", option)
        scaled = self.update.kind == "gradient" and UNKNOWN_RATE not in self.said
        what = "a gradient" if scaled else "a difference of weights"
        unsure = ", if the rate is right," if scaled and self.moved and "learning rate" in self.said else ""
        return self._seen("clipping", f"{what} of norm {self.look.norm:.3g}{unsure} tells none", "unknown", option)

    def _noise(self) -> Fact:
        found = next((one for one in self.look.defenses if one.name == "noised"), None)
        if found is not None:
            return self._seen("noise", found.message, "inferred")
        shapes = [(one.shape[0], math.prod(one.shape[1:])) for one in self.look.fingerprints if len(one.shape) > 1]
        tell = sum(min(shape) >= 2 * MIN_TAIL_VALUES for shape in shapes)
        if self.signs is not None or not tell:
            why = "such steps hide it" if self.signs is not None else "no tensor is large enough to show it"
            return self._seen("noise", why, "unknown")
        many = "1 tensor" if tell == 1 else f"{tell} tensors"
        some = sum((one.share or 0) >= MIN_NOISE_SHARE for one in self.look.fingerprints)
        if some:
            return self._seen("noise", f"{some} of {many} end as noise does, and the rest does not agree", "unknown")
        return self._seen("noise", f"none of a hundredth of an entry or more, by {many}", "inferred")

    def _compression(self) -> Iterator[Fact]:
        for one in self.look.defenses:
            if one.name in ("quantized", "sparsified"):
                yield self._seen("compression", one.message, "inferred")

    def _precision(self) -> Fact:
        name, labels = HALF, self.look.labels
        if name in self.said:
            return self._seen(name, self.said[name], "read")
        found = next((one for one in self.look.defenses if one.name == "rounded"), None)
        if found is not None:
            return self._seen(name, found.message, "inferred")
        if self.look.low_precision and self.knowledge.num_outputs >= FEWEST_SUMMED:
            words = "as under autocast, faint noise, or by chance: the last bias adds up to zero but for a thousandth"
            return self._seen(name, words, "unknown")
        plain = labels is not None and labels.sound and not (labels.signed or self.signs)
        plain &= self.knowledge.softmax_labels and not self.rule.one_logit  # whose sum is looked at
        if plain and self.update.kind == "gradient" and self.look.along_gradient:
            return self._seen(name, "none: the last bias adds up to zero as float32 does", "inferred")
        return self._seen(name, "nothing tells it", "unknown")

    def _batch_norm(self) -> Fact:
        name = "batch norm"
        if not has_batch_norm(self.knowledge.model):
            return self._seen(name, "none in this network", "read")
        if STILL in self.said and not self.exposure.of("batch-norm"):
            return self._seen(name, self.said[STILL], "assumed", "--client fedsgd:mode=train")
        if name in self.said:
            words = f"train mode: {self.said[name]}"
            words += f"; passes: {self.said['passes']}" if "passes" in self.said else ""
            return self._seen(name, words, "read")
        for one in self.exposure.of("batch-norm"):
            modes, read, channels = (one.evidence[key] for key in ("modes", "variances", "channels"))
            words = (
                f"{' and '.join(modes)} mode, by the gradient; {read} of {channels} variances of the batch can be read"
            )
            return self._seen(name, words, "read" if "unclear" not in modes else "inferred")
        option = "--client fedsgd:mode=eval"
        return self._fact(name, f"{self.rule.mode} mode", "assumed", option)

    def _dropout(self) -> Fact:
        random = draws(self.knowledge.model, self.knowledge.input_shape)
        if random is None:
            return self._seen("dropout", "not looked at, as the network does not run in train mode here", "unknown")
        if not random:
            return self._seen("dropout", "none: a pass in train mode draws no random number", "inferred")
        words = "a pass in train mode draws random numbers, of dropout, noise or random paths"
        if self.rule.mode == "eval" and STILL not in self.said:
            return self._fact("dropout", f"off, though {words}", "inferred")
        return self._seen("dropout", f"{words}; attacks have none", "unknown", "--client fedsgd:mode=eval")

    def _inputs(self) -> Iterator[Fact]:
        """Numbers of an example that are zero in all, whose columns of the first layer had no gradient."""
        layer = input_layer(self.knowledge.model, self.observed.params, self.knowledge.input_shape)
        if layer is None or layer.weight not in self.update.tensors or bool(layer.shift.any()):
            return
        rows = self.update.tensors[layer.weight]
        moved, live = rows.any(0), rows[rows.any(1)] != 0  # [d], [m', d]
        # Of entries that were left out by chance, z of all, all m' of a column are so with a chance of z^m'.
        zeros = 1 - float(live[:, moved].double().mean()) if bool(moved.any()) else 0.0
        if len(moved) * zeros ** len(live) > FALSE_ALARM:
            return
        if not 0 < (count := int(moved.sum())) < len(moved):
            return
        words = f"{len(moved) - count:,} of {len(moved):,} numbers are 0, or too small to show, in every example"
        yield self._seen("inputs", f"{words}: columns of {layer.weight} that stood still", "inferred")
        for first, width in self.knowledge.blocks:
            there = moved[first : first + width].nonzero().flatten().tolist()
            yield self._seen(f"block {first}:{width}", f"words {_listed(there)} are there", "inferred")

    def _labels(self) -> Iterator[Fact]:
        for one in self.exposure.of("codes"):
            name = "tokens" if one.evidence["tokens"] else f"codes in {one.evidence['table'] or 'the table'}"
            words = f"{one.message}: {_listed(one.evidence['rows'])}"
            yield self._seen(name, words, "read" if one.evidence["all"] else "inferred")
        for one in self.exposure.of("places"):  # of one text the tokens, in order
            text = [there[0] for there in one.evidence["tokens"] if one.examples]
            yield self._seen("places", f"{one.message}{': ' * bool(text)}{_listed(text, MOST_IN_ORDER)}", "inferred")
        for one in self.exposure.of("bags"):
            yield self._seen("bags", one.message, "inferred")
        labels = self.look.told_labels
        source = None if labels is None else labels.source
        if source is not None and labels is not None:
            assumed = labels.signed and self._loss().origin == "assumed"
            yield self._seen("labels", source, "assumed" if assumed else "inferred", "--loss")
        elif self.knowledge.target == "class" and not self.look.makes_examples:
            told = labels is not None or self.rule.loss in ("cross_entropy", "bce", "binary")
            none = "the last bias names none" if told else f"not read under the loss {self.rule.loss}"
            none = "not read, as the loss is not known" if UNKNOWN_LOSS in self.said else none
            none = "no bias of a last layer was sent" if self.look.head is None else none
            if labels is not None and labels.signed and len(labels.present) > (self.look.most_labels or math.inf):
                none = (
                    f"the last bias rose at {len(labels.present)} entries, as no cross-entropy of so few examples does"
                )
            yield self._seen("labels", self.look.unread_head or none, "unknown")
        for one in self.exposure.of("columns"):
            yield self._seen("columns", one.lines[0], "read" if one.evidence.get("stated", True) else "inferred")
