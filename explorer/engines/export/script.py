"""Start scripts: one for each host of a server."""

import shlex
from collections.abc import Iterator

from explorer.engines.export.command import Server, command_of

_ADDRESS = "MASTER_ADDR"


def scripts(server: Server, name: str, title: str, address: str | None) -> dict[str, str]:
    """File names and texts. Without an `address` of the first host, scripts of several hosts want it in MASTER_ADDR."""
    ranks = range(server.hosts.count)
    if len(ranks) == 1:
        return {f"{name}.sh": _script(server, 0, title, address)}
    digits = len(str(len(ranks) - 1))
    return {f"{name}-host{rank:0{digits}d}.sh": _script(server, rank, title, address) for rank in ranks}


def _script(server: Server, rank: int, title: str, address: str | None) -> str:
    return "\n".join(_lines(server, rank, title, address)) + "\n"


def _lines(server: Server, rank: int, title: str, address: str | None) -> Iterator[str]:
    several = server.hosts.count > 1
    place = address or f"${{{_ADDRESS}}}"
    command = command_of(server, rank, place)
    yield "#!/usr/bin/env bash"
    yield f"# {title}"
    if several:
        yield f"# Host {rank} of {server.hosts.count}, each with {server.hosts.gpus} GPUs."
    yield "set -euo pipefail"
    yield ""
    if several and address is None:
        yield f': "${{{_ADDRESS}:?set it to the address of host 0}}"'
    yield from (f"export {name}={shlex.quote(value)}" for name, value in command.env.items())
    yield f"exec {' '.join(map(shlex.quote, command.program))} \\"
    *rest, last = (_quoted(words, f"${{{_ADDRESS}}}" if address is None else "") for words in command.flags)
    yield from (f"  {words} \\" for words in rest)
    yield f"  {last}"


def _quoted(words: tuple[str, ...], variable: str) -> str:
    """Words as a shell takes them; only our own variable is left to it."""
    return " ".join(f'"{word}"' if variable and variable in word else shlex.quote(word) for word in words)
