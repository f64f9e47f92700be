"""Every valid layout of a number of GPUs, as arrays: axes are joined one after the other, and rules cut early."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Int

from layouts.cut import Cut
from layouts.layout import (
    DCP_BACKENDS,
    DISPATCHES,
    PADDINGS,
    Layout,
    ShardedLayers,
    default_sharded_layers,
    resolve,
)
from layouts.rules import RULES, LayoutError, Site, broken
from layouts.text import text_of

_ATTENTION: Final = ("replicas", "pp", "attn_dp", "attn_tp", "attn_cp")
_EXPERTS: Final = ("ep", "expert_tp", "moe_dp")
_NEAREST: Final = 2
_CHOICES: Final = {"dcp_backend": DCP_BACKENDS, "dispatch": DISPATCHES, "padding": PADDINGS}


def divisors(n: int) -> tuple[int, ...]:
    """Every positive divisor of n, smallest first."""
    return tuple(d for d in range(1, n + 1) if n % d == 0)


def factorings(n: int, parts: int) -> Int[np.ndarray, "factorings parts"]:
    """Every ordered way to write n as a product of `parts` positive integers."""

    def ways(rest: int, left: int) -> Iterator[tuple[int, ...]]:
        if left == 1:
            yield (rest,)
            return
        for d in divisors(rest):
            for tail in ways(rest // d, left - 1):
                yield (d, *tail)

    return np.array(list(ways(n, parts)), np.int64)


@dataclass(frozen=True)
class Space:
    """Valid layouts as columns, one array a key (choices as indices, sharded layers as first, last, draft)."""

    columns: dict[str, Int[np.ndarray, " layouts"]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def take(self, rows: Int[np.ndarray, " rows"]) -> "Space":
        return Space({name: column[rows] for name, column in self.columns.items()})

    def layout(self, row: int) -> Layout:
        """One of them as a layout."""
        values: dict[str, Any] = {n: int(c[row]) for n, c in self.columns.items() if n not in _SHARDED}
        first, last, draft = (int(self.columns[n][row]) for n in _SHARDED)
        values["weight_shard_layers"] = ShardedLayers(first, last, bool(draft))
        return Layout(**{n: _CHOICES[n][v] if n in _CHOICES else v for n, v in values.items()})

    def cuts(self) -> Cut:
        """All of them as one batch of exact cuts."""
        one_hot = {n: np.eye(len(c))[self.columns[n]] for n, c in _CHOICES.items()}
        real = {n: c.astype(np.float64) for n, c in self.columns.items() if n not in _CHOICES}
        return Cut(**real, **one_hot)


_SHARDED: Final = ("sharded_first", "sharded_last", "sharded_draft")


def axes(site: Site) -> Iterator[tuple[tuple[str, ...], Int[np.ndarray, "options keys"]]]:
    """Groups of keys that are chosen together, each with its options, in the order in which they are joined."""
    cp = divisors(site.gpus) if site.prefill else (1,)
    ways = [(*way, c) for c in cp for way in factorings(site.gpus // c, 4)]
    yield _ATTENTION, np.array(ways, np.int64)
    yield ("dcp",), _column((1,) if site.prefill else divisors(site.gpus))
    yield _EXPERTS, np.concatenate([factorings(tp, 3) for tp in divisors(site.gpus)])
    yield ("weight_shard", *_SHARDED), np.array(list(_shardings(site)), np.int64)
    for name, choices in _CHOICES.items():
        yield (name,), _column(range(len(choices)))
    yield ("vocab_tp",), _column(divisors(site.gpus))


def _column(options: Iterable[int]) -> Int[np.ndarray, "options 1"]:
    return np.array(list(options), np.int64)[:, None]


def _shardings(site: Site) -> Iterator[tuple[int, int, int, int]]:
    """Weight-shard widths of a host, each over the layers with experts, with and without the draft."""
    none, layers = ShardedLayers(), default_sharded_layers(site.model)
    yield 1, none.first, none.last, 0
    for width in divisors(site.gpus_per_host)[1:]:
        for draft in (0, 1) if site.model.draft is not None else (0,):
            yield width, layers.first, layers.last, draft


def enumerate_layouts(site: Site, limit: int | None = None) -> Space | None:
    """Every valid layout of the site; None when there are more than `limit`."""
    columns: dict[str, np.ndarray] = {}
    for names, options in axes(site):
        columns = _joined(columns, names, options, site)
        if limit is not None and len(columns[names[0]]) > limit:
            return None
    return Space(columns)


def nearest_layouts(target: Mapping[str, Any], site: Site, count: int) -> Space:
    """The valid layouts nearest to a relaxed or invalid one, nearest first, found by a beam of `count` over the axes.

    `target` has a real number for each degree it cares about (compared in doublings) and, for a choice, the weights of
    its alternatives. Keys that it leaves out do not count.
    """
    columns: dict[str, np.ndarray] = {}
    away = np.zeros(1)
    for names, options in axes(site):
        columns["_away"] = away
        columns = _joined(columns, names, options, site)
        away = columns.pop("_away")
        for name in set(names) & set(target):
            away = away + _distance(name, columns[name], target[name])
        best = np.argsort(away, kind="stable")[:count]
        columns, away = {name: column[best] for name, column in columns.items()}, away[best]
    return Space(columns)


def _distance(name: str, column: np.ndarray, wanted: Any) -> np.ndarray:
    if name in _CHOICES:
        return 1.0 - np.asarray(wanted)[column]
    if name in _SHARDED:
        return np.abs(column - wanted) if name == "sharded_draft" else np.zeros(len(column))
    return np.abs(np.log2(column / wanted))


def nearest(layout: Layout, site: Site) -> tuple[str, ...]:
    """Texts of the valid layouts nearest to an invalid one; their other keys are derived."""
    degrees = (*_ATTENTION, "dcp", *_EXPERTS)
    space = nearest_layouts({name: max(getattr(layout, name), 1) for name in degrees}, site, 64)
    texts: list[str] = []
    for row in range(len(space)):
        found = resolve({name: int(space.columns[name][row]) for name in degrees}, site.gpus, site.model)
        text = text_of(found, site.model)
        if not broken(found, site) and text not in texts:
            texts.append(text)
    return tuple(texts[:_NEAREST])


def checked(layout: Layout, site: Site, text: str | None = None) -> Layout:
    """The layout itself if it is valid; LayoutError with rule, values and nearest valid layouts if not.

    `text` is what the user wrote.
    """
    messages = broken(layout, site)
    if messages:
        # degrees derived from a product that does not come out would only add noise
        messages = messages[: 1 if layout.gpus != site.gpus else None]
        near = nearest(layout, site)
        hint = f"nearest valid: {' or '.join(near)}" if near else f"no layout of {site.gpus} GPUs is valid"
        raise LayoutError(f"layout {text or text_of(layout, site.model)}: {'; '.join(messages)}; {hint}")
    return layout


def _joined(
    columns: dict[str, np.ndarray], names: Sequence[str], options: Int[np.ndarray, "options keys"], site: Site
) -> dict[str, np.ndarray]:
    """Cross product with the options of some more keys, without what breaks a rule that has just become decidable."""
    rows = len(next(iter(columns.values()))) if columns else 1
    joined = {name: np.repeat(column, len(options)) for name, column in columns.items()}
    joined |= {name: np.tile(options[:, i], rows) for i, name in enumerate(names)}
    known, new = _keys(joined), _keys(names)
    view = _view(joined)
    keep = np.ones(rows * len(options), bool)
    for rule in RULES:
        if new & set(rule.keys) and set(rule.keys) <= known:
            keep &= np.broadcast_to(rule.holds(view, site), keep.shape)
    return {name: column[keep] for name, column in joined.items()}


def _keys(names: Iterable[str]) -> set[str]:
    return {"weight_shard_layers" if name in _SHARDED else name for name in names}


def _view(columns: dict[str, np.ndarray]) -> Any:
    """The columns under the names of a layout's fields, for rules to look at; keys not joined yet stay at one."""
    fields: dict[str, Any] = {n: c for n, c in columns.items() if n not in _SHARDED and n != "_away"}
    if set(_SHARDED) <= set(columns):
        first, last, draft = (columns[name] for name in _SHARDED)
        # rules read a whole column where a layout has one number
        fields["weight_shard_layers"] = ShardedLayers(first, last, draft)  # pyright: ignore[reportArgumentType]
    for name, choices in _CHOICES.items():
        if name in columns:
            fields[name] = np.array(choices)[columns[name]]
    return Layout(**fields)
