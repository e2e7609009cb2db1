"""`seepage reproduce`: every table and figure of the three papers, with our numbers beside the published ones.

recipes/PAPER/*.toml      what the paper did, its numbers in [expect], a size for two cores in [small]
RESULTS/PAPER-ITEM.jsonl  what was measured: a line per row, column, size and data set
BOOK/PAPER.md             both, side by side, with a verdict per row
"""

from seepage.papers.book import verdict_of, write_book
from seepage.papers.budget import Part, Progress, measure
from seepage.papers.items import PAPERS, SIZES, Item, Line, Size, find_item, find_items, list_items
from seepage.papers.records import Record, read_records
from seepage.papers.run import Done, Job, Value, plan, reproduce
from seepage.papers.verdicts import verdict

__all__ = [
    "PAPERS",
    "SIZES",
    "Done",
    "Item",
    "Job",
    "Line",
    "Part",
    "Progress",
    "Record",
    "Size",
    "Value",
    "find_item",
    "find_items",
    "list_items",
    "measure",
    "plan",
    "read_records",
    "reproduce",
    "verdict",
    "verdict_of",
    "write_book",
]
