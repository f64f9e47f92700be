"""How well the shipped curves do against public op tables, most of whose rows no curve was fitted to.

    python -m experiments.op_tables            the stored result
    python -m experiments.op_tables --measure  compared again with the installed tables (the extra `tables`), and stored
    python -m experiments.op_tables --json     the document instead of the table

Every row of a table becomes the layouts' own op, priced by the chip's machine. `fitted` are the rows that stand in the
shipped tables (`experiments/data`), `others` those that do not: other sizes, formats and chips. `small` are problems
that the datasheet's rates alone would let end within 5 us, where a launch is most of the time. Nothing is fitted here.
A table's kernels are launched again and again on the same data, so that small ones find it in the cache; a step's do
not, and the curves are of a step. Two minutes.
"""

import argparse
import datetime
import json
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float
from rich.table import Table

from experiments.op_curves import attention
from experiments.op_curves.columns import Column, evaluate, named
from experiments.op_curves.expert_loads import dealt
from explorer.cli.output import stdout_console
from hw.arithmetic import Exact
from hw.compat import in_x64
from hw.errors import MeshwrightError
from hw.machine import Machine, load_machine
from hw.tables import Kind, installed
from hw.tables.forms import FORMS, Columns
from hw.time import collective_seconds, compute_seconds
from hw.work import LAUNCHES, RATES, SHAPES, Collective, CollectiveKind, Work, sent_bytes
from layouts.gqa import GQA
from layouts.gqa import work as gqa_work
from layouts.kda import KDA
from layouts.kda import work as kda_work
from layouts.mla import work as mla_work
from layouts.moe import MoE
from layouts.moe import work as moe_work
from layouts.op import Op, gemm
from layouts.quantities import query_tiles
from layouts.symbols import ROWS
from layouts.tensor import FORMATS, Precision, Tensor

RESULTS: Final = pathlib.Path(__file__).parent / "results" / "op_tables.json"
CHIPS: Final = ("h100", "h200", "b200", "b300", "gb200", "gb300")
_MOST: Final = 3000  # rows of a group that are compared, drawn with a fixed seed
_SMALL: Final = 5e-6  # seconds at the datasheet's rates
_LAYER: Final = {"attn_tp": 1.0, "dcp": 1.0, "kv_head_ranks": 1.0, "expert_tp": 1.0, "by_all_to_all": 0.0}


@dataclass(frozen=True)
class Agreement:
    """Curve against table: fractions, of |curve / table - 1| the median and 90th percentile, of the signed the median.

    `rows`: `fitted` or `others`; `size`: `small` or `large`.
    """

    chip: str
    kind: str
    form: str
    rows: str
    size: str
    count: int
    median: float
    bias: float
    p90: float


Values = dict[str, Column | float]


def agreements(chip: str, engine: str, kinds: Collection[Kind] = tuple(Kind)) -> Iterator[Agreement]:
    """All groups of a chip: by table, format, size, and whether rows were fitted to."""
    tables, machine = installed(chip, engine), load_machine(chip)
    for kind, (priced, chosen) in _COMPARED.items():
        if kind not in kinds:
            continue
        columns = tables.rows(kind)
        if columns is None:
            continue
        column, words = FORMS[kind].format
        for form, word in words.items():
            rows = _drawn(columns, (columns[column] == word) & chosen(columns))
            if not len(rows["latency"]):
                continue
            seconds, least = priced(machine, form, rows)
            ratio = seconds / (1e-3 * rows["latency"]) - 1.0
            fitted, small = _fitted(chip, kind, form, rows), least < _SMALL
            for name, of_rows in (("fitted", fitted), ("others", ~fitted)):
                for size, of_size in (("small", small), ("large", ~small)):
                    if (here := of_rows & of_size).any():
                        yield Agreement(chip, str(kind), form, name, size, int(here.sum()), *_scored(ratio[here]))


def _scored(ratio: Column) -> tuple[float, ...]:
    figures = (np.median(np.abs(ratio)), np.median(ratio), np.quantile(np.abs(ratio), 0.9))
    return tuple(round(float(figure), 4) for figure in figures)


def _drawn(columns: Columns, wanted: Bool[np.ndarray, " rows"]) -> Columns:
    places = np.flatnonzero(wanted)
    if len(places) > _MOST:
        places = np.sort(np.random.default_rng(0).choice(places, _MOST, replace=False))
    return {name: column[places] for name, column in columns.items()}


def _fitted(chip: str, kind: Kind, form: str, rows: Columns) -> Bool[np.ndarray, " rows"]:
    """Rows that stand in the shipped tables, whose sizes are written in `experiments/op_curves`."""
    none = np.zeros(len(rows["latency"]), dtype=bool)
    if chip not in _FITTED_CHIPS.get(kind, ()) or (kind, chip, form) in _FLAGGED:
        return none
    if kind is Kind.GEMM:
        return (rows["k"] == 7168) & (rows["m"] <= 1024) & (form != "nvfp4")
    if kind is Kind.GROUPED:
        latent = (rows["hidden_size"] == 3584) & (rows["num_experts"] == 896)
        return latent | ((chip != "gb200") & (form == "fp8") & _limited(rows))
    return ~none


_LINEAR: Final = (Kind.STATE, Kind.STATE_CHUNK, Kind.CONVOLUTION, Kind.CONVOLUTION_PREFILL)
_FITTED_CHIPS: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.GEMM: ("b200", "h200"),
    Kind.ABSORBED: ("b200", "h200"),
    Kind.GROUPED: ("b200", "gb200", "h200"),
    Kind.MLA_DECODE: ("b200", "h200"),
    **dict.fromkeys(_LINEAR, ("b200", "gb200", "h200")),
    Kind.LIBRARY: ("b200", "gb200", "h100", "h200"),
    Kind.OWN_ALL_REDUCE: ("b200", "gb200", "h200"),
}
_FLAGGED: Final = {(Kind.MLA_DECODE, "h200", "fp8")}  # seen and left out: a fallback kernel


def _limited(rows: Columns) -> Bool[np.ndarray, " rows"]:
    """The shape whose router keeps to half of its experts: its loads are not `dealt`."""
    return (rows["hidden_size"] == 7168) & (rows["num_experts"] == 256) & (rows["topk"] == 8)


def _every(rows: Columns) -> Bool[np.ndarray, " rows"]:
    return np.ones(len(rows["latency"]), dtype=bool)


Priced = Callable[[Machine, str, Columns], tuple[Column, Column]]
Ops = Callable[..., Sequence[tuple[Op, Values]]]


def _kernels(ops: Ops, *sizes: str) -> Priced:
    """Seconds of rows whose ops depend on some sizes as a model's shape does; `ops` gets these and all rows of them."""

    def priced(machine: Machine, form: str, rows: Columns) -> tuple[Column, Column]:
        seconds, least = np.zeros((2, len(rows["latency"])))
        shape = np.stack([rows[name] for name in sizes], axis=1)
        found, place = np.unique(shape, axis=0, return_inverse=True)
        features: dict[int, list[tuple[Op, Values, np.ndarray]]] = {}
        for i, of_shape in enumerate(found):
            here = np.flatnonzero(place.reshape(-1) == i)
            part = {name: column[here] for name, column in rows.items()}
            for slot, (op, values) in enumerate(ops(machine, form, part, *map(int, of_shape))):
                features.setdefault(slot, []).append((op, values, here))
        for parts in features.values():
            order = np.concatenate([here for _, _, here in parts])
            both = _seconds(machine, parts)
            seconds[order] += both[0]
            least[order] += both[1]
        return seconds, least

    return priced


@in_x64
def _seconds(machine: Machine, parts: Sequence[tuple[Op, Values, np.ndarray]]) -> Float[np.ndarray, "2 rows"]:
    """One op of all shapes, priced at once: by its curve, and by the datasheet alone."""
    families, rates = [], []
    columns: dict[str, list[Column]] = {name: [] for name in ("flops", "bytes", *SHAPES)}
    for op, values, here in parts:
        assert op.family is not None
        families += [op.family] * len(here)
        rates += [op.rate] * len(here)
        stated = {"flops": op.flops, "bytes": op.bytes, **op.shape}
        for name, column in columns.items():
            value = evaluate(stated[name], {**_LAYER, **values}) if name in stated else float(name == LAUNCHES)
            column.append(np.broadcast_to(np.asarray(value, dtype=float), len(here)))
    joined = {name: np.concatenate(column) for name, column in columns.items()}
    peak = np.asarray(machine.peak)[[RATES.index(rate) for rate in rates]]
    least = np.maximum(joined["bytes"] / float(machine.hbm_bandwidth), joined["flops"] / peak)
    return np.stack([compute_seconds(Exact(), machine, Work.of(families, rates, **joined)), least])


@in_x64
def _exchange(machine: Machine, form: str, rows: Columns) -> tuple[Column, Column]:
    payload, kind = rows["bytes" if "bytes" in rows else "message_size"], CollectiveKind(form)
    asked = Collective.of([kind] * len(payload), payload, rows["num_gpus"])
    least = np.asarray(sent_bytes(asked.kind, asked.payload, asked.size)) / float(machine.link_bandwidth)
    return np.asarray(collective_seconds(Exact(), machine, asked)), least


def _gemm(machine: Machine, form: str, rows: Columns, columns: int, inner: int) -> Any:
    weight = Tensor("weight", columns, inner, "dense", ROWS)
    return [(gemm(weight, Precision({"dense": FORMATS[form]})), {"rows": rows["m"]})]


def _absorbed(machine: Machine, form: str, rows: Columns, heads: int, columns: int, inner: int) -> Any:
    weight = Tensor("weight", heads * columns, inner, "dense", ROWS, heads=heads)
    return [(gemm(weight, Precision({"dense": FORMATS[form]})), {"rows": rows["num_tokens"]})]


def _grouped(
    machine: Machine, form: str, rows: Columns, hidden: int, inner: int, experts: int, topk: int, tp: int, ep: int
) -> Any:
    """Both products and the activation between them, on the rank's share of rows dealt out evenly."""
    loads = [dealt(int(tokens), experts, topk)[: experts // ep] for tokens in rows["num_tokens"]]
    values: Values = {
        "moe_rows": rows["num_tokens"].astype(float),
        "expert_rows": np.array([load.sum() for load in loads], dtype=float),
        "experts_touched": np.array([np.count_nonzero(load) for load in loads], dtype=float),
        "experts_rank": experts / ep,
        "expert_tp": float(tp),
    }
    moe = MoE(hidden, experts, topk, inner, 0, 0, bias=False)
    ops = moe_work.work(moe, moe.tensors(), Precision({"experts": FORMATS[form]}))
    return [(named(ops, name), values) for name in ("w13", "w2", "expert_activation")]


def _mla_decode(machine: Machine, form: str, rows: Columns, heads: int) -> Any:
    requests, tokens = rows["batch_size"].astype(float), rows["tokens"].astype(float)
    tiles = np.asarray(query_tiles(Exact(), np.full(len(tokens), float(heads)), np.ones(len(tokens))))
    splits = attention.splits(int(machine.sms), requests, tiles, tokens)
    grid = {"attention_splits": splits, "attention_ctas": 2.0 * requests * tiles * splits}
    values = {"kv_tokens": requests * tokens, "rows": requests, "verify": 1.0, **grid}
    ops = mla_work.decode(attention.mla(heads), (), Precision({"kv": FORMATS[form]}))
    return [(named(ops, "mla_decode"), values)]


def _prompts(rows: Columns) -> Values:
    tokens = rows["isl"].astype(float)
    every = rows["batch_size"] * tokens
    return {"rows": every, "kv_tokens": every, "prefix_tokens": tokens / 2, "requests": rows["batch_size"] * 1.0}


def _mla_prefill(machine: Machine, form: str, rows: Columns, heads: int) -> Any:
    ops = mla_work.prefill(attention.mla(heads), (), Precision({"kv": FORMATS[form]}))
    return [(named(ops, "mla_prefill"), _prompts(rows))]


def _gqa(heads: int, pairs: int, width: int) -> GQA:
    return GQA(4096, heads, pairs, width, 0, bias=False, qk_norm=False)


def _heads_decode(machine: Machine, form: str, rows: Columns, heads: int, pairs: int, width: int) -> Any:
    requests = rows["batch_size"].astype(float)
    values = {"kv_tokens": requests * rows["tokens"], "rows": requests, "verify": 1.0}
    ops = gqa_work.decode(_gqa(heads, pairs, width), (), Precision({"kv": FORMATS[form]}))
    return [(named(ops, "gqa_decode"), values)]


def _heads_prefill(machine: Machine, form: str, rows: Columns, heads: int, pairs: int, width: int) -> Any:
    ops = gqa_work.prefill(_gqa(heads, pairs, width), (), Precision({"kv": FORMATS[form]}))
    return [(named(ops, "gqa_prefill"), _prompts(rows))]


def _linear(name: str, decode: bool) -> Ops:
    def ops(machine: Machine, form: str, rows: Columns, heads: int) -> Any:
        kda = KDA(7168, heads, 128, 4, full_rank_gate=True)
        tokens = rows["seq_len"].astype(float)
        requests = rows["batch_size"].astype(float)
        values = {"requests": requests, "rows": requests * tokens, "verify": tokens}
        made = (kda_work.decode if decode else kda_work.prefill)(kda, (), Precision({"state": FORMATS["fp32"]}))
        return [(named(made, name), values)]

    return ops


def _full(rows: Columns) -> Bool[np.ndarray, " rows"]:
    """Without a sliding window, and where there are fewer KV heads than heads or as many."""
    return (rows["window_size"] == 0) & (rows["num_heads"] % rows["num_key_value_heads"] == 0)


def _in_kv_format(rows: Columns) -> Bool[np.ndarray, " rows"]:
    """Those that compute in the format of the cache: over a narrower one, other kernels than the engine's take over."""
    return _full(rows) & (rows["attn_dtype"] == rows["kv_cache_dtype"])


def _even(rows: Columns) -> Bool[np.ndarray, " rows"]:
    whole = (rows["num_experts"] % rows["topk"] == 0) & (rows["num_experts"] % rows["moe_ep_size"] == 0)
    return (rows["distribution"] == "balanced") & whole & ~_limited(rows)


def _own(rows: Columns) -> Bool[np.ndarray, " rows"]:
    """Of the engine's kernel, launched by a graph as in a step, and up to where it hands over to the library."""
    return (rows["message_size"] <= 8 * 2**20) & (np.char.find(rows["kernel_source"].astype(str), "eager") < 0)


_MOE: Final = ("hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
_PAIRS: Final = ("num_heads", "num_key_value_heads", "head_dim")
_COMPARED: Final[Mapping[Kind, tuple[Priced, Callable[[Columns], Bool[np.ndarray, " rows"]]]]] = {
    Kind.GEMM: (_kernels(_gemm, "n", "k"), _every),
    Kind.ABSORBED: (_kernels(_absorbed, "num_heads", "columns", "inner"), _every),
    Kind.GROUPED: (_kernels(_grouped, *_MOE), _even),
    Kind.MLA_DECODE: (_kernels(_mla_decode, "num_heads"), _every),
    Kind.MLA_PREFILL: (_kernels(_mla_prefill, "num_heads"), _every),
    Kind.HEADS_DECODE: (_kernels(_heads_decode, *_PAIRS), _full),
    Kind.HEADS_PREFILL: (_kernels(_heads_prefill, *_PAIRS), _in_kv_format),
    Kind.STATE: (_kernels(_linear("kda_state", True), "num_v_heads"), lambda rows: rows["kernel"] == "state"),
    Kind.STATE_CHUNK: (_kernels(_linear("kda_chunk", False), "num_v_heads"), lambda rows: rows["kernel"] == "state"),
    # the curve of an all-reduce is of the faster of engine and library: by rows of the engine's own kernel alone
    Kind.LIBRARY: (_exchange, lambda rows: rows["op_name"] != "all_reduce"),
    Kind.OWN_ALL_REDUCE: (_exchange, _own),
}


def _drawing(document: Mapping[str, Any]) -> Table:
    head = ("chip", "table", "format", "rows", "size", "count", "median %", "bias %", "90th %")
    table = Table(*head, title=document["tables"])
    for row in document["agreements"]:
        figures = (f"{100 * row['median']:.1f}", f"{100 * row['bias']:+.1f}", f"{100 * row['p90']:.1f}")
        named = (row[key] for key in ("chip", "kind", "form", "rows", "size"))
        table.add_row(*named, str(row["count"]), *figures)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or show; 2 with one line where there are no tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="compare with the installed tables, and store it")
    parser.add_argument("--engine", default="sglang", help="whose tables")
    parser.add_argument("--json", action="store_true", help="print the document")
    options = parser.parse_args(arguments)
    try:
        if options.measure:
            found = [asdict(a) for chip in CHIPS for a in agreements(chip, options.engine)]
            title = f"aiconfigurator-core 0.12.0 op tables of {options.engine} against the shipped curves"
            document = {"tables": title, "date": datetime.date.today().isoformat(), "agreements": found}
            RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except MeshwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    print(json.dumps(document, indent=2)) if options.json else stdout_console().print(_drawing(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
