"""What closed forms say of an update, and findings in short."""

from collections.abc import Sequence
from typing import Any

from seepage.base.schema import Finding


class ClosedForm(Finding):
    """What one closed form says of an update. It reveals something where it has tensors.

    Attributes:
        examples: Private examples that it reveals exactly.
        vectors: Inner vectors that it reveals exactly, which are no examples.
        lines: What `seepage check` prints of it beside the table of tensors.
    """

    examples: int = 0
    vectors: int = 0
    lines: Sequence[str] = ()


def note(name: str, message: str, **evidence: Any) -> Finding:
    """A finding that is good to know."""
    return Finding(name=name, severity="note", message=message, evidence=evidence)


def warning(name: str, message: str, **evidence: Any) -> Finding:
    """A finding by which a number may mislead."""
    return Finding(name=name, severity="warning", message=message, evidence=evidence)
