"""What a program computes and sends, counted from its trace and from its compiled text, to hold the cost model to."""

from layouts.audit.compiled import Difference, Message, compiled_messages, differences, traced_messages
from layouts.audit.count import count
from layouts.audit.counts import AuditError, Counts, Exchanged

__all__ = [
    "AuditError",
    "Counts",
    "Difference",
    "Exchanged",
    "Message",
    "compiled_messages",
    "count",
    "differences",
    "traced_messages",
]
