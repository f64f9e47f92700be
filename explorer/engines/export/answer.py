"""`meshwright export`: files that start a layout's servers, checked before anybody sees them."""

import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from explorer.documents import Document, Schema, heading, layout_entry, plain
from explorer.engines.export.command import Server
from explorer.engines.export.errors import ExportError
from explorer.engines.export.hosts import check_places, hosts_of
from explorer.engines.export.intent import BLOCK_DRAFTS, Intent, server_of, settings_of
from explorer.engines.export.kubernetes import manifest
from explorer.engines.export.options import Form, Options
from explorer.engines.export.readback import check_files
from explorer.engines.export.script import scripts
from explorer.engines.export.share import lowered, share_of
from explorer.engines.export.versions import version_of
from explorer.engines.setup import Asked
from explorer.engines.startup import Startup, startup
from explorer.engines.startup.room import room
from explorer.request import Request
from layouts.layout import Layout
from layouts.models import presets
from layouts.serving.reserve import Role
from layouts.text import text_of

_LONGEST_NAME: Final = 28


@dataclass(frozen=True)
class Export:
    """The files of one layout: `servers` alike, each of which `server` describes and starts as `start` says."""

    request: Request
    layout: Layout
    options: Options
    server: Server
    servers: int
    files: dict[str, str]
    start: Startup

    @property
    def notes(self) -> Iterator[str]:
        """What whoever starts the files should know."""
        hosts, settings = self.server.hosts, self.server.settings
        if self.servers > 1 and self.options.form is Form.SCRIPT:
            yield f"replicas = {self.servers}: start as many servers, each on {hosts.all_gpus} GPUs of its own"
        if self.options.model_path is None and "/" not in (settings.model or ""):
            yield f"weights are called {settings.model}: give --model-path for a folder, or a name with its publisher"
        if settings.speculation is not None and settings.speculation.algorithm in BLOCK_DRAFTS:
            yield "a block draft is a checkpoint of its own: add its path to the draft's flags"
        if hosts.count > 1 and hosts.gpus != int(self.request.machine.gpus_per_host):
            yield f"{hosts.all_gpus} GPUs fill no whole hosts: {hosts.count} hosts give {hosts.gpus} GPUs each"
        if self.start.refusal is not None:
            yield f"it would not start: {self.start.refusal}"
        elif not self.request.prefill and self.start.running_instance * self.servers < (self.request.concurrency or 1):
            runs, asked = self.start.running_instance * self.servers, self.request.concurrency
            yield f"{runs:,} of {asked:,} requests run at once, as {self.start.clamp} allows"
        if settings.role is not Role.UNIFIED:
            yield f"{settings.role} servers answer through a router beside them, which knows those of the other phase"

    def document(self) -> Document:
        """The `export/1` document."""
        head, settings = heading(Schema.EXPORT, self.request), self.server.settings
        return {
            **head,
            "notes": [*head["notes"], *self.notes],
            **layout_entry(self.layout, self.request.model),
            "engine": {"name": str(self.server.engine), "version": self.server.version.number},
            "format": str(self.options.form),
            "servers": self.servers,
            "hosts": {"count": self.server.hosts.count, "gpus": self.server.hosts.gpus},
            "settings": {
                "model": settings.model,
                "role": str(settings.role),
                "mem_share": settings.pools.share,
                "max_running": settings.pools.max_running,
                "context_length": settings.pools.context_length,
                "chunk": settings.pools.chunk,
                "dispatch_tokens": settings.pools.dispatch_tokens,
                "formats": dict(settings.formats),
                "speculation": plain(settings.speculation),
            },
            "files": [{"name": name, "text": text} for name, text in self.files.items()],
        }


def export(request: Request, layout: Layout, options: Options, asked: Asked) -> Export:
    """Files for a valid layout of a request, whose names `asked` repeats so that they can be read back.

    ExportError for what the engine or its version cannot say, in one line that names the nearest that it can.
    """
    role = _role(request, options.role)
    share = share_of(request, layout, options.engine, role)
    model = options.model_path or _published(asked.model or request.model.name)
    if not model.isprintable() or model.startswith("-"):
        raise ExportError(f"model-path {model[:40]!r} is no name or folder: give one without control characters")
    part = server_of(request, layout, options.engine)
    servers = layout.replicas // part.replicas
    settings = settings_of(_of_one(request, servers), part, Intent(options.engine, role, model, share, asked.model))
    hosts = hosts_of(part.gpus, int(request.machine.gpus_per_host))
    check_places(options.engine, part, hosts)
    server = Server(settings, part, hosts, version_of(options.engine, options.version))
    # formats are read back from flags alone: what was asked of them would only hide what is missing
    load = replace(asked, precision=None, context=request.context, requests=request.concurrency)
    files, start = _started(server, options, request, servers, load)
    if request.mem_fraction is None and start.starts and start.left < room(start):
        pools = replace(settings.pools, share=lowered(share, start, options.engine))
        safer = replace(server, settings=replace(settings, pools=pools))
        again = _started(safer, options, request, servers, load)
        # a load that needs the whole share keeps it, as long as what is known to live outside has its room
        if again[1].running_instance >= _wanted(request, servers) or start.left < start.reserved:
            server, (files, start) = safer, again
    return Export(request, layout, options, server, servers, files, start)


def _wanted(request: Request, servers: int) -> int:
    """Requests of one server."""
    return -(-(request.concurrency or 1) // servers)


def _started(
    server: Server, options: Options, request: Request, servers: int, asked: Asked
) -> tuple[dict[str, str], Startup]:
    """The files of a server, checked, and what a start of it allocates."""
    files = files_of(server, options, request, servers)
    return files, startup(check_files(files, server, asked)[0])


def files_of(server: Server, options: Options, request: Request, servers: int) -> dict[str, str]:
    """File names and texts of a server, not read back yet."""
    role = server.settings.role
    ending = "" if role is Role.UNIFIED else f"-{role}"
    name = f"{_slug(request.model.name)}-{options.engine}{ending}"
    if options.form is Form.KUBERNETES:
        return {f"{name}.yaml": manifest(server, name, servers, options.image)}
    where = f"{_slug(request.model.name)} on {server.layout.gpus} {request.machine.name}, {server.version.title}"
    title = f"{where}: {text_of(server.layout, request.model)}"
    if options.address is not None and not re.fullmatch(r"[\w.:\[\]-]{1,253}", options.address, re.ASCII):
        raise ExportError(f"address {options.address[:40]!r} is no host: give a name or an IP address")
    return scripts(server, name, title, options.address)


def _role(request: Request, role: Role | None) -> Role:
    if request.prefill and role not in (None, Role.PREFILL):
        raise ExportError(f"role {role} with phase prefill: leave --role out, or ask for --phase decode")
    if not request.prefill and role is Role.PREFILL:
        raise ExportError("role prefill with phase decode: ask for --phase prefill, whose layouts are others")
    return role or (Role.PREFILL if request.prefill else Role.UNIFIED)


def _of_one(request: Request, servers: int) -> Request:
    """The load of one of several servers."""
    return replace(request, concurrency=ceil((request.concurrency or 1) / servers))


def _published(name: str) -> str:
    """The name under which a preset is published, the folder of a config.json; any other as it is."""
    path = pathlib.PurePath(name)
    if path.name == "config.json":
        return str(path.parent)
    base = presets.base_of(name)
    listed = presets.index().get(f"{presets.published(base) or base}.json", {}).get("published", ())
    return str(listed[0]) if isinstance(listed, list) and listed else name


def _slug(name: str) -> str:
    """Letters that names of files and of Kubernetes have in common; with all endings below the 52 of a StatefulSet."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"model-{plain}")[:_LONGEST_NAME].strip("-")
