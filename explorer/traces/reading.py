"""A file of whatever format as a trace."""

import pathlib

from explorer.traces.chrome import read_chrome
from explorer.traces.events import Trace, TraceError
from explorer.traces.xplane import read_xplane

_GZIP = b"\x1f\x8b"


def read_trace(path: str | pathlib.Path) -> Trace:
    """Read torch's JSON (.json, .json.gz) or JAX's xplane.pb, told apart by what they begin with.

    TraceError for a file that cannot be read, is no trace, is cut short, or in which no GPU runs anything.
    """
    try:
        file = pathlib.Path(path).expanduser()
        with file.open("rb") as opened:
            begins = opened.read(64)
        text = begins.startswith(_GZIP) or begins.lstrip()[:1] in (b"{", b"[")
        trace = read_chrome(file) if text else read_xplane(file)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, TraceError):
            raise
        reason = getattr(error, "strerror", None) or error
        mend = "give the file that a profiler wrote"
        raise TraceError(f"trace {str(path)!r} cannot be read ({reason}): {mend}") from None
    if not len(trace.events):
        raise TraceError(
            f"{file.name} holds no GPU events: record with the GPU's activities on (of JAX give the xplane.pb)"
        )
    return trace
