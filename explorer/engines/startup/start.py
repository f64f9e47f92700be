"""One start-up, whatever the engine."""

from typing import Final

from explorer.engines.command.launch import EngineName
from explorer.engines.setup import Setup
from explorer.engines.startup import sglang, vllm
from explorer.engines.startup.found import NOTHING, Given, Startup
from layouts.rules import LayoutError

STARTS: Final = {EngineName.SGLANG: sglang.start, EngineName.VLLM: vllm.start}


def startup(setup: Setup, given: Given = NOTHING) -> Startup:
    """What a rank of the server holds once it has started; raises LayoutError for a layout that breaks a rule."""
    if setup.broken:
        raise LayoutError("; ".join(setup.broken))
    return STARTS[setup.launch.engine](setup, given)
