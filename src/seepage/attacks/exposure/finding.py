"""One thing that was seen without an attack: what it is, the numbers behind it, and what it does not show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["note", "warning"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What every part of this room reports.

    Code asks for `name`; `message` is for people and is never compared or taken apart.

    Attributes:
        name: Stable short name, such as `noised` or `objective-limits`.
        message: What was seen and what it means, for a reader who knows federated learning but not attacks.
        severity: `warning`: a number may mislead. `note`: good to know.
        evidence: The measured numbers behind it, by name.
        limit: What it does not show; empty where the message says all.
        tensors: Parameters that would have to be withheld or noised to close it.
    """

    name: str
    message: str
    severity: Severity = "note"
    evidence: Mapping[str, Any] = field(default_factory=dict)
    limit: str = ""
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClosedForm(Finding):
    """What one closed form says of an update. It reveals something where it has tensors.

    Attributes:
        examples: Private examples that it reveals exactly.
        vectors: Inner vectors that it reveals exactly, which are no examples.
        lines: What `seepage check` prints of it beside the table of tensors.
    """

    examples: int = 0
    vectors: int = 0
    lines: tuple[str, ...] = ()


def note(name: str, message: str, **evidence: Any) -> Finding:
    """A finding that is good to know."""
    return Finding(name=name, severity="note", message=message, evidence=evidence)


def warning(name: str, message: str, **evidence: Any) -> Finding:
    """A finding by which a number may mislead."""
    return Finding(name=name, severity="warning", message=message, evidence=evidence)
