"""The networks of `tests.clients.generated`, by the name that a user would give."""

from tests.clients.generated import drawn

__all__ = ["drawn"]
