"""What is refused, by its name and by the values that its sentence states; the words are read in `tests/words`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from seepage.errors import Inapplicable


@contextmanager
def refusal(name: str, *values: object) -> Iterator[pytest.ExceptionInfo[Inapplicable]]:
    """What is called within must be refused by this name, and state these numbers, names and options."""
    with pytest.raises(Inapplicable, match=r"\S; \S") as caught:
        yield caught
    found = caught.value
    stated = [value for value in map(str, values) if re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\w)", str(found))]
    assert (found.name, stated) == (name, [*map(str, values)]), found
