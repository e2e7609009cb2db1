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
from seepage.report.evidence.statement import Evidence, evidence_of

__all__ = [
    "FORMATS",
    "Checked",
    "Evidence",
    "PackRequest",
    "export",
    "is_pack",
    "make_keys",
    "evidence_of",
    "verify_pack",
    "verify_run",
    "write_pack",
]
