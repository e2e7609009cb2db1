"""How far a run is, for whoever watches it."""

from collections.abc import Callable

ProgressCallback = Callable[[float, float, str], None]
"""Called with (done, total, what) while a run goes on."""


def no_progress(done: float, total: float, what: str) -> None:
    """Show nothing."""
