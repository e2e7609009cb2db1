"""Human study: people judge pairs of private pictures and reconstructions on a page; their answers are counted.

A machine can answer the same page, and is named as one.
"""

from seepage.papers.judging.answers import Answers, read_answers
from seepage.papers.judging.machine import machine_answers
from seepage.papers.judging.page import JudgePage, write_judge_page
from seepage.papers.judging.pairs import ShownPair, Subject, choose_pairs
from seepage.papers.judging.tally import lines, tally, write_judged

__all__ = [
    "Answers",
    "JudgePage",
    "ShownPair",
    "Subject",
    "choose_pairs",
    "lines",
    "machine_answers",
    "read_answers",
    "tally",
    "write_judge_page",
    "write_judged",
]
