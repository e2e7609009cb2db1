"""The setting of a case: its data, its model at the audited round, and the attacked examples (victims).

recipe's case --> data set --> fresh model --> training --> federation's rounds --> audited state
                     |                                                                  |
                     +--> victims, unseen examples  ------------------------> Victim or IndexedVictim, and its truth

This is the only place that builds it: an audit, a frontier and the papers' items all start from
a `Setting`.
"""

import hashlib
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from seepage.attacks.exposure.reading import read_off
from seepage.audit.recipe.auxiliary import auxiliary_images
from seepage.audit.recipe.case import Recipe
from seepage.audit.recipe.places import called
from seepage.audit.simulate.federation import CheckpointFolder, Clients, FederationState, federate
from seepage.audit.simulate.partition import Partition, sizes_of
from seepage.audit.simulate.training import TrainingCheckpoint, begin, train
from seepage.base.nn import as_inputs, generator, logits_in, logits_words, state_of, vocabulary_of
from seepage.base.registry import Spec, is_dotted, partitions
from seepage.errors import SeepageError
from seepage.federation import data
from seepage.federation.clients.losses import check_target, target_of
from seepage.federation.data import Dataset, TextDataset
from seepage.federation.data.own_targets import OwnTargets
from seepage.federation.defenses import defense_tables
from seepage.federation.models import build, warned_words
from seepage.federation.models.trial import Untaken, tried
from seepage.federation.transcript.simulated import Victim
from seepage.federation.transcript.truth import Truth
from seepage.federation.transcript.vertical import IndexedVictim
from seepage.federation.types import Batch, Knowledge, Target, Tensors

MAX_UNSEEN = 256
"""Largest number of examples on which the accuracy is measured."""

State = tuple[Tensors, Tensors]
"""A model's trainable parameters and its buffers."""

CHANGED = "change the data with --set data.size=…, data.channels=… or, of an .npz of no images, data.as_is=true"
"""What fits data to a network."""


_TRAINED: ContextVar[Path | None] = ContextVar("trained", default=None)


@contextmanager
def trainings_kept_in(folder: Path) -> Iterator[None]:
    """Trainings of settings made inside are kept in a folder that outlasts their runs, and read where they are there.

    Args:
        folder: For data of one content: trainings are told apart by all else that they depend on.
    """
    token = _TRAINED.set(folder)
    try:
        yield
    finally:
        _TRAINED.reset(token)


class Skipped(SeepageError):
    """This case cannot be set up; other cases of the run may."""


@dataclass(frozen=True)
class SharedParts:
    """A cache of what several cases share: data sets, and model states after training.

    The keys contain everything that an entry depends on, including the device.
    """

    datasets: dict[str, Dataset] = field(default_factory=dict)
    states: dict[str, State] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientPartition:
    """A data set partitioned among the clients of a federation.

    Attributes:
        parts: For each client the indices of its examples.
        unseen: Indices of examples that no client holds.
    """

    parts: tuple[Tensor, ...]
    unseen: Tensor

    @classmethod
    def of(cls, recipe: Recipe, dataset: Dataset) -> "ClientPartition":
        """Set aside a fifth of the private part, at most `MAX_UNSEEN` examples, and partition everything else.

        Raises:
            SeepageError: If the data cannot be partitioned in this way.
        """
        assert recipe.federation is not None
        order = torch.randperm(len(dataset.private), generator=generator(recipe.seed, "unseen"))
        unseen, rest = dataset.private[order].tensor_split([min(MAX_UNSEEN, len(dataset.private) // 5)])
        pool = torch.cat([dataset.train, rest]).sort().values
        partition: Partition = partitions.build(recipe.partition)
        parts = partition(
            dataset.labels[pool],
            recipe.federation.clients,
            generator=generator(recipe.seed, "partition"),
            inputs=lambda places: dataset.batch(pool[places]).inputs,
        )
        return cls(tuple(pool[part] for part in parts), unseen)


@dataclass(frozen=True)
class MembershipParts:
    """The examples of a membership test.

    Attributes:
        candidates: For each attacked batch its examples and as many others, shuffled.
        members: `[k]` bool for each of them: which of the candidates were in the batch. Private.
        public: Examples that the attacker knows to be in no batch.
    """

    candidates: tuple[Batch, ...]
    members: tuple[Tensor, ...]
    public: Batch


@dataclass(frozen=True)
class Setting:
    """A case after all its random draws, except those inside the client's own rounds.

    Attributes:
        recipe: One case of a recipe.
        dataset: Its data.
        model: The architecture, on the case's device. Its own parameters are those it was built with.
        state: Parameters and buffers after the recipe's training, and after the federation's rounds where
            `after_federation` made the setting.
        partition: The partition of the data, if the case has a federation.
        facts: Facts of the federation for the report.
    """

    recipe: Recipe
    dataset: Dataset
    model: nn.Module
    state: State
    partition: ClientPartition | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        shared: SharedParts | None = None,
        *,
        folder: Path | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> "Setting":
        """Load the data, build the model, train it as the recipe says, and partition the data.

        Args:
            recipe: One case of a recipe.
            shared: Data sets and trained states of other cases; those of this case are added.
            folder: Folder of the training's checkpoint, from which an interrupted one resumes; None: none is kept.
            progress: Called with (done, total) steps of the training.

        Raises:
            Skipped: If this case cannot be set up, such as a model that does not accept the data.
            SeepageError: For mistakes in the recipe or the data.
        """
        shared = SharedParts() if shared is None else shared
        dataset = _open_data(recipe, shared.datasets)
        model = _fresh_model(recipe, dataset)
        rule = recipe.make_client()
        loss = rule.loss, *map(recipe.client.options.get, ("label_smoothing", "class_weights"))
        key = repr((recipe.data, recipe.seed, recipe.model, recipe.training, recipe.device, loss))
        folder = _TRAINED.get() or folder
        if key not in shared.states:
            shared.states[key] = train(
                model,
                state_of(model),
                lambda places: dataset.batch(places).to(recipe.device),
                dataset.train,
                recipe.training,
                seed=recipe.seed,
                loss=rule.loss_of,
                progress=progress,
                checkpoint=TrainingCheckpoint(
                    None if folder is None else folder / f"training-{_digest(key)}.safetensors"
                ),
            )
        partition = None if recipe.federation is None else ClientPartition.of(recipe, dataset)
        return cls(recipe, dataset, model, shared.states[key], partition)

    def batch(self, places: Tensor) -> Batch:
        """The examples at places `[n]` of the data set, on the case's device."""
        return self.dataset.batch(places).to(self.recipe.device)

    @cached_property
    def _drawn(self) -> tuple[Sequence[Tensor], Tensor]:
        """Draw the attacked examples and those that no client holds; they are drawn nowhere else."""
        recipe, draw = self.recipe, generator(self.recipe.seed, "victims")
        if self.partition is None:
            places = self.dataset.private[torch.randperm(len(self.dataset.private), generator=draw)]
            # One order for every `skip`: batches passed over here are those that a run without it attacks.
            _, chosen, rest = places.tensor_split([_passed(recipe), _passed(recipe) + _attacked(recipe)])
            return (chosen.split(recipe.batch.size) if recipe.rounds is None else [chosen]), rest
        size, count = recipe.batch.size, recipe.batch.count
        able = [part for part in self.partition.parts if len(part) >= size]
        if len(able) < recipe.batch.skip + count:
            raise SeepageError(
                f"{recipe.batch.skip + count} clients with at least {size} examples are to be audited and {len(able)} "
                f"of {sizes_of(self.partition.parts)} have them; lower batch.size, batch.count or federation.clients"
            )
        chosen_clients = torch.randperm(len(able), generator=draw)[recipe.batch.skip :][:count].tolist()
        victims = [able[place][torch.randperm(len(able[place]), generator=draw)[:size]] for place in chosen_clients]
        return victims, self.partition.unseen

    @property
    def victims(self) -> Sequence[Tensor]:
        """Indices `[batch.size]` of each attacked batch; with `[rounds]`, of the data set that all rounds draw from.

        Raises:
            SeepageError: If too few clients of a federation hold enough examples.
        """
        return self._drawn[0]

    @property
    def unseen(self) -> Tensor:
        """Indices of examples neither trained on nor attacked; a small data set may have none."""
        return self._drawn[1]

    @cached_property
    def batches(self) -> list[Batch]:
        """The attacked examples."""
        return [self.batch(part) for part in self.victims]

    def membership_parts(self) -> "MembershipParts":
        """The candidates of each attacked batch, and the attacker's public examples, for `[membership]`.

        Raises:
            Skipped: If too few examples are neither trained on nor attacked.
        """
        plan = self.recipe.membership
        assert plan is not None
        if self.recipe.rounds is not None:
            raise Skipped(
                "its rounds follow one data set, and a membership test is of single batches; leave [rounds] out"
            )
        others, draw = self.unseen, generator(self.recipe.seed, "membership")
        others = others[torch.randperm(len(others), generator=draw)]
        # c calibration examples give p >= 1 / (c + 1); half of the public ones calibrate.
        non_members, least_public = sum(map(len, self.victims)), 2 * math.ceil(1 / plan.level - 1)
        if len(others) < non_members + least_public:
            raise Skipped(
                f"a membership test at level {plan.level:g} needs {non_members} "
                f"non-member{'s' * (non_members > 1)} and {least_public} public examples, "
                f"and {_called(self.recipe, self.dataset)} has {len(others)} that are neither trained on nor attacked; "
                "lower batch.size or batch.count, raise membership.level, or use more data"
            )
        chosen, public = others[:non_members], others[non_members : non_members + plan.public]
        candidates, members = [], []
        for victims, rest in zip(self.victims, chosen.split([len(part) for part in self.victims]), strict=True):
            both = torch.cat([victims, rest])
            order = torch.randperm(len(both), generator=draw)
            candidates.append(self.batch(both[order]))
            members.append(order < len(victims))
        return MembershipParts(tuple(candidates), tuple(members), self.batch(public))

    @cached_property
    def knowledge(self) -> Knowledge:
        """The attacker's knowledge."""
        recipe, auxiliary = self.recipe, None
        if recipe.auxiliary is not None:
            attacked = [batch.inputs for batch in self.batches]
            auxiliary = auxiliary_images(recipe.auxiliary, self.dataset, attacked, recipe.seed).to(recipe.device)
        return Knowledge(
            model=self.model,
            client=recipe.make_client(),
            input_shape=self.dataset.input_shape,
            num_classes=len(self.dataset.classes),
            known=frozenset(recipe.knowledge.known) | ({"auxiliary"} if auxiliary is not None else set()),  # type: ignore[arg-type]
            defense=recipe.make_defense() if "defense" in recipe.knowledge.known else None,
            auxiliary=auxiliary,
            architecture=recipe.architecture,
            target=_target(recipe, self.dataset),
            blocks=getattr(self.dataset, "blocks", ()),
        )

    def victim(self) -> tuple[Victim | IndexedVictim, Truth]:
        """The client or clients that are attacked, and what they hold."""
        recipe, (params, buffers), defense = self.recipe, self.state, self.recipe.make_defense()
        beside = {name: getattr(self.dataset, name, None) for name in ("units", "typical")}
        if recipe.rounds is None:
            victim = Victim.of(self.knowledge, params, self.batches, buffers, defense, recipe.seed)
            return read_off(victim), Truth(tuple(self.batches), **beside)
        rounds, whole = recipe.rounds, self.batches[0]
        held = Batch(whole.inputs, whole.labels, torch.arange(len(whole)))
        design = rounds.drawn(recipe.batch.size, recipe.seed)
        given = (design, rounds.count, buffers, defense, recipe.seed, rounds.server)
        draws = pad_sequence([design.indices(t) for t in range(rounds.count)], batch_first=True, padding_value=-1)
        return IndexedVictim(self.knowledge, params, held, *given), Truth((held,), draws, **beside)

    def clients(self) -> Clients:
        """All clients of the case's federation."""
        assert self.partition is not None
        recipe, unseen = self.recipe, self.partition.unseen
        rule, defense = recipe.make_client().per_client, recipe.make_defense()
        test = self.batch(unseen) if len(unseen) else None
        return Clients(self.model, rule, self.partition.parts, self.batch, defense, test, recipe.seed)

    def after_federation(
        self, folder: Path, progress: Callable[[int, int], None] = lambda done, total: None
    ) -> "Setting":
        """The setting at the audited round; itself without a federation.

        Args:
            folder: Folder of checkpoints, from which training continues and to which it writes.
            progress: Called with (done, total) rounds.

        Raises:
            SeepageError: Where the training fails.
        """
        if self.partition is None:
            return self
        _ = self.victims  # raises before the training if there are too few of them
        clients, plan = self.clients(), self.recipe.federation
        reached = train_federation(self.recipe, clients, self.state, folder, progress)
        course = {"holdings": sizes_of(self.partition.parts), "accuracies": [list(pair) for pair in reached.accuracies]}
        facts = {"federation": course, "trained_promise": None if plan is None else clients.promise(plan)}
        state = reached.params, reached.buffers
        return replace(self, recipe=_as_of(self.recipe, reached), state=state, facts=facts)


def _as_of(recipe: Recipe, reached: FederationState) -> Recipe:
    """The case with its defense as it is in the audited round, where it follows the training.

    What the audited client remembers is the median of what all clients do: which of them it was shows in no seed.
    """
    defense = recipe.make_defense()
    if defense is None or not defense.follows_training:
        return recipe
    memory = statistics.median(reached.memories.values()) if reached.memories else None
    now = defense.begin(reached.losses, memory)
    return replace(recipe, defense=tuple(Spec.of(table) for table in defense_tables(now)))


def train_federation(
    recipe: Recipe, clients: Clients, state: State, folder: Path, progress: Callable[[int, int], None]
) -> FederationState:
    """Bring the model from `state` to the audited round, continuing from checkpoints below `folder`.

    Raises:
        SeepageError: Where the training fails.
    """
    plan = recipe.federation
    assert plan is not None
    # Everything that the checkpoints depend on except the number of rounds, so that a longer run can continue them.
    parts = (recipe.data, recipe.seed, recipe.model, recipe.training, recipe.client, recipe.defense, recipe.partition)
    key = _digest(repr((*parts, replace(plan, rounds=0), recipe.device)))
    try:
        return federate(
            clients, state, plan, checkpoints=CheckpointFolder(folder / f"federation-{key}"), progress=progress
        )
    except ValueError as error:
        raise SeepageError(
            f"a client of the federation cannot train {recipe.model} ({error}); use larger client batches or "
            "--set client.mode=eval"
        ) from error


def _digest(key: str) -> str:
    """A short name for everything that a checkpoint depends on."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]


# --- data and model, checked before anything is computed ---------------------------------------------------------


def _open_data(recipe: Recipe, datasets: dict[str, Dataset]) -> Dataset:
    """The case's data, loaded once for all cases that share `datasets`."""
    key = repr((recipe.data, recipe.seed))
    if key not in datasets:
        options = {"seed": recipe.seed, **recipe.data.options}
        if "root" in options:
            options["root"] = Path(options["root"])
        datasets[key] = data.load(recipe.data.use, **options)
    _check_enough(recipe, datasets[key])
    return _as_targets(recipe, datasets[key])


def _as_targets(recipe: Recipe, dataset: Dataset) -> Dataset:
    """The data with the targets that the client's loss is held against."""
    if recipe.make_client().target == "label":
        return dataset
    if isinstance(dataset, TextDataset):
        raise SeepageError(
            "the client's targets are its inputs, which of texts are token numbers; leave out client.target"
        )
    if "labels" in recipe.knowledge.known:
        raise SeepageError("the targets are the inputs, and whoever knows them has all; leave out --known labels")
    return OwnTargets(dataset)


def _attacked(recipe: Recipe) -> int:
    """Private examples that are attacked."""
    return recipe.batch.size * recipe.batch.count if recipe.rounds is None else recipe.rounds.samples


def _passed(recipe: Recipe) -> int:
    """Private examples that are passed over before those that are attacked."""
    return recipe.batch.size * recipe.batch.skip


def _fresh_model(recipe: Recipe, dataset: Dataset) -> nn.Module:
    """The case's fresh model, on its device."""
    rule, weights = recipe.make_client(), recipe.client.options.get("class_weights", ())
    check_target(rule.loss, _target(recipe, dataset), len(dataset.classes), weights)
    outputs = rule.num_outputs(len(dataset.classes))
    heard: list[str] = []
    try:
        model = build(recipe.architecture, dataset.input_shape, outputs, seed=recipe.seed, heard=heard)
    except SeepageError as error:
        raise Skipped(str(error)) from error
    warned = warned_words(recipe.architecture, heard)
    if warned is not None:
        warnings.warn(warned, stacklevel=2)
    begin(model, recipe.training, recipe.architecture, outputs, seed=recipe.seed)
    model = model.to(recipe.device)
    _check_takes(model, recipe, dataset)
    return model


def _target(recipe: Recipe, dataset: Dataset) -> Target:
    """Kind of training target of the data, by their labels.

    One example tells classes from maps. Of numbers it tells nothing: one class of several at once looks like a chance.
    """
    if isinstance(dataset, OwnTargets):
        return "value"
    targets, tokens = getattr(dataset, "targets", None), isinstance(dataset, TextDataset)
    labels = dataset.batch(dataset.private[:1]).labels if targets is None else targets.each
    if targets is None and labels.is_floating_point():
        labels = dataset.batch(dataset.private[:MAX_UNSEEN]).labels
    return target_of(labels, recipe.make_client().loss, tokens=tokens)


def _called(recipe: Recipe, dataset: Dataset) -> str:
    return called(recipe.data.use, dataset.name, names=recipe.score.names)


def _check_enough(recipe: Recipe, dataset: Dataset) -> None:
    """Raise where a data set has too few classes or examples to attack (`Skipped`) or to train on (`SeepageError`)."""
    if len(dataset.classes) < 2 and _target(recipe, dataset) != "value":
        raise Skipped(
            f"{_called(recipe, dataset)} has one class only, and a classifier of one class has no loss to send a "
            "gradient of; give the examples labels"
        )
    needed = _passed(recipe) + _attacked(recipe)
    if needed > len(dataset.private) and recipe.rounds is not None:
        raise Skipped(
            f"the rounds draw from {needed} private examples and {_called(recipe, dataset)} has "
            f"{len(dataset.private)}; lower rounds.samples"
        )
    if needed > len(dataset.private):
        raise Skipped(
            f"{recipe.batch.skip + recipe.batch.count} batches of {recipe.batch.size} need {needed} private examples "
            f"and {_called(recipe, dataset)} has {len(dataset.private)}; lower batch.size or batch.count, or raise "
            "data.split"
        )
    if recipe.training.steps and not len(dataset.train):
        raise SeepageError(
            f"{_called(recipe, dataset)} has no examples to train on; lower data.split or set training.steps=0"
        )


def _check_takes(model: nn.Module, recipe: Recipe, dataset: Dataset) -> None:
    """Run the model on two examples, so that a mismatch with the data gives one sentence instead of a traceback."""
    tokens, text = vocabulary_of(model), isinstance(dataset, TextDataset)
    if (tokens is None) == text:
        raise Skipped(
            f"the model {recipe.model.use!r} takes {'numbers' if tokens is None else 'tokens'} and "
            f"{_called(recipe, dataset)} holds {'text' if text else 'none'}; use a text model such as gpt with text, "
            "and another with other data"
        )
    if isinstance(dataset, TextDataset) and tokens is not None and len(dataset.pieces) > tokens:
        raise Skipped(
            f"the tokenizer has {len(dataset.pieces)} tokens and the model {recipe.model.use!r} embeds {tokens}; name "
            "the tokenizer that belongs to the model, or give the model a larger vocabulary"
        )
    output = _probed(model, recipe, dataset)
    rule, target = recipe.make_client(), _target(recipe, dataset)
    if is_dotted(rule.loss):  # it knows what the outputs are; it reports itself what it cannot take
        rule.loss_of(logits_in(output), dataset.batch(dataset.private[:1].repeat(2)).to(recipe.device).labels)
        return
    wanted: tuple[int, ...] = (2, rule.num_outputs(len(dataset.classes)))
    if isinstance(dataset, TextDataset) and dataset.numbers is None:
        # Logits of each token's next one; a model may know tokens that the tokenizer does not make.
        wanted = (2, tokens or 0, *dataset.input_shape)
    if target == "map":
        wanted = (*wanted, *dataset.batch(dataset.private[:1]).labels.shape[1:])
    logits = logits_in(output)
    if logits.shape == wanted:
        return
    found, remedy = (
        tuple(logits.shape),
        f"let it return {'values' if target == 'value' else 'logits'} of shape {wanted}",
    )
    if found == (2, 1) and len(dataset.classes) == 2 and target == "class":
        remedy = "it has one logit for two classes: add --loss binary"
    elif rule.one_logit and found == (2, len(dataset.classes)):
        remedy = "it has a logit for each class: leave out --loss binary"
    elif isinstance(dataset, TextDataset) and dataset.numbers is None and len(found) == 2:
        remedy = "it names one class of each text: add --set data.label_column=COLUMN of the classes, or use gpt"
    elif target == "map" and found == (2, len(dataset.classes), *dataset.input_shape[1:]):
        maps, pictures = (" x ".join(map(str, shape[2:])) for shape in (wanted, found))
        own = f"the maps are {maps} and the pictures {pictures}, as is what it returns"
        remedy = f"{own}: save the maps in the size of the pictures, or {remedy}"
    elif len(found) > 2 and target == "class" and not isinstance(dataset, TextDataset):
        remedy += ", or give the data a map of class numbers for each example, as of an .npz with y of shape [N, H, W]"
    raise SeepageError(
        f"the model {recipe.model.use!r} returns {found} for 2 examples and {len(dataset.classes)} classes; {remedy}"
    )


def _probed(model: nn.Module, recipe: Recipe, dataset: Dataset) -> Any:
    """Outputs of a model in eval mode for two examples."""
    probe = as_inputs(model, torch.zeros(2, *dataset.input_shape, device=recipe.device))
    try:
        return tried(model, probe)
    except Untaken as error:
        remedy = f"choose another model, or {CHANGED}"
        if error.wants_more:
            remedy = (
                "it takes more than the examples: give it the rest in a module around it, as the page my-model shows"
            )
        elif error.place:
            remedy = f"correct that line, or {CHANGED}"
        raise Skipped(
            f"the model {recipe.model.use!r} cannot take inputs of shape {dataset.input_shape} ({error}); {remedy}"
        ) from error


def taken_outputs(setting: "Setting") -> str | None:
    """Where in the model's output the logits were found; None where it returns nothing else."""
    return logits_words(_probed(setting.model, setting.recipe, setting.dataset))
