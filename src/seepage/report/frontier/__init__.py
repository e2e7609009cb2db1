"""`seepage frontier`: what each defense costs, and what attacks still recover despite it.

RUN/ is the folder of an ordinary audit, whose cases are the defenses, and besides:

utility/CASE.json                accuracy after federated training, client seconds, bytes, epsilon; what is there stays
frontier.jsonl                   one line per defense and kind of attacker
frontier.html  frontier.png      page and plot; the page holds the plot
"""

from seepage.report.frontier.rows import DefenseRow
from seepage.report.frontier.run import run_frontier

__all__ = [
    "DefenseRow",
    "run_frontier",
]
