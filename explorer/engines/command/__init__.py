"""Launch commands of SGLang and vLLM, read as they are found: nothing in them is ever run."""

from explorer.engines.command.launch import CommandError, EngineName, Launch, Value

__all__ = ["CommandError", "EngineName", "Launch", "Value"]
