"""What ran while a benchmark measured: as the options say, or as the server said of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from explorer.calibration.served import Limits, engine_of
from explorer.engines.bench.fields import Unusable
from explorer.engines.bench.run import BatchRun, ForwardRun, Run
from explorer.engines.command.launch import EngineName
from explorer.engines.command.records import launch_of_server_info
from explorer.engines.setup import Asked, setup_of
from explorer.request import Request
from explorer.service.engine import ANY, engine_names
from layouts.layout import Layout
from layouts.models import presets
from layouts.serving.reserve import Role

OPTIONS, SERVER_INFO = "options", "server_info"
_APART = ("prefill", "decode")  # parts of a router's answer, by the kind of server


@dataclass(frozen=True)
class Options:
    """What was said beside the files. `asked`: the machine, and what stands in for what a server says; `request` and
    `layout`: what ran, or both None where the files are to say it."""

    asked: Asked
    request: Request | None = None
    layout: Layout | None = None
    engine: str | None = None


@dataclass(frozen=True)
class Subject:
    """What a run is predicted as. `source`: `options` or `server_info`; `told`: what the server was, as it was read;
    `notes`: what was assumed."""

    request: Request
    layout: Layout
    engine: str
    engine_version: str | None
    source: str
    limits: Limits = field(default_factory=Limits)
    told: str = ""
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """What subjects of one answer differ in."""
        return self.source, self.engine, self.engine_version or "", self.told


def subject_of(run: Run, options: Options) -> Subject:
    """What ran: as the options say where they name a layout, else as the run's `server_info` says.

    No file that a `server_info` names is opened. Raises MeshwrightError where neither says it, or where what the server
    says cannot be.
    """
    version = run.origin.engine_version
    if options.request is not None and options.layout is not None:
        return Subject(options.request, options.layout, options.engine or _engine(run), version, OPTIONS)
    if run.origin.server_info is None:
        raise Unusable("does not say what ran (server_info): give --model, --gpus and --layout")
    return _told(run.origin.server_info, options, version)


def _told(info: Mapping[str, Any], options: Options, version: str | None) -> Subject:
    if any(isinstance(info.get(part), list) for part in _APART):
        raise Unusable("prompts ran on GPUs of their own: meshwright service predicts that (--prefill-layout)")
    launch = launch_of_server_info(info, SERVER_INFO)
    model = options.asked.model or _preset(launch.model)
    found = setup_of(launch, replace(options.asked, model=model))
    if found.settings.role is not Role.UNIFIED:
        raise Unusable("prompts ran on GPUs of their own: meshwright service predicts that (--prefill-layout)")
    if found.broken:
        raise Unusable(found.broken[0])
    return Subject(
        request=found.request,
        layout=found.layout,
        engine=options.engine or launch.engine.value,
        engine_version=version,
        source=SERVER_INFO,
        limits=Limits(found.request.chunk, found.settings.pools.max_running),
        told=repr((launch.model, sorted(launch.values.items(), key=lambda pair: pair[0]))),
        notes=found.notes,
    )


def _preset(name: str | None) -> str:
    """The preset that a server's name for its model means (`org/NAME`, `/models/NAME`)."""
    known = presets.published(name or "")
    if known is not None:
        return known
    raise Unusable(f"ran {(name or 'no model')[:80]!r}, which is no preset: name one with --model")


def _engine(run: Run) -> str:
    """The engine that a run's backend names; batches without a client are of the engine that writes such files."""
    if isinstance(run, ForwardRun):
        return EngineName.VLLM.value
    if isinstance(run, BatchRun):
        return EngineName.SGLANG.value
    named = engine_of(run.origin.backend)
    return named if named in engine_names() else ANY
