"""Nearby commands of the same engine on the same GPUs, priced in one batch: the nearest better one, and the best."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np

from explorer.engines import sglang, vllm
from explorer.engines.command.launch import EngineName, Value
from explorer.engines.settings import Degrees, Settings
from explorer.engines.setup import Setup, layout_keys
from explorer.engines.values import flag
from explorer.evaluate import Tables, evaluate_batch
from layouts.cut import cuts_of
from layouts.enumerate import divisors
from layouts.layout import Layout, resolve
from layouts.rules import broken
from layouts.text import text_of

WRITERS: Final = {EngineName.SGLANG: sglang.write, EngineName.VLLM: vllm.write}
_GAIN: Final = 0.05  # of the rate, below which an advice is noise
_WIDEST: Final = 4096  # candidates of a search


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
    """The nearest command that is at least 5 % faster at the load asked and the fastest, where there are such."""
    settings, request = setup.settings, setup.request
    tried = dict(_layouts(setup))
    tried.setdefault(setup.layout, settings)
    layouts = list(tried)
    found = evaluate_batch(tables, cuts_of(layouts), request.case())
    rates = np.where(found.feasible, found.tokens_per_second, 0.0)
    own = float(np.asarray(found.tokens_per_second)[layouts.index(setup.layout)])
    faster = [row for row in np.argsort(-rates, kind="stable") if rates[row] > own * (1 + _GAIN)]
    if not faster:
        return ()
    changes = {int(row): changed(settings, tried[layouts[row]]) for row in faster}
    nearest = min(changes, key=lambda row: (len(changes[row]), -rates[row]))
    chosen = dict.fromkeys((nearest, int(faster[0])))
    return tuple(
        Better(
            text_of(layouts[row], request.model),
            changes[row],
            float(found.step[row]),
            float(rates[row]),
            int(found.kv_tokens_instance[row]),
            float(rates[row]) / own - 1.0,
        )
        for row in chosen
    )


def changed(now: Settings, then: Settings) -> tuple[Change, ...]:
    """Flags in which two settings of one engine differ."""
    before, after = (WRITERS[now.engine](settings)[0] for settings in (now, then))
    names = dict.fromkeys([*before, *after])
    return tuple(
        Change(flag(name), _shown(before.get(name)), _shown(after.get(name)))
        for name in names
        if before.get(name) != after.get(name)
    )


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
                yield plain
                if attn_dp > 1 and setup.launch.engine is EngineName.SGLANG:
                    yield replace(plain, vocab_in_group=not own.vocab_in_group)


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
