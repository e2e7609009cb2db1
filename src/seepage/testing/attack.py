"""What every attack keeps."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from seepage.api import record
from seepage.attacks.base import Attack, Inapplicable, Progress, ignore
from seepage.audit.attempt import FolderProgress
from seepage.audit.recipe.plans import Rounds
from seepage.base.nn import generator, next_tokens, state_of, vocabulary_of
from seepage.federation.clients import FedSGD
from seepage.federation.models import build
from seepage.federation.transcript.recorded import open_transcript, save_transcript
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.federation.types import (
    Architecture,
    Batch,
    ClientUpdate,
    Knowledge,
    Reconstruction,
    Round,
    Status,
    Target,
    Transcript,
)
from seepage.testing.watch import Changed, Kept, Killed, OtherDevice, globals_kept, real_gpu, same, snapshot, tensors_of

TINY = Architecture("fc2", {"hidden": 16})
"""The network that attacks are tried on unless another is named."""


@dataclass(frozen=True, kw_only=True)
class AttackCase:
    """An attack and the small problem it must solve.

    Attributes:
        attack: The attack, with settings that solve the problem.
        planted_db: Least PSNR in dB, on values in [0, 1], at which a planted input must come back.
        model: The network it is planted in.
        input_shape: Shape of one planted input.
        num_classes: Classes.
        batch_size: Planted inputs, or with `rounds` how many of them each round holds.
        client: What the client computes.
        rounds: Rounds over one planted data set, whose indices the attacker knows; None: one batch.
        found: How many of them must come back; None: all.
        brief: The same attack with fewer steps, for the checks that need no recovery; None: the attack itself.
        brief_rounds: Fewer rounds, for the same checks; None: all of `rounds`.
        refuses: Networks on which the attack must be `Inapplicable`.
        needs_batch_size: Whether it must be `Inapplicable` where the batch size is unknown.
        victim: Your own transcript and its true inputs, in place of the planted ones.
        device: Where all of it happens.
        other_device: Opens another device for the check that an attack stays on its rounds' device.
        seed: Draws network and inputs, and seeds the attack.
        target: What the planted inputs are trained towards; values and maps are drawn at random.
    """

    attack: Attack
    planted_db: float
    model: Architecture = TINY
    input_shape: tuple[int, ...] = (1, 8, 8)
    num_classes: int = 4
    batch_size: int = 1
    client: ClientUpdate = FedSGD()  # noqa: RUF009 - frozen and without state
    rounds: Rounds | None = None
    found: int | None = None
    brief: Attack | None = None
    brief_rounds: int | None = None
    refuses: tuple[Architecture, ...] = ()
    needs_batch_size: bool = True
    victim: Callable[[], tuple[Transcript, Tensor]] | None = None
    device: str = "cpu"
    other_device: OtherDevice = real_gpu
    seed: int = 0
    target: Target = "class"

    def plant(self, *, architecture: Architecture | None = None, double: bool = False) -> tuple[Transcript, Tensor]:
        """A transcript and the inputs `[n, *shape]` behind it."""
        if self.victim is not None:
            return self.victim()
        architecture = architecture or self.model
        outputs = self.client.num_outputs(self.num_classes)
        model = build(architecture, self.input_shape, outputs, seed=self.seed).to(self.device)
        count = self.batch_size if self.rounds is None else self.rounds.samples
        inputs, labels = planted_inputs(count, self.input_shape, self.seed), torch.arange(count) % self.num_classes
        tokens = vocabulary_of(model)
        if tokens is not None:
            inputs = (tokens * inputs).long()
            labels = next_tokens(inputs) if self.num_classes == tokens else labels
        if self.target != "class":
            labels = self._planted_targets(count)
        batch = Batch(inputs, labels, torch.arange(count)).to(self.device)
        if double:
            model = model.double()
            values = batch.labels.double() if batch.labels.is_floating_point() else batch.labels
            batch = batch if tokens else replace(batch, inputs=batch.inputs.double(), labels=values)
        if self.rounds is None:
            return record(model, batch, client=self.client, architecture=architecture), batch.inputs
        knowledge = Knowledge(
            model,
            self.client,
            self.input_shape,
            self.num_classes,
            known=frozenset({"indices"}),
            architecture=architecture,
        )
        (params, buffers), design = state_of(model), self.rounds.drawn(self.batch_size, self.seed)
        victim = IndexedVictim(knowledge, params, batch, design, self.rounds.count, buffers, server=self.rounds.server)
        return victim.transcript(), batch.inputs

    def _planted_targets(self, count: int) -> Tensor:
        """`[n, k]` values, or `[n, h, w]` maps of classes in the inputs' size."""
        draw = generator(self.seed, "targets")
        if self.target == "value":
            return torch.randn((count, self.num_classes), generator=draw)
        return torch.randint(self.num_classes, (count, *self.input_shape[1:]), generator=draw)

    def run(self, transcript: Transcript, progress: Progress = ignore) -> Reconstruction:
        """The brief attack."""
        return (self.brief or self.attack)(transcript, seed=self.seed, progress=progress)

    @property
    def short(self) -> "AttackCase":
        """The case with as few rounds as the checks need that ask for no recovery."""
        if self.brief_rounds is None or self.rounds is None:
            return self
        return replace(self, rounds=replace(self.rounds, count=self.brief_rounds))

    @cached_property
    def plain(self) -> "PlainRun":
        """The brief attack, run once for all checks that need no more than its answer."""
        transcript, truth = self.short.plant()
        counted = Killed(None, after=0)
        return PlainRun(transcript, truth, self.run(transcript, counted), counted.saves)

    @cached_property
    def recorded(self) -> "RecordedRun":
        """The brief attack on the recorded rounds, run once while everything that it must leave alone is watched."""
        with tempfile.TemporaryDirectory() as folder:
            save_transcript(self.plain.transcript, Path(folder) / "observed")
            transcript = open_transcript(Path(folder) / "observed", device=self.device, trust=True)
            kept = Kept(transcript.knowledge, tuple(transcript[t] for t in range(len(transcript))))
        model = transcript.knowledge.model
        # Mixed modes, so that an attack cannot restore them with one call of `train()`.
        for i, module in enumerate(model.modules()):
            module.training = i % 2 == 0
        tensors = [{name: t.clone() for name, t in tensors_of(observed).items()} for observed in kept.rounds]
        before, globals_changed = snapshot(model), ""
        try:
            with globals_kept("the attack"):
                found = self.run(kept)
        except AssertionError as error:
            globals_changed = str(error)
        changed = tuple(what for what, state in snapshot(model).items() if not same(state, before[what]))
        rounds = tuple(
            f"{name} of round {observed.t}"
            for observed, old in zip(kept.rounds, tensors, strict=True)
            for name, tensor in tensors_of(observed).items()
            if not torch.equal(tensor, old[name]) or tensor.grad is not None
        )
        return RecordedRun(found, rounds, changed, globals_changed)


@dataclass(frozen=True)
class PlainRun:
    """One run of a case's brief attack.

    Attributes:
        transcript: What it was given.
        truth: The planted inputs.
        found: What it returned.
        saves: Checkpoints that it kept.
    """

    transcript: Transcript
    truth: Tensor
    found: Reconstruction
    saves: int


@dataclass(frozen=True)
class RecordedRun:
    """One run of a case's brief attack on recorded rounds, and what it did not leave as it was.

    Attributes:
        found: What it returned.
        rounds: Tensors of the rounds that it changed, or left a gradient on.
        model: Parts of the model that it changed.
        globals: A global random state that it drew from or set; empty where it did not.
    """

    found: Reconstruction
    rounds: tuple[str, ...]
    model: tuple[str, ...]
    globals: str


def planted_inputs(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """`[n, *shape]` inputs in [0, 1]: smooth where they are images, else uniform noise."""
    draw = generator(seed, "planted")
    if len(shape) != 3:
        return torch.rand((n, *shape), generator=draw)
    coarse = torch.rand((n, shape[0], 4, 4), generator=draw)
    return F.interpolate(coarse, size=shape[1:], mode="bilinear", align_corners=True)


def check_attack(
    attack: Attack,
    *,
    planted_db: float,
    model: Architecture = TINY,
    batch_size: int = 1,
    brief: Attack | None = None,
    refuses: tuple[Architecture, ...] = (),
) -> None:
    """Run every check of `ATTACK_CHECKS`; the arguments are those of `AttackCase`.

    Raises:
        AssertionError: With the first promise the attack breaks.

    >>> from seepage import Architecture, LinearLeak
    >>> check_attack(LinearLeak(), planted_db=90.0, refuses=(Architecture("convnet", {"width": 2}),))
    """
    case = AttackCase(
        attack=attack, planted_db=planted_db, model=model, batch_size=batch_size, brief=brief, refuses=refuses
    )
    for check in ATTACK_CHECKS.values():
        check(case)


def is_frozen(case: AttackCase) -> None:
    """An attack is a frozen dataclass: nothing can change its settings after they were recorded."""
    kind = type(case.attack)
    assert is_dataclass(kind), f"{kind.__name__} must be a dataclass; decorate it with @dataclass(frozen=True)"
    for field in fields(kind):
        try:
            setattr(case.attack, field.name, None)
        except AttributeError:
            continue
        raise AssertionError(f"{kind.__name__} must be frozen, and its {field.name!r} can be set")


def repr_rebuilds_it(case: AttackCase) -> None:
    """Its `repr` is its provenance, so evaluating it gives the same attack."""
    text = repr(case.attack)
    names = {"inf": math.inf, "nan": math.nan, **_names(case.attack)}
    assert eval(text, names) == case.attack, f"the repr does not rebuild the attack: {text}"


def _names(thing: object) -> dict[str, type]:
    """The classes a `repr` may name."""
    if isinstance(thing, tuple):
        return {name: kind for item in thing for name, kind in _names(item).items()}
    if not is_dataclass(thing) or isinstance(thing, type):
        return {}
    own = {type(thing).__name__: type(thing)}
    return own | {name: kind for f in fields(thing) for name, kind in _names(getattr(thing, f.name)).items()}


def output_is_well_formed(case: AttackCase) -> None:
    """Shapes, types and device of the answer; all numbers finite."""
    _assert_well_formed(case.plain.found, case.plain.transcript, case.seed)


def keeps_the_models_precision(case: AttackCase) -> None:
    """A float64 model is attacked in float64."""
    if case.victim is None:
        transcript, _ = case.short.plant(double=True)
        _assert_well_formed(case.run(transcript), transcript, case.seed)


def _assert_well_formed(found: Reconstruction, transcript: Transcript, seed: int) -> None:
    knowledge, like = transcript.knowledge, next(iter(transcript[0].params.values()))
    shape, k = tuple(found.inputs.shape[1:]), len(found.inputs)
    if found.space == "input":
        assert shape == knowledge.input_shape, f"guesses have shape {shape}, inputs have {knowledge.input_shape}"
    tokens = vocabulary_of(knowledge.model) is not None
    kind = (found.inputs.dtype, found.inputs.device)
    wanted = (torch.int64 if tokens else like.dtype, like.device)
    assert kind == wanted, f"guesses are {kind}, and should be {wanted}, as the model's parameters or tokens are"
    assert found.inputs.isfinite().all(), f"guesses hold NaN or infinite values (seed {seed})"
    assert not found.inputs.requires_grad, "guesses carry a graph; detach them"
    places = {"labels": found.labels if knowledge.target == "class" else None, "indices": found.indices}
    for name, numbers in places.items():
        if numbers is not None:
            assert numbers.dtype == torch.int64, f"{name} must be int64, got {numbers.dtype}"
            assert numbers.shape == (k,), f"{name} must have shape {(k,)}, got {tuple(numbers.shape)}"
    if found.labels is not None:
        values = knowledge.target == "value"
        inside = found.labels.isfinite() if values else (found.labels >= 0) & (found.labels < knowledge.num_classes)
        assert inside.all(), f"labels must be in 0..{knowledge.num_classes - 1}, got {found.labels.tolist()}"
    if found.objective is not None:
        assert found.objective.shape == (k,), f"objective must have shape {(k,)}, got {tuple(found.objective.shape)}"
    assert found.status in get_args(Status), f"status {found.status!r} is none of {get_args(Status)}"
    assert all(math.isfinite(value) for _, value in found.history), "the history holds NaN or infinite values"


def transcript_is_unchanged(case: AttackCase) -> None:
    """Every tensor of every round is, bit by bit, what it was."""
    assert not case.recorded.rounds, f"the attack changed {', '.join(case.recorded.rounds)}, or left a gradient there"


def model_is_left_as_found(case: AttackCase) -> None:
    """Parameters, buffers, modes, hooks and gradients of the model are what they were."""
    assert not case.recorded.model, f"the attack changed {', '.join(case.recorded.model)} of the model"


def global_state_is_untouched(case: AttackCase) -> None:
    """No attack draws from, or sets, a global random state."""
    assert not case.recorded.globals, case.recorded.globals


def recorded_equals_simulated(case: AttackCase) -> None:
    """A folder with the observed rounds alone and the same seed give the same bits: nothing else is read or drawn."""
    expected, found = case.plain.found, case.recorded.found
    if (other := _difference(expected, found)) is not None:
        again = _difference(expected, case.run(case.plain.transcript))
        what = "the recorded transcript" if again is None else "a second run with the same seed"
        raise AssertionError(f"{what} gave another result: {other} differs")


def works_on_another_device(case: AttackCase) -> None:
    """Rounds on a GPU, where there is one, are attacked there, and all that is found lies there."""
    transcript, _ = case.short.plant()
    with tempfile.TemporaryDirectory() as folder, case.other_device() as device:
        if device is None:
            return
        save_transcript(transcript, Path(folder) / "observed")
        far = open_transcript(Path(folder) / "observed", device=str(device), trust=True)
        found = case.run(far)
        _assert_well_formed(found, far, case.seed)
        for name in ("labels", "indices", "objective", "certified"):
            tensor = getattr(found, name)
            on = None if tensor is None else tensor.device
            assert on in (None, device), f"{name} lie on {on}, and the rounds on {device}"


def refuses_a_zero_update(case: AttackCase) -> None:
    """An update of zeros is `Inapplicable`."""

    def silence(observed: Round) -> Round:
        zeros = {name: torch.zeros_like(tensor) for name, tensor in observed.update.tensors.items()}
        return replace(observed, update=replace(observed.update, tensors=zeros))

    _assert_refused(case, Changed(case.short.plant()[0], silence), "an update of zeros")


def refuses_an_unknown_batch_size(case: AttackCase) -> None:
    """An unknown batch size is `Inapplicable`, where the attack needs to know it."""
    if case.needs_batch_size:
        unknown = Changed(case.short.plant()[0], lambda observed: replace(observed, batch_size=None))
        _assert_refused(case, unknown, "an unknown batch size")


def refuses_models_it_cannot_handle(case: AttackCase) -> None:
    """The networks in `refuses` are `Inapplicable`."""
    for architecture in case.refuses:
        transcript, _ = replace(case.short, victim=None).plant(architecture=architecture)
        _assert_refused(case, transcript, f"the model {architecture.use}")


def _assert_refused(case: AttackCase, transcript: Transcript, what: str) -> None:
    attack = case.brief or case.attack
    attempts: dict[str, Callable[[], object]] = {
        "check": lambda: attack.check(transcript),
        "the attack": lambda: attack(transcript, seed=case.seed),
    }
    for name, attempt in attempts.items():
        raised = _raised(attempt)
        assert raised is not None, f"{name} must raise Inapplicable on {what}, and went through"
        if not isinstance(raised, Inapplicable):
            raise AssertionError(f"{name} must raise Inapplicable on {what}, got {raised!r}") from raised
        assert raised.reason, f"{name} refuses {what} without a reason"
        assert raised.remedy, f"{name} refuses {what} without a remedy"


def _raised(attempt: Callable[[], object]) -> Exception | None:
    try:
        attempt()
    except Exception as error:
        return error
    return None


def resumes_with_the_same_bits(case: AttackCase) -> None:
    """Killed after a checkpoint and run again, an attack ends at the bits of a run that nobody killed."""
    transcript, expected, saves = case.plain.transcript, case.plain.found, case.plain.saves
    for after in sorted({1, saves - 1} & set(range(1, saves))):
        with tempfile.TemporaryDirectory() as folder:
            kept = FolderProgress(Path(folder) / "log.jsonl", Path(folder) / "checkpoint", {})
            try:
                status = case.run(transcript, Killed(kept, after=after)).status
            except KeyboardInterrupt:
                status = "interrupted"
            assert status == "interrupted", f"an attack stopped by Ctrl-C must say so, got status {status!r}"
            other = _difference(expected, case.run(transcript, kept))
            assert other is None, f"a run resumed from checkpoint {after} gave another result: {other} differs"


def planted_inputs_come_back(case: AttackCase) -> None:
    """Inputs planted in a small network are recovered to the stated PSNR."""
    if case.brief is None and case.brief_rounds is None:
        truth, found = case.plain.truth, case.plain.found
    else:
        transcript, truth = case.plant()
        found = case.attack(transcript, seed=case.seed)
    reached = recovered_db(found, truth)
    wanted = len(reached) if case.found is None else case.found
    good = int((reached >= case.planted_db).sum())
    assert good >= wanted, (
        f"{good} of {len(reached)} planted inputs were reconstructed at {case.planted_db} dB or better and "
        f"{wanted} must; PSNR of each: {[round(value, 1) for value in reached.tolist()]}"
    )


def recovered_db(found: Reconstruction, truth: Tensor) -> Tensor:
    """`[n]` PSNR of each true input against its nearest guess, values in [0, 1]; minus infinity without guesses.

    Of a set of tokens `[n]` are the distinct tokens of the inputs.
    """
    truth = truth[truth >= 0].unique()[:, None] if found.space == "token" else truth
    guesses, inputs = found.inputs.flatten(1).double(), truth.flatten(1).double()
    if not len(guesses):
        return torch.full((len(inputs),), -math.inf)
    errors = (inputs[:, None] - guesses[None]).pow(2).mean(2).amin(1)  # [n]
    return -10 * errors.clamp(min=1e-30).log10()


def _difference(expected: Reconstruction, found: Reconstruction) -> str | None:
    """The first part of two results that is not the same, bit by bit."""
    names = ("inputs", "labels", "indices", "objective", "status", "history", "notes")
    return next((name for name in names if not same(getattr(expected, name), getattr(found, name))), None)


ATTACK_CHECKS: dict[str, Callable[[AttackCase], None]] = {
    check.__name__: check
    for check in (
        is_frozen,
        repr_rebuilds_it,
        output_is_well_formed,
        keeps_the_models_precision,
        transcript_is_unchanged,
        model_is_left_as_found,
        recorded_equals_simulated,
        global_state_is_untouched,
        works_on_another_device,
        refuses_a_zero_update,
        refuses_an_unknown_batch_size,
        refuses_models_it_cannot_handle,
        resumes_with_the_same_bits,
        planted_inputs_come_back,
    )
}
"""Every check of an attack, by name."""
