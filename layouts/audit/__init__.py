"""What a traced program computes and sends, counted from its jaxpr, to hold the cost model against."""

from layouts.audit.count import count
from layouts.audit.counts import AuditError, Counts, Exchanged

__all__ = ["AuditError", "Counts", "Exchanged", "count"]
