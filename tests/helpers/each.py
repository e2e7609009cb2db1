"""One test looks at many records, and names every one that is wrong."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Case = TypeVar("Case")


def check_each(cases: Iterable[tuple[str, Case]], check: Callable[[Case], None]) -> None:
    """Fail with the name of each case that `check` raises on, and with what it says of it."""
    wrong, seen = [], 0
    for name, case in cases:
        seen += 1
        try:
            check(case)
        except Exception as error:
            wrong.append(f"{name}: {str(error) or type(error).__name__}")
    assert seen, "there is nothing to look at"
    assert not wrong, f"{len(wrong)} of {seen}:\n" + "\n".join(wrong)
