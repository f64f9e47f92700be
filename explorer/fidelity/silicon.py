"""Rows of `silicon_sample_fit.csv`: one served run a row, layout in columns, concurrency inside a text column."""

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from explorer.fidelity import names
from explorer.fidelity.cells import Cells, RowError
from explorer.fidelity.runs import Pool, Run
from hw.figures import chip_names, read_chip

NEEDED: Final = (
    *("id", "silicon_data_source", "backend", "model_path", "system", "mode", "isl", "osl"),
    *("tp_size", "prefill_tp_size", "decode_tp_size", "silicon_ttft_ms", "silicon_tpot_ms"),
)
_DEGREES: Final = MappingProxyType(
    {
        "workers": "num_workers",
        "tp": "tp_size",
        "pp": "pp_size",
        "attention_dp": "attention_dp_size",
        "moe_tp": "moe_tp_size",
        "moe_ep": "moe_ep_size",
        "batch": "batch_size",
    }
)
OPTIONAL: Final = (
    *("backend_version", "precision", "gemm_quant_mode", "moe_quant_mode", "kv_quant_mode", "concurrency"),
    *(p + column for p in ("", "prefill_", "decode_") for column in _DEGREES.values() if p + column not in NEEDED),
)
QUANTITIES: Final = ("tpot", "ttft")
_CONCURRENCY: Final = re.compile(r"\bsilicon_concurrency=([0-9]+)(?![0-9.])")


def read_row(cells: Cells, run_id: str, source: str) -> Run:
    """The run of one row; raises RowError with the column at fault."""
    mode = cells.needed("mode")
    if mode not in ("agg", "disagg"):
        raise RowError(f"mode is {mode[:40]!r}, not agg or disagg")
    model, system = cells.needed("model_path"), cells.needed("system")
    stated = cells.text("precision")
    inputs, outputs = cells.count("isl"), cells.count("osl")
    if inputs is None or outputs is None:
        raise RowError("isl and osl must both be stated")
    run = Run(
        id=run_id,
        source=source,
        model=names.model(model),
        stated_model=model,
        hardware=names.hardware(system),
        engine=names.engine(cells.needed("backend")),
        engine_version=cells.text("backend_version"),
        gemm=cells.text("gemm_quant_mode") or stated,
        moe=cells.text("moe_quant_mode") or stated,
        kv=cells.text("kv_quant_mode"),
        mode=mode,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=_concurrency(cells),
        shortest=names.shortest(cells.text("silicon_data_source") or ""),
        measured=_measured(cells),
    )
    if mode == "agg":
        return _squared(replace(run, pool=_with_workers(_pool(cells, ""), run.concurrency)))
    return replace(run, prefill=_pool(cells, "prefill_"), decode=_pool(cells, "decode_"))


def _concurrency(cells: Cells) -> int | None:
    """Requests in flight: a column of that name if there is one, else what the text of the source says."""
    found = _CONCURRENCY.search(cells.text("silicon_data_source") or "")
    return cells.count("concurrency") or (int(found[1]) or None if found else None)


def _measured(cells: Cells) -> MappingProxyType[str, float]:
    milliseconds = {quantity: cells.number(f"silicon_{quantity}_ms") for quantity in QUANTITIES}
    known = {quantity: value * 1e-3 for quantity, value in milliseconds.items() if value is not None}
    if not known:
        raise RowError("neither silicon_ttft_ms nor silicon_tpot_ms is stated")
    return MappingProxyType(known)


def _pool(cells: Cells, prefix: str) -> Pool:
    """The pool in the columns with a prefix; raises RowError if its tp is blank or its experts do not fill it."""
    pool = Pool(**{name: cells.count(prefix + column) for name, column in _DEGREES.items()})
    if pool.tp is None:
        raise RowError(f"{prefix}tp_size is blank")
    if pool.moe_tp is not None and pool.moe_ep is not None and pool.moe_tp * pool.moe_ep not in (1, _width(pool)):
        raise RowError(
            f"{prefix}moe_tp_size * {prefix}moe_ep_size is {pool.moe_tp * pool.moe_ep}, "
            f"not {prefix}tp_size * {prefix}attention_dp_size = {_width(pool)}"
        )
    return pool


def _with_workers(pool: Pool, concurrency: int | None) -> Pool:
    """The pool of an aggregated run with its workers, for which the table has no column: requests in flight over those
    of one worker where that is a whole number, one where the table does not say."""
    if concurrency is None or pool.batch is None:
        return replace(pool, workers=1)
    workers, rest = divmod(concurrency, pool.batch * (pool.attention_dp or 1))
    return replace(pool, workers=1 if rest else workers)


def _width(pool: Pool) -> int:
    return (pool.tp or 1) * (pool.attention_dp or 1)


def _squared(run: Run) -> Run:
    """A run on n GPUs with EP n that was written down as n * n GPUs, read as what it was.

    In some of the table's sources `tp=8, ep=8` means 8 GPUs with whole experts; it was copied as 64 GPUs with experts
    cut 8 x 8, for machines whose scale-up domain is 8 GPUs. Nine of these runs are also there as 8 or 4 GPUs, with the
    same figures to the last digit. The stated batch is of one rank, so it grows where attention-DP shrinks.
    """
    pool = run.pool
    if pool is None or pool.moe_ep is None or pool.moe_ep == 1 or pool.moe_tp != pool.moe_ep:
        return run
    n = pool.moe_ep
    if run.hardware not in chip_names() or _width(pool) <= read_chip(run.hardware)["domain"].value:
        return run
    if (pool.attention_dp or 1) > 1:
        batch = None if pool.batch is None else pool.batch * n
        real = replace(pool, attention_dp=n, moe_tp=1, batch=batch)
    else:
        real = replace(pool, tp=n, moe_tp=1)
    why = f"stated on {n * n} GPUs with experts cut {n} x {n}; read as {n} GPUs with EP {n}"
    return replace(run, pool=real, repaired=why)
