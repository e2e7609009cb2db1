"""The facts of a result that are no attack's: each case, the thresholds, and the diagnostics."""

import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, JsonValue

from seepage.base.limits import GAIN_DB, LIKENESS
from seepage.base.schema import Guarantee, JsonRecord

FEWEST_TESTED = 30
"""Fewest examples for which an accuracy is shown; with fewer, its 95 % interval is wider than +-18 points."""


class DrawnRounds(JsonRecord):
    """Rounds whose batches are drawn from one data set."""

    count: int
    samples: int
    design: str | None = None
    optimizer: str | None = None
    lr: float | None = None


Kind = Literal["pictures", "records", "texts"]
"""Kind of the examples for display; whatever is no picture and no text is a list of numbers."""

Measure = Literal["class", "value", "map", "token"]
"""What a model's accuracy is a share of: examples, the variance of targets, pixels, or next tokens."""


class Case(JsonRecord):
    """The setting of one case and facts about its update. A field is None where it is not known.

    Attributes:
        name: Name of the case in rows and of its folders.
        title: Title for people.
        title_parts: The parts of which the title is composed.
        model: Name of the model.
        model_options: Options of the model.
        data: Name of the data set; of private files their kind, such as `folder`, unless `score.names` asks for the
            name.
        data_source: Source of the data set.
        batch_size: Number of examples in one batch.
        batches: Number of attacked batches.
        rounds: How the batches were drawn, where they were drawn from one data set.
        training_steps: Number of training steps before the attacked round.
        history: Sentence about the initialization and training of the model.
        accuracy: Share of unseen examples that the model classifies correctly; of values, of the variance explained.
        accuracy_examples: Number of unseen examples.
        defense: The defense's `repr`; None where there is none or it is not known.
        client: The client rule's `repr`.
        rate: Of captured checkpoints: the learning rate by which their difference was divided, stated or inferred.
        decayed: Of captured checkpoints: the share of each weight that weight decay took off, stated or inferred.
        input_shape: Shape of one example of a recorded or captured update.
        files: Of a recorded or captured update: what each judged file is, to its SHA-256 in hexadecimal.
        kind: What the examples are: pictures, rows of numbers, or texts; None where that is not known.
        classes: Names of the classes; of private files numbers, unless `score.names` asks for the names.
        target: What examples are trained towards: a class, values, or a map with a class at each pixel.
        parameters: Number of the model's parameters.
        baselines: Name of a guess without an attack, to metric, to its mean.
        federation: Facts of the federation that trained the model.
        inferred: Name of each fact that was inferred instead of stated, to the source it was inferred from.
        read_as: How attacks read a client that does something they cannot follow, and how far that is from its update,
            measured on the private examples; None where they read it as it is.
        promise: The differential-privacy guarantee of the defense.
        trained_promise: The same to the client that took part in most rounds of the federation, by all of these.
        exposure: One line on what the update reveals without an attack.
        exposed_examples: Number of private examples that the first update reveals exactly in closed form, without an
            attack; None where that was not computed.
        exposed_of: Number of examples behind that update, where known.
        undefended: Name of the case with the same setting without the defense.
        control: Whether this is such a case, run only to show that the attacks work without the defense: no finding.
        inconclusive: Why the failure of all attacks is no evidence of safety here; None where it is, or one succeeded.
        skipped: Why the case could not be recorded.
        membership_skipped: Why its membership could not be tested.
        refusals: Name of each attack of this package that was not requested and does not apply, to the reason; None
            where that was not checked.
        caveats: Sentences on facts about the client, stated or inferred, that a captured update contradicts, and on
            those to question where no attack explains it.
        assumed_update: Client rule that the attacks assume, stated or inferred, in words: with rate and loss.
    """

    schema_version: int = Field(default=1, alias="schema")
    name: str
    title: str = ""
    title_parts: list[str] = []
    model: str | None = None
    model_options: dict[str, JsonValue] = {}
    data: str | None = None
    data_source: str | None = None
    batch_size: int | None = None
    batches: int | None = None
    rounds: DrawnRounds | None = None
    training_steps: int | None = None
    history: str | None = None
    accuracy: float | None = None
    accuracy_examples: int | None = None
    defense: str | None = None
    client: str | None = None
    rate: float | None = None
    decayed: float | None = None
    input_shape: list[int] | None = None
    files: dict[str, str] = {}
    kind: Kind | None = None
    classes: list[JsonValue] = []
    target: Literal["class", "value", "map"] = "class"
    parameters: int | None = None
    baselines: dict[str, dict[str, float | None]] | None = None
    federation: dict[str, JsonValue] | None = None
    inferred: dict[str, str] | None = None
    read_as: str | None = None
    promise: Guarantee | None = None
    trained_promise: Guarantee | None = None
    exposure: str | None = None
    exposed_examples: int | None = None
    exposed_of: int | None = None
    undefended: str | None = None
    control: bool = False
    inconclusive: str | None = None
    skipped: str | None = None
    membership_skipped: str | None = None
    refusals: dict[str, str] | None = None
    caveats: list[str] = []
    assumed_update: str | None = None

    @property
    def measure(self) -> Measure:
        """Kind of prediction that `accuracy` counts: tokens for a model of the next token, else the training target."""
        text = self.baseline("frequent", "rouge_1") is not None
        return "token" if text and not self.classes else self.target

    @property
    def closed_form(self) -> tuple[int, int]:
        """Examples that are revealed in closed form, of how many.

        >>> Case(name="a", exposed_examples=2, exposed_of=4).closed_form, Case(name="a").closed_form
        ((2, 4), (0, 0))
        """
        given = self.exposed_examples or 0
        return given, max(given, self.exposed_of or 0)

    @property
    def counted(self) -> bool:
        """Whether it is known, and not inferred, how many examples are behind the first update."""
        said = self.inferred
        return bool(self.exposed_of) and (said is None or (self.batch_size is not None and "batch size" not in said))

    @property
    def closed_share(self) -> float:
        """The share of its examples that is revealed so; 0 where none is."""
        away, of = self.closed_form
        return away / of if of else 0.0

    @property
    def heading(self) -> str:
        """The title, or the name where there is none."""
        return self.title or self.name

    @property
    def brief(self) -> str:
        """The title in fewer words: without what stands in brackets.

        >>> Case(name="a", title="fc2, freshly initialized, 2 local epochs (lr 0.01, batch size 8)").brief
        'fc2, fresh, 2 local epochs'
        """
        return re.sub(r" \([^()]*\)", "", self.heading).replace("freshly initialized", "fresh")

    @property
    def rounds_trained(self) -> int:
        """Rounds in which a federation's clients, with their defense, trained the model before; 0 where none did."""
        seen = (self.federation or {}).get("accuracies")
        last = seen[-1] if isinstance(seen, list) and seen else None
        return last[0] if isinstance(last, list) and last and isinstance(last[0], int) else 0

    @property
    def known_accuracy(self) -> float | None:
        """The accuracy, where it was measured on enough examples to be one."""
        return self.accuracy if (self.accuracy_examples or 0) >= FEWEST_TESTED else None

    def baseline(self, name: str, metric: str) -> float | None:
        """The mean of a metric for a baseline guess; None where it was not measured."""
        return ((self.baselines or {}).get(name) or {}).get(metric)

    def record(self) -> dict[str, Any]:
        """The case as written to `result.json`, without the fields that are not known."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)


def shared_parts(cases: Iterable[Case]) -> list[str]:
    """The parts that the titles of all cases have in common, in order.

    >>> shared_parts(Case(name=name, title_parts=["fc2", "batch 1", name]) for name in ("no defense", "noise"))
    ['fc2', 'batch 1']
    """
    first, *rest = (case.title_parts for case in cases)
    return [part for part in first if all(part in other for other in rest)]


class Thresholds(JsonRecord):
    """The thresholds from which an example counts as recovered or exact, and the optional metrics.

    Attributes:
        recovered_likeness: Likeness to the guess from which an image counts as recovered.
        recovered_gain_db: PSNR in dB over the example's own mean from which what is no image counts as recovered.
        exact_db: PSNR in dB over which an example counts as exact.
        lpips: Whether LPIPS was requested.
        metrics: Further requested metrics.
    """

    recovered_likeness: float = LIKENESS
    recovered_gain_db: float = GAIN_DB
    exact_db: float = 40.0
    lpips: bool = False
    metrics: list[str] = []

    @property
    def of_pictures(self) -> str:
        """From where on a picture counts as recovered, in words."""
        return f"a likeness of at least {self.recovered_likeness:g}"
