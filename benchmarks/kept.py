"""How a benchmark keeps a number: as a study does."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "experiments"))

from keeping import keep_measured

__all__ = ["keep_measured"]
