"""Nearby commands of the same engine on the same GPUs, priced in one batch: the nearest better one, and the best."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from explorer.engines.command.launch import EngineName, Launch, Value
from explorer.engines.settings import Degrees, Settings
from explorer.engines.setup import WRITERS, Setup, layout_keys, setup_of
from explorer.engines.startup import Startup, startup
from explorer.engines.values import flag
from explorer.evaluate import Tables, evaluate_batch
from layouts.cut import cuts_of
from layouts.enumerate import divisors
from layouts.layout import Layout, resolve
from layouts.rules import broken
from layouts.text import text_of

_GAIN: Final = 0.05  # of the rate, below which an advice is noise
_WIDEST: Final = 4096  # candidates of a search
_IMPLIED: Final = ("ep_size",)  # by an exchange of rows, in SGLang
_TRIES: Final = 8  # commands that are started on paper


@dataclass(frozen=True)
class Change:
    """A flag as it is and as it would be; None where it is left out."""

    flag: str
    now: str | None
    then: str | None


@dataclass(frozen=True)
class Better:
    """Another command. `step` in seconds and `rate` in tokens a second at the load asked, `kv_tokens` of the instance;
    `gain` of the rate over the command as it is."""

    layout_text: str
    changes: tuple[Change, ...]
    step: float
    rate: float
    kv_tokens: int
    gain: float


def better(setup: Setup, tables: Tables) -> tuple[Better, ...]:
    """The nearest command that is at least 5 % faster at the load asked and the fastest, where there are such. Both are
    read back as commands: only what their engine accepts, and starts with, is told."""
    settings, request = setup.settings, setup.request
    tried = dict(_layouts(setup))
    tried.setdefault(setup.layout, settings)
    layouts = list(tried)
    found = evaluate_batch(tables, cuts_of(layouts), request.case())
    rates = np.where(found.feasible, found.tokens_per_second, 0.0)
    own = float(np.asarray(found.tokens_per_second)[layouts.index(setup.layout)])
    faster = [int(row) for row in np.argsort(-rates, kind="stable") if rates[row] > own * (1 + _GAIN)]
    changes = {row: changed(settings, tried[layouts[row]]) for row in faster}
    near = sorted(faster, key=lambda row: (len(changes[row]), -rates[row]))
    starts = functools.cache(lambda row: _started(setup, tried[layouts[row]], layouts[row]))
    chosen = dict.fromkeys(row for order in (near, faster) if (row := _first(order, starts)) is not None)
    return tuple(
        Better(
            text_of(layouts[row], request.model),
            changes[row],
            float(found.step[row]),
            float(rates[row]),
            _tokens(starts(row)),
            float(rates[row]) / own - 1.0,
        )
        for row in chosen
    )


def _first(rows: Sequence[int], starts: Callable[[int], Startup | None]) -> int | None:
    """The first row whose command starts, of the few that are worth a try."""
    return next((row for row in rows[:_TRIES] if starts(row) is not None), None)


def _started(setup: Setup, settings: Settings, layout: Layout) -> Startup | None:
    """The start of a changed command, or None where its engine refuses it, runs another layout, or has too little
    memory for the load."""
    read = setup_of(rewritten(setup.launch, setup.settings, settings), setup.asked)
    if read.broken or read.layout != layout:
        return None
    up = startup(read)
    return up if up.starts and up.running_instance >= (setup.request.concurrency or 1) else None


def _tokens(up: Startup | None) -> int:
    return 0 if up is None else up.group_tokens * up.groups


def rewritten(launch: Launch, now: Settings, then: Settings) -> Launch:
    """The launch with the flags in which two settings differ set as the second has them, or left out."""
    before, after = _flags(now), _flags(then)
    gone = {name for name in (*before, *_IMPLIED) if name not in after}
    new = {name: value for name, value in after.items() if value != before.get(name)}
    return replace(launch, values={**{k: v for k, v in launch.values.items() if k not in gone}, **new})


def changed(now: Settings, then: Settings) -> tuple[Change, ...]:
    """Flags in which two settings of one engine differ."""
    before, after = _flags(now), _flags(then)
    names = dict.fromkeys([*before, *after])
    return tuple(
        Change(flag(name), _shown(before.get(name)), _shown(after.get(name)))
        for name in names
        if before.get(name) != after.get(name)
    )


def _flags(settings: Settings) -> dict[str, Value]:
    """Flags that say the settings, without what others of them imply: an exchange of rows is among all of tp."""
    flags = WRITERS[settings.engine](settings)[0]
    implied = _IMPLIED if settings.degrees.exchange == "all_to_all" else ()
    return {name: value for name, value in flags.items() if name not in implied}


def _shown(value: Value | None) -> str | None:
    if value is None or value is True:
        return None if value is None else "on"
    return str(value)


def _layouts(setup: Setup) -> Iterator[tuple[Layout, Settings]]:
    """Valid layouts that flags of the engine can say, with the settings that say them."""
    model, site = setup.request.model, setup.request.site
    for degrees in list(_degrees(setup))[:_WIDEST]:
        settings = replace(setup.settings, degrees=degrees)
        layout = resolve(layout_keys(settings, model), site.gpus, model)
        if not broken(layout, site):
            yield layout, settings


def _degrees(setup: Setup) -> Iterator[Degrees]:
    """Ways to cut the same GPUs, with the replicas and prefill context parallelism that the command has."""
    own, sparse = setup.settings.degrees, any(layer.experts for layer in setup.request.model.kinds)
    stage = own.pp * own.tp
    for pp in divisors(stage):
        tp = stage // pp
        for attn_dp, dcp in product(divisors(tp), divisors(tp)):
            group = tp // attn_dp
            if tp % (attn_dp * own.attn_cp) or group % dcp:
                continue
            for ep, exchange in _experts(setup, tp, attn_dp) if sparse else ((1, "all_gather"),):
                plain = replace(own, pp=pp, tp=tp, attn_dp=attn_dp, dcp=dcp, ep=ep, moe_dp=1, exchange=exchange)
                plain = replace(plain, dense_tp=_dense_tp(own, tp, attn_dp))
                yield plain
                if attn_dp > 1 and setup.launch.engine is EngineName.SGLANG:
                    yield replace(plain, vocab_in_group=not own.vocab_in_group)


def _dense_tp(own: Degrees, tp: int, attn_dp: int) -> int | None:
    """Of dense MLPs: what the command says under attention DP, else the engine's default, all of tp."""
    if attn_dp == 1:
        return None
    if own.attn_dp > 1:
        return tp if own.dense_tp == own.tp else own.dense_tp
    return tp


def _experts(setup: Setup, tp: int, attn_dp: int) -> Iterator[tuple[int, str]]:
    """Expert parallelism that the engine has: any divisor or none (SGLang), all ranks or none (vLLM)."""
    if setup.launch.engine is EngineName.VLLM:
        yield from ((1, "all_gather"), (tp, "all_gather"))
        if attn_dp > 1:
            yield tp, "all_to_all"
        return
    yield from ((ep, "all_gather") for ep in divisors(tp))
    if tp > 1:
        yield tp, "all_to_all"
