"""Launch commands of SGLang and vLLM, read as they are found: nothing in them is ever run."""

from explorer.engines.command.launch import CommandError, EngineName, Launch, Value
from explorer.engines.command.reading import read_launches

__all__ = ["CommandError", "EngineName", "Launch", "Value", "read_launches"]
