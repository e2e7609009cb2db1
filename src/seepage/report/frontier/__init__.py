"""`seepage frontier`: what each defense costs, and what attacks still recover despite it.

RUN/ is the folder of an ordinary audit, whose cases are the defenses, and besides:

utility/CASE.json                accuracy after federated training, client seconds, bytes, epsilon; what is there stays
frontier.jsonl                   one line per defense and kind of attacker
frontier.html  frontier.png      page and plot; the page holds the plot
"""

from seepage.report.frontier.advising import advice, untried
from seepage.report.frontier.rows import DefenseRow, pareto, points_of
from seepage.report.frontier.run import Frontier, run_frontier
from seepage.report.frontier.sweep import DEFAULT_STRENGTHS, Utility, sweep_of

__all__ = [
    "DEFAULT_STRENGTHS",
    "Frontier",
    "DefenseRow",
    "Utility",
    "advice",
    "pareto",
    "points_of",
    "run_frontier",
    "sweep_of",
    "untried",
]
