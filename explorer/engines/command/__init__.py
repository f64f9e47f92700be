"""Launch commands of SGLang and vLLM, read as they are found: nothing in them is ever run."""

from explorer.engines.command.launch import CommandError, EngineName, Launch, Value
from explorer.engines.command.launch_file import read_launch_file
from explorer.engines.command.reading import read_launches
from explorer.engines.command.records import launch_of_record, launch_of_server_args, launch_of_server_info

__all__ = [
    "CommandError",
    "EngineName",
    "Launch",
    "Value",
    "launch_of_record",
    "launch_of_server_args",
    "launch_of_server_info",
    "read_launch_file",
    "read_launches",
]
