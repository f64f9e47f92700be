"""The memory that a share should leave to an engine."""

from typing import Final

from explorer.engines.command.launch import EngineName
from explorer.engines.startup.found import Startup
from explorer.engines.startup.sglang import server_settings
from hw.units import GIB
from layouts.serving.reserve import reserve_bytes

_SLACK: Final = 4 * GIB  # left beside what is known, before a share is called too small


def room(up: Startup) -> int:
    """Bytes outside the pools: more than is known to live there, as what is captured and buffered is an estimate.

    SGLang's guide to tuning wants 5 to 8 GB free once graphs are captured, and its default keeps what a server with
    that chunk, TP and DP may need at most: never less than half of that.
    """
    kept = up.reserved_high + _SLACK
    if up.parts.setup.launch.engine is EngineName.VLLM:
        return kept
    return max(kept, reserve_bytes(up.parts.total, server_settings(up.parts.setup, up.parts)) // 2)
