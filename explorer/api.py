"""The answers as functions, for notebooks and scripts: `explorer.plan("kimi-k3@article", "b200", 16, context=100_000)`.

Each takes the options of the command of its name and returns a typed result, whose `document()` is the JSON document.
All raise `MeshwrightError` with one line for what cannot be.
"""

import pathlib
from collections.abc import Sequence
from typing import TypedDict, Unpack

from explorer.auditing import Audited, make_audit_request
from explorer.auditing import audit as _audit
from explorer.calibration.answer import Calibration
from explorer.calibration.answer import calibrate as _calibrate
from explorer.calibration.sources import Ran, read_source
from explorer.comparison import Comparison
from explorer.comparison import compare as _compare
from explorer.costing import Cost
from explorer.costing import cost as _cost
from explorer.elasticity import Sensitivity
from explorer.elasticity import sensitivity as _sensitivity
from explorer.engines.check import Check, Served
from explorer.engines.check import check as _check
from explorer.engines.command import CommandError, Launch, read_launch_file, read_launches
from explorer.engines.logs.reading import read_log
from explorer.engines.logs.reconcile import Reconciled, reconcile
from explorer.engines.setup import Asked, setup_of
from explorer.ledger import Ledger, ledger
from explorer.planner import Plan
from explorer.planner import plan as _plan
from explorer.request import make_request
from explorer.service.engine import ANY
from explorer.serving import Apart, Service, make_engine, make_lengths, prompts_of
from explorer.serving import serve as _serve
from explorer.traces.answer import Traced, answer
from explorer.traces.reading import read_trace
from hw.errors import MeshwrightError
from hw.machine import load_machine


class Options(TypedDict, total=False):
    """What every question may say beside model, hardware and GPUs; `explorer.request.make_request` has the meaning."""

    phase: str
    context: float
    concurrency: float | None
    verify_width: int | None
    accept_length: float | None
    draft: str | None
    precision: str | None
    objective: str
    max_tpot_ms: float | None
    mem_fraction: float | None
    extra_slots: int | None
    chunk: int
    gpus_per_host: int | None
    domain: int | None
    seed: int


class AuditOptions(TypedDict, total=False):
    """What an audit may be told beside model, GPUs and layout; see `explorer.auditing.make_audit_request`."""

    context: float
    concurrency: float
    verify_width: int | None
    draft: str | None
    precision: str | None
    gpus_per_host: int
    domain: int | None


def plan(model: str, hardware: str, gpus: int, **options: Unpack[Options]) -> Plan:
    """The best layout for a load, with candidates beside it."""
    return _plan(make_request(model, hardware, gpus, **options))


def cost(model: str, hardware: str, gpus: int, layout: str, **options: Unpack[Options]) -> Cost:
    """Where the time of one step of a layout goes, in seconds."""
    request = make_request(model, hardware, gpus, **options)
    return _cost(request, request.layout(layout))


def memory(model: str, hardware: str, gpus: int, layout: str, **options: Unpack[Options]) -> Ledger:
    """What lives on one GPU under a layout, in bytes, and what it admits."""
    request = make_request(model, hardware, gpus, **options)
    return ledger(request, request.layout(layout))


def compare(model: str, hardware: str, gpus: int, a: str, b: str, **options: Unpack[Options]) -> Comparison:
    """Two layouts side by side: what is conserved, what is not, what moved."""
    request = make_request(model, hardware, gpus, **options)
    return _compare(request, request.layout(a), request.layout(b))


def sensitivity(model: str, hardware: str, gpus: int, layout: str, **options: Unpack[Options]) -> Sensitivity:
    """The elasticity of a layout's step by every hardware figure and parameter."""
    request = make_request(model, hardware, gpus, **options)
    return _sensitivity(request, request.layout(layout))


def serve(
    model: str,
    hardware: str,
    gpus: int,
    layout: str,
    input_tokens: int,
    output_tokens: int,
    *,
    engine: str = ANY,
    shortest: float = 1.0,
    prefill_layout: str | None = None,
    prefill_gpus: int | None = None,
    prefill_workers: int = 1,
    decode_workers: int = 1,
    **options: Unpack[Options],
) -> Service:
    """What clients see at every concurrency up to the one asked for, in seconds (`meshwright service`).

    With `prefill_layout` prompts are computed on workers of their own, of `prefill_gpus` each.
    """
    lengths, served_by = make_lengths(input_tokens, output_tokens, shortest), make_engine(engine, options.get("chunk"))
    filled: Options = {"context": lengths.context, **options, "chunk": served_by.chunk}
    request = make_request(model, hardware, gpus, **filled)
    apart = None
    if prefill_layout is not None:
        prompts = prompts_of(request, lengths, prefill_gpus)
        apart = Apart(prompts, prompts.layout(prefill_layout), prefill_workers, decode_workers)
    return _serve(request, request.layout(layout), served_by, lengths, apart)


def audit(model: str, gpus: int, layout: str, **options: Unpack[AuditOptions]) -> Audited:
    """What the cost model says of a decode step beside what its program does, traced without devices."""
    request = make_audit_request(model, gpus, **options)
    return _audit(request, request.layout(layout))


def trace(
    file: str | pathlib.Path,
    *,
    device: int | None = None,
    layer_patterns: Sequence[str] = (),
    step_pattern: str | None = None,
    against: Cost | None = None,
) -> Traced:
    """A recorded step taken apart: layers, exposed copies, idle time; beside a prediction if one is given."""
    return answer(file, read_trace(file), device, tuple(layer_patterns), step_pattern, against)


def calibrate(hardware: str, files: Sequence[str | pathlib.Path], ran: Ran | None = None) -> Calibration:
    """A chip's curves, or those of a curve file, adjusted to what was measured; `ran` says what recordings are of.

    `curve_file` of the result is the text of a file that `hardware="PATH.toml"` takes.
    """
    machine = load_machine(hardware) if ran is None else ran.request.machine
    if machine.name != hardware:
        raise MeshwrightError(f"{machine.name!r} ran, not {hardware!r}: name the same hardware in both")
    return _calibrate(machine, [seen for file in files for seen in read_source(file, machine, ran)], ran)


class AskedOptions(TypedDict, total=False):
    """What a launch does not say of its model and machine; see `explorer.engines.setup.Asked`."""

    model: str | None
    draft: str | None
    precision: str | None
    gpus_per_host: int | None
    domain: int | None
    accept_length: float | None


def check(
    command: str | pathlib.Path,
    hardware: str,
    *,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    concurrency: int | None = None,
    advise: bool = True,
    **options: Unpack[AskedOptions],
) -> Check:
    """A launch command of SGLang or vLLM held against rules, memory and load. A `Path` names a file that holds one.

    Nothing of the command is run. A text that starts several servers is an error: `meshwright check` answers for each.
    """
    asked = Asked(hardware, requests=concurrency, **options)
    return _check(_launch(command), asked, Served(input_tokens, output_tokens, concurrency), advise)


def log(
    file: str | pathlib.Path,
    hardware: str | None = None,
    *,
    command: str | pathlib.Path | None = None,
    **options: Unpack[AskedOptions],
) -> Reconciled:
    """A start-up log beside the ledger of the launch that it prints, or of `command`; only read without `hardware`.

    `explorer.engines.logs.reconcile.document` makes the document of one or two of them.
    """
    if hardware is None and (command is not None or options):
        raise MeshwrightError("hardware is missing: without the chip that ran nothing can be predicted")
    asked = None if hardware is None else Asked(hardware, **options)
    setup = None if command is None or asked is None else setup_of(_launch(command), asked)
    return reconcile(str(file), read_log(file), asked, setup)


def _launch(command: str | pathlib.Path) -> Launch:
    found = read_launch_file(command) if isinstance(command, pathlib.Path) else read_launches(command)
    first, *others = found
    if others:
        raise CommandError(f"the text starts {len(found)} servers: give one of them")
    return first
