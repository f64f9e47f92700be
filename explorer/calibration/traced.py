"""A recorded step as observations: the work and the gathers of each kind of layer, exchanges, the step as a whole."""

import pathlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from explorer.calibration.lowered import LoweredStep, lowered
from explorer.calibration.observed import CalibrationError, Observed, file_date
from explorer.evaluate import Tables
from explorer.request import Request
from explorer.traces.analysis import OUTSIDE, Analysis, analyse
from explorer.traces.events import Kind, Trace
from hw.compat import in_x64
from hw.machine import Machine
from hw.work import CollectiveKind
from layouts.layout import Layout

# What a curve misses of one shape averages out over the ops of a layer; one step differs from the next by as much.
LAYER_WIDTH: Final = 0.05
# An exchange's kernel also waits for the last of its ranks, which no curve knows of.
EXCHANGE_WIDTH: Final = 0.15

_STEP: Final = "step: anything runs"
_EXCHANGES: Final = "step: communication kernels"


class _Seen(NamedTuple):
    """One quantity: its name, seconds, width, and where it stands in the row of predictions."""

    name: str
    seconds: float
    width: float
    place: int


class TracedStep(Observed):
    """One step of a trace, beside the layout and the load that ran.

    `place`: of each observation among main work by kind, gathers by kind, communication, GPU time of the step.
    """

    file: str = eqx.field(static=True)
    format: str = eqx.field(static=True)
    date: str = eqx.field(static=True)
    left_out: tuple[str, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    seconds: Float[np.ndarray, " observations"]
    widths: Float[np.ndarray, " observations"]
    place: np.ndarray
    step: LoweredStep

    def predict(self, machine: Machine, overhead: Float[Array, ""]) -> Float[Array, " observations"]:
        return _quantities(self.step, machine)[self.place]


def _quantities(step: LoweredStep, machine: Machine) -> Float[Array, " quantities"]:
    """Seconds a layer of main work and of gathers by kind, of communication kernels, and of the GPU in the step."""
    seconds = step.op_seconds(machine)
    times = step.schedule(machine)
    communicating = jnp.sum(_communicates(step) * (seconds * step.counts + times.slowed))
    a_layer = step.member / jnp.maximum(step.member.sum(axis=1, keepdims=True), 1.0)
    return jnp.concatenate([a_layer @ times.main, a_layer @ times.gather, jnp.stack([communicating, times.gpu])])


def _communicates(step: LoweredStep) -> Float[Array | np.ndarray, " ops"]:
    """1 for the exchanges of the main stream that kernels make: copy engines leave no kernel."""
    kernels = [0.0] * len(step.tables.step.families)
    exchanges = [float(kind is not CollectiveKind.COPY_GATHER) for kind in step.tables.step.kinds]
    return np.array(kernels + exchanges) * (1.0 - step.tables.step.gathers)


@in_x64
def traced_step(
    path: str | pathlib.Path,
    trace: Trace,
    request: Request,
    layout: Layout,
    device: int | None = None,
    layer_patterns: tuple[str, ...] = (),
    step_pattern: str | None = None,
    tables: Tables | None = None,
) -> TracedStep:
    """The median step of a trace as observations of a request and a layout that ran.

    Kinds of layers are matched by name, and compared layer by layer; the step as a whole counts only where the trace
    has as many layers of each kind as the model. Raises CalibrationError where nothing of the two matches.
    """
    file = pathlib.Path(path)
    found = analyse(trace, device, layer_patterns, step_pattern)
    step = lowered(request, layout, tables)
    left_out: list[str] = []
    seen = list(_seen(found, step, left_out))
    if not seen:
        raise CalibrationError(
            f"{file.name}: no kind of layer has the name of a predicted one: name their first kernels with "
            f"--layer-pattern ({', '.join(step.tables.step.block_names)})"
        )
    return TracedStep(
        file=file.name,
        format=trace.source,
        date=file_date(file),
        left_out=tuple(left_out),
        names=tuple(s.name for s in seen),
        seconds=np.array([s.seconds for s in seen]),
        widths=np.array([s.width for s in seen]),
        place=np.array([s.place for s in seen]),
        step=step,
    )


def _seen(found: Analysis, step: LoweredStep, left_out: list[str]) -> Iterator[_Seen]:
    names = step.tables.step.block_names
    counts = step.member.sum(axis=1)
    measured = {kind.layer_kind: kind for kind in found.layer_kinds if kind.layer_kind != OUTSIDE}
    for number, name in enumerate(names):
        kind = measured.get(name)
        if kind is None or not kind.count:
            continue
        if kind.main_seconds > 0:
            yield _Seen(f"{name}: main stream, a layer", kind.main_seconds / kind.count, LAYER_WIDTH, number)
        if kind.gather_seconds > 0 and _gathers(step, number):
            each = kind.gather_seconds / kind.count
            yield _Seen(f"{name}: gathers, a layer", each, LAYER_WIDTH, len(names) + number)
    if unknown := sorted(set(measured) - set(names)):
        left_out.append(f"kinds of layers that the model does not have: {', '.join(unknown)}")
    whole = all(n in measured and measured[n].count == counts[i] for i, n in enumerate(names) if counts[i])
    if not whole:
        left_out.append("the step as a whole, whose layers are not all those of the model")
        return
    exchanged = sum(op.seconds_total for op in found.ops if op.kind is Kind.COMMUNICATION)
    if exchanged > 0 and np.any(_communicates(step)):
        yield _Seen(_EXCHANGES, exchanged, EXCHANGE_WIDTH, 2 * len(names))
    yield _Seen(_STEP, found.time.union_seconds, LAYER_WIDTH, 2 * len(names) + 1)


def _gathers(step: LoweredStep, kind: int) -> bool:
    """Whether layers of a kind gather their weights in this layout."""
    share = np.asarray(step.tables.step.gather_share(step.cut))
    return bool(np.any(share[step.tables.step.sequence == kind] > 0))
