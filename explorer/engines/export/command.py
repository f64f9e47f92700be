"""The command line of a server on one of its hosts, and the environment that it needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from explorer.engines.command.launch import EngineName, Value
from explorer.engines.export.hosts import PORTS, Hosts, placed
from explorer.engines.export.versions import Version, words_of
from explorer.engines.settings import Settings
from explorer.engines.setup import WRITERS
from layouts.layout import Layout

_PROGRAMS: Final = {EngineName.SGLANG: ("python3", "-m", "sglang.launch_server"), EngineName.VLLM: ("vllm", "serve")}


@dataclass(frozen=True)
class Server:
    """One server to be started: its settings, what they mean, where it runs, which version of the engine runs it."""

    settings: Settings
    layout: Layout
    hosts: Hosts
    version: Version

    @property
    def engine(self) -> EngineName:
        return self.settings.engine

    @property
    def port(self) -> int:
        """Where clients are answered, on the host of rank 0."""
        return PORTS[self.engine]


@dataclass(frozen=True)
class Command:
    """The words of a program, then one flag with its value each; `env` as the flags need it."""

    program: tuple[str, ...]
    flags: tuple[tuple[str, ...], ...]
    env: Mapping[str, str]


def command_of(server: Server, rank: int | str, address: str) -> Command:
    """The command on the host of a rank, `address` being that of rank 0; ExportError for what the version lacks."""
    flags, env = WRITERS[server.engine](server.settings)
    version = server.version
    place = placed(server.engine, server.layout, server.hosts, rank, address, version.has("nnodes"))
    answers: dict[str, Value] = {"host": "0.0.0.0", "port": server.port}
    program = _PROGRAMS[server.engine]
    if server.engine is EngineName.VLLM:
        program = (*program, str(flags.pop("model")))
    shown = {**flags, **place, **({} if "headless" in place else answers)}
    return Command(program, tuple(words_of(shown, version)), env)
