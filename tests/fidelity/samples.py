"""Rows of both formats to start from, and files made of them."""

import csv
import pathlib
from collections.abc import Mapping, Sequence
from typing import Final

from explorer.fidelity.points import NEEDED as POINTS_NEEDED
from explorer.fidelity.points import OPTIONAL as POINTS_OPTIONAL
from explorer.fidelity.silicon import NEEDED, OPTIONAL

AGG: Final[Mapping[str, str]] = {
    "id": "a",
    "silicon_data_source": "db; config_id=7; silicon_concurrency=64; measured=2026-03-25; image=x:1",
    "backend": "sglang",
    "backend_version": "0.5.9",
    "model_path": "deepseek-ai/DeepSeek-R1",
    "system": "b200_sxm",
    "precision": "fp8",
    "mode": "agg",
    "isl": "1024",
    "osl": "512",
    "gemm_quant_mode": "fp8",
    "moe_quant_mode": "fp8_block",
    "batch_size": "64",
    "tp_size": "8",
    "pp_size": "1",
    "attention_dp_size": "1",
    "moe_tp_size": "8",
    "moe_ep_size": "1",
    "silicon_ttft_ms": "250",
    "silicon_tpot_ms": "12.5",
}
DISAGG: Final[Mapping[str, str]] = {
    **{k: v for k, v in AGG.items() if not k.endswith("_size")},
    "id": "d",
    "mode": "disagg",
    "prefill_num_workers": "5",
    "prefill_tp_size": "4",
    "prefill_moe_tp_size": "1",
    "prefill_moe_ep_size": "4",
    "prefill_batch_size": "1",
    "decode_num_workers": "2",
    "decode_tp_size": "2",
    "decode_attention_dp_size": "8",
    "decode_moe_tp_size": "1",
    "decode_moe_ep_size": "16",
    "decode_batch_size": "4",
}
POINT: Final[Mapping[str, str]] = {
    "id": "p",
    "source": "sgl-project/sglang pull 1",
    "model": "kimi-k3",
    "hardware": "b300",
    "gpus": "8",
    "layout": "attn_dp=1,attn_tp=8",
    "phase": "serve",
    "input_tokens": "8192",
    "output_tokens": "1024",
    "context": "8704",
    "concurrency": "16",
    "verify_width": "8",
    "accept_length": "4.5",
    "quantity": "tpot",
    "value": "9.88",
    "unit": "ms",
    "note": "one, two",
}
SILICON_COLUMNS: Final = (*NEEDED, *OPTIONAL)
POINTS_COLUMNS: Final = (*POINTS_NEEDED, *POINTS_OPTIONAL)


def write(path: pathlib.Path, columns: Sequence[str], *rows: Mapping[str, str]) -> pathlib.Path:
    """A CSV file with these columns; a row leaves out what is blank."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
