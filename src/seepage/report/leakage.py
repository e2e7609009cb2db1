"""Read `exposure.json`, what each case's update reveals without an attack, for display in a report."""

from pathlib import Path

from pydantic import JsonValue

from seepage.base.schema import Finding, JsonRecord, parse_all
from seepage.base.storage import check_schema, read_json
from seepage.base.words import plural
from seepage.measure.privacy.ledger import read_entry

FILE = "exposure.json"
LISTED_NAMES = 6
"""Largest number of tensors or classes that a line names; more are counted."""


class TensorExposure(JsonRecord):
    """What one tensor reveals; the fields are keys of `exposure.json`."""

    name: str
    gives: str | None = None
    withhold: bool = False


class CaseExposure(JsonRecord):
    """One case; the fields are keys of `exposure.json`."""

    case: str
    failed: str | None = None
    examples: int = 0
    vectors: int = 0
    batch_size: int | None = None
    at_least: int | None = None
    looks_like: list[JsonValue] = []
    tensors: list[TensorExposure] = []
    findings: list[Finding] = []
    sent_words: str = ""
    stated: dict[str, JsonValue] | None = None

    def of(self, name: str) -> Finding | None:
        """What the closed form of this name says."""
        return next((one for one in self.findings if one.name == name), None)

    @property
    def promised(self) -> list[str]:
        """The differential-privacy guarantee that the client states, and reasons to doubt it."""
        spent = None if self.stated is None else read_entry(self.stated)
        if spent is None:
            return []
        return [f"the client states {spent.line}", *(f"against that: {doubt}" for doubt in spent.caveats)]

    @property
    def count(self) -> str:
        """Number of examples that are revealed exactly, and of all examples; of texts, what is revealed of them."""
        text = self.of("text")
        if text is not None and not self.examples:
            ordered = text.evidence.get("ordered")
            return "its texts' span, which token_sequences reads" if ordered else "the span of its tokens"
        words = f"{self.examples} of at least {self.at_least}" if self.at_least else f"{self.examples}"
        words = words if self.batch_size is None else f"{self.examples}/{self.batch_size}"
        for one in self.findings:
            rows = one.evidence.get("rows") if one.name == "codes" else None
            if isinstance(rows, list) and not self.examples:
                words += f"; {plural(len(rows), 'token' if one.evidence.get('tokens') else 'code')} by name"
        return words

    @property
    def giving(self) -> list[TensorExposure]:
        """The tensors that reveal something."""
        return [tensor for tensor in self.tensors if tensor.withhold]

    @property
    def withhold(self) -> str:
        """Names of the tensors that reveal something."""
        return _some([says.name for says in self.giving]) or "nothing found"

    @property
    def classes(self) -> str:
        """The classes that the gradient of the last bias shows to be in the batch: their numbers, and no count."""
        labels = self.of("labels")
        present = [] if labels is None or not labels.tensors else labels.evidence.get("present")
        if not isinstance(present, list) or not present:
            return "not known"
        condition = labels.evidence.get("condition", "") if labels is not None else ""
        return f"class{'es' if len(present) > 1 else ''} {_some([str(name) for name in present])}{condition}"

    @property
    def batch_norm(self) -> str:
        """The mode of batch norm, and how many of the batch's variances can be read."""
        norms = self.of("batch-norm")
        return "" if norms is None else norms.message


def _some(names: list[str]) -> str:
    more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
    return ", ".join(names[:LISTED_NAMES]) + more


def open_exposed(folder: Path) -> list[CaseExposure]:
    """Read the analyses of a run's updates; empty where none was made.

    Raises:
        SeepageError: Where the file is damaged or of another schema version.
    """
    path = folder / FILE
    if not path.exists():
        return []
    record = read_json(path)
    check_schema(record, path)
    return parse_all(CaseExposure, record.get("cases"), f"{path}")
