"""`seepage reproduce`: every table and figure of the three papers, with our numbers beside the published ones.

recipes/PAPER/*.toml      what the paper did, its numbers in [expect], a size for two cores in [small]
RESULTS/PAPER-ITEM.jsonl  what was measured: a line per row, column, size and data set
BOOK/PAPER.md             both, side by side, with a verdict on each claim
"""

from seepage.papers.book import write_book
from seepage.papers.items import PAPERS, SIZES, Item, Size, find_item, find_items, list_items
from seepage.papers.others import OTHERS
from seepage.papers.records import Record, read_records
from seepage.papers.run import Done, Job, Value, plan, reproduce
from seepage.papers.verdicts import judge

__all__ = [
    "OTHERS",
    "PAPERS",
    "SIZES",
    "Done",
    "Item",
    "Job",
    "Record",
    "Size",
    "Value",
    "find_item",
    "find_items",
    "judge",
    "list_items",
    "plan",
    "read_records",
    "reproduce",
    "write_book",
]
