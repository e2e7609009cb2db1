"""Reports of a finished run: one self-contained page (`report.html`) and one picture (`grid.png`)."""

from seepage.report.grid import write_grid
from seepage.report.page import write_report

__all__ = ["write_grid", "write_report"]
