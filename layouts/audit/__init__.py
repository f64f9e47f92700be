"""What a program computes and sends, counted from its trace and from its compiled text, to hold the cost model to."""

from layouts.audit.audit import FLOPS_TOLERANCE, Audit, Row, audit
from layouts.audit.compiled import Difference, Message, compiled_messages, differences, traced_messages
from layouts.audit.count import count
from layouts.audit.counts import AuditError, Counts, Exchanged

__all__ = [
    "FLOPS_TOLERANCE",
    "Audit",
    "AuditError",
    "Counts",
    "Difference",
    "Exchanged",
    "Message",
    "Row",
    "audit",
    "compiled_messages",
    "count",
    "differences",
    "traced_messages",
]
