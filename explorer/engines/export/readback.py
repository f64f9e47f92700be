"""What was written, read as anybody's file is, and held against what was meant."""

import pathlib
import tempfile
from collections.abc import Mapping

from explorer.engines.command import read_launch_file
from explorer.engines.export.command import Server
from explorer.engines.export.errors import ExportError
from explorer.engines.export.intent import TITLES
from explorer.engines.setup import READERS, Asked, Setup, setup_of
from layouts.text import text_of


def read_back(files: Mapping[str, str], asked: Asked) -> list[Setup]:
    """Every launch in files that are still text, understood."""
    found: list[Setup] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            file = pathlib.Path(folder, name)
            file.write_text(text, encoding="utf-8")
            found += [setup_of(launch, asked) for launch in read_launch_file(file)]
    return found


def check_files(files: Mapping[str, str], server: Server, asked: Asked) -> list[Setup]:
    """The launches in the files of a server. ExportError where the engine refuses them, or, which is no fault of the
    user's, where they mean something else than was to be said."""
    setups, layout = read_back(files, asked), server.layout
    for setup in setups:
        if setup.launch.unknown or setup.layout != layout or not _alike(setup, server):
            written, read = text_of(layout, setup.request.model), text_of(setup.layout, setup.request.model)
            raise ExportError(
                f"internal error: what was written for {written} reads back as {read}: please report it; nothing is "
                "written"
            )
        if setup.broken:
            raise ExportError(f"{TITLES[server.engine]} refuses this layout: {setup.broken[0]}")
    return setups


def _alike(setup: Setup, server: Server) -> bool:
    """Whether what was read back says of memory, load, formats and draft what was written."""
    wrote, read = server.settings, setup.launch
    said = READERS[read.engine](read)
    pools = ("share", "max_running", "context_length", "chunk", "graph_limit", "graph_sizes", "dispatch_tokens")
    return (
        all(getattr(said.pools, name) == getattr(wrote.pools, name) for name in pools)
        and (said.role, said.speculation, dict(said.formats)) == (wrote.role, wrote.speculation, dict(wrote.formats))
        and setup.request.gpus == server.hosts.all_gpus
    )
