"""What an auditor files and a pipeline reads: evidence packs, exports in formats of others, signatures and checks."""

from seepage.report.evidence.pack import (
    FORMATS,
    Checked,
    PackRequest,
    export,
    is_pack,
    verify_pack,
    verify_run,
    write_pack,
)
from seepage.report.evidence.signing import make_keys

__all__ = [
    "FORMATS",
    "Checked",
    "PackRequest",
    "export",
    "is_pack",
    "make_keys",
    "verify_pack",
    "verify_run",
    "write_pack",
]
