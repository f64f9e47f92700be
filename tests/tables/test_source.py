"""Finding and reading tables: which file answers, what is refused, and that nothing else is opened."""

import builtins
import io
import pathlib
import sys

import pytest

from hw.tables import Kind, OpTables, TablesError, installed
from hw.tables.forms import FORMS
from hw.tables.source import FOLDER_VARIABLE, version
from tests.tables.tree import gemm_rows, write

GEMM = "b200_sxm/gemm/sglang/{}/gemm_perf.parquet"
ASKED = {"rows": 48.0, "columns": 1024.0, "inner": 512.0}
SIZES = ([16, 32, 64], [512, 1024], [512, 1024])


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A `systems/data` that the environment names."""
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(data))
    return data


def test_a_product_between_rows(folder: pathlib.Path):
    write(folder, GEMM.format("0.5.14"), gemm_rows("bfloat16", 3.0, *SIZES))
    found = installed("b200").ask(Kind.GEMM, "bf16", ASKED)
    assert found is not None
    # 48 x 1024 x 512 products at 3 ms for 2^30
    assert found.seconds == pytest.approx(3e-3 * 48 * 1024 * 512 / 2**30)
    assert found.source == f"{FOLDER_VARIABLE} op table gemm b200_sxm sglang 0.5.14, interpolated"


def test_other_formats_are_not_covered(folder: pathlib.Path):
    write(folder, GEMM.format("0.5.14"), gemm_rows("bfloat16", 3.0, *SIZES))
    assert [installed("b200").ask(Kind.GEMM, form, ASKED) for form in ("fp8", "int4")] == [None, None]


def test_the_newest_version_that_covers_answers(folder: pathlib.Path):
    write(folder, GEMM.format("0.5.9"), gemm_rows("bfloat16", 9.0, *SIZES))
    write(folder, GEMM.format("0.5.14"), gemm_rows("bfloat16", 14.0, *SIZES))
    write(folder, GEMM.format("0.5.16"), gemm_rows("fp8_block", 16.0, *SIZES))
    found = installed("b200").ask(Kind.GEMM, "bf16", ASKED)
    assert found is not None
    assert found.seconds == pytest.approx(14e-3 * 48 * 1024 * 512 / 2**30)


def test_versions_sort_as_their_makers_count():
    ordered = ["0.1.dev19262", "0.5.6", "0.5.6.post2", "0.5.10", "1.3.0rc9", "1.3.0rc20", "1.3.0", "2.27", "2.27.3"]
    assert sorted(reversed(ordered), key=version) == ordered


def test_a_question_states_all_sizes_and_no_others(folder: pathlib.Path):
    write(folder, GEMM.format("0.5.14"), gemm_rows("bfloat16", 3.0, *SIZES))
    tables = installed("b200")
    with pytest.raises(ValueError, match="sizes are columns, inner, rows"):
        tables.ask(Kind.GEMM, "bf16", {"rows": 48.0, "columns": 1024.0})
    with pytest.raises(ValueError, match="not columns, heads, inner, rows"):
        tables.ask(Kind.GEMM, "bf16", {**ASKED, "heads": 2.0})


def _mla(kv: str, milliseconds: float) -> list[dict[str, object]]:
    return [
        {
            "kv_cache_dtype": kv,
            "num_heads": h,
            "batch_size": b,
            "isl": 1,
            "step": s - 1,
            "latency": milliseconds * b * s,
        }
        for h in (64, 128)
        for b in (1, 2)
        for s in (1024, 2048)
    ]


_DECODE = {"heads": 128.0, "requests": 2.0, "tokens": 1500.0, "latent": 512.0, "rope": 64.0, "verify": 1.0}


def test_context_counts_the_token_that_is_computed(folder: pathlib.Path):
    write(folder, "h200_sxm/mla/sglang/1/generation_mla_perf.parquet", _mla("bfloat16", 1e-5))
    found = installed("h200").ask(Kind.MLA_DECODE, "bf16", _DECODE)
    assert found is not None
    assert found.seconds == pytest.approx(1e-8 * 2 * 1500)


@pytest.mark.parametrize("other", [{"verify": 4.0}, {"latent": 256.0}, {"tokens": 4200.0}, {"requests": 0.0}])
def test_what_the_rows_do_not_share_is_not_covered(folder: pathlib.Path, other: dict[str, float]):
    write(folder, "h200_sxm/mla/sglang/1/generation_mla_perf.parquet", _mla("bfloat16", 1e-5))
    assert installed("h200").ask(Kind.MLA_DECODE, "bf16", {**_DECODE, **other}) is None


@pytest.mark.parametrize(("slower", "covered"), [(0.6, True), (1.9, True), (2.1, False)])
def test_a_narrow_format_that_falls_back_is_not_covered(folder: pathlib.Path, slower: float, covered: bool):
    rows = [*_mla("bfloat16", 1e-5), *_mla("fp8", slower * 1e-5)]
    write(folder, "h200_sxm/mla/sglang/1/generation_mla_perf.parquet", rows)
    assert (installed("h200").ask(Kind.MLA_DECODE, "fp8", _DECODE) is not None) is covered


def test_bytes_of_an_exchange_are_messages_times_their_width(folder: pathlib.Path):
    rows = [
        {"op_name": "alltoall", "nccl_dtype": t, "num_gpus": 4, "message_size": n, "latency": n * width / 1e3}
        for t, width, n in (("int8", 1, 1024), ("half", 2, 2048))
    ]
    write(folder, "gb200/comm/nccl/2.29.2/nccl_perf.parquet", rows)
    tables = installed("gb200", "trtllm")  # a library's table is no engine's
    found = tables.ask(Kind.LIBRARY, "all_to_all", {"ranks": 4.0, "bytes": 3000.0})
    assert found is not None
    assert found.seconds == pytest.approx(3000e-6)
    assert tables.ask(Kind.LIBRARY, "all_to_all", {"ranks": 8.0, "bytes": 3000.0}) is None


def test_convolution_and_recurrence_are_told_apart(folder: pathlib.Path):
    kernels = {("fused_kda", "generation"): 1.0, ("causal_conv1d_x", "generation"): 2.0, ("chunk_kda", "context"): 3.0}
    same = {"num_v_heads": 96, "seq_len": 1, "batch_size": 8, "head_v_dim": 128, "d_conv": 4}
    rows = [{**same, "kernel_source": k, "phase": p, "latency": t} for (k, p), t in kernels.items()]
    write(folder, "b200_sxm/kda/sglang/1/kda_perf.parquet", rows)
    asked = {"heads": 96.0, "requests": 8.0, "tokens": 1.0, "width": 128.0, "taps": 4.0}
    kinds = (Kind.STATE, Kind.CONVOLUTION, Kind.STATE_CHUNK, Kind.CONVOLUTION_PREFILL)
    found = [installed("b200").ask(kind, "fp32", asked) for kind in kinds]
    assert [None if f is None else round(1e6 * f.seconds) for f in found] == [1000, 2000, 3000, None]


def test_chips_go_by_their_boards(folder: pathlib.Path):
    write(folder, "rtx_pro_6000_server/gemm/sglang/1/gemm_perf.parquet", gemm_rows("bfloat16", 1.0, *SIZES))
    (folder / "h800").mkdir()  # a board without tables
    assert installed("rtx-pro-6000").folder.name == "rtx_pro_6000_server"
    with pytest.raises(TablesError, match=r"op tables of 'h800': there are those of rtx_pro_6000_server$"):
        installed("h800")


def test_other_engines_are_refused(folder: pathlib.Path):
    with pytest.raises(TablesError, match="'llamacpp': there are those of sglang, trtllm, vllm"):
        installed("b200", "llamacpp")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pyarrow", reason="reading op tables needs pyarrow (the extra `tables`)")
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("hw.tables.source._MODULE", "no_such_module_of_tables")
    with pytest.raises(TablesError, match=r"is not installed: pip install 'meshwright\[tables\]'"):
        installed("b200")


def test_without_a_reader_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TablesError, match=r"needs pyarrow: pip install 'meshwright\[tables\]'"):
        installed("b200")


def test_a_folder_that_is_none_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pyarrow", reason="reading op tables needs pyarrow (the extra `tables`)")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(TablesError, match="nowhere': is no folder"):
        installed("b200")


def test_only_the_tables_are_opened_and_nothing_is_imported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A package whose code raises, with files beside `systems/data` that must stay shut."""
    package = tmp_path / "decoy_of_tables"
    data = package / "systems" / "data"
    wanted = write(data, GEMM.format("0.5.14"), gemm_rows("bfloat16", 3.0, *SIZES))
    for place in ("__init__.py", "systems/__init__.py"):
        (package / place).write_text("raise AssertionError('imported')\n")
    for place in ("systems/other.parquet", "systems/data.parquet", "samples/x/y/z/gemm_perf.parquet"):
        (package / place).parent.mkdir(parents=True, exist_ok=True)
        (package / place).write_bytes(b"must stay shut")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr("hw.tables.source._MODULE", "decoy_of_tables")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.0.1")
    opened: list[str] = []
    true_open = io.open

    def watched(file: object, *args: object, **options: object) -> object:
        opened.append(str(file))
        return true_open(file, *args, **options)  # pyright: ignore

    monkeypatch.setattr(builtins, "open", watched)
    monkeypatch.setattr(io, "open", watched)
    found = installed("b200").ask(Kind.GEMM, "bf16", ASKED)
    assert found is not None
    assert found.source.startswith("aiconfigurator-core 0.0.1 op table gemm")
    assert [name for name in opened if str(package) in name] == [str(wanted)]
    assert "decoy_of_tables" not in sys.modules


def test_a_file_is_read_once(folder: pathlib.Path):
    path = write(folder, GEMM.format("0.5.14"), gemm_rows("bfloat16", 3.0, *SIZES))
    tables = installed("b200")
    first = tables.ask(Kind.GEMM, "bf16", ASKED)
    path.write_bytes(b"gone")
    assert tables.ask(Kind.GEMM, "bf16", ASKED) == first


def test_every_kind_has_a_form_whose_sizes_are_apart():
    for kind in Kind:
        form = FORMS[kind]
        assert len(form.sizes) == len(form.axes) + len(form.exact) + len(form.given)
    assert isinstance(OpTables(pathlib.Path("x"), "label", "sglang").ask(Kind.GEMM, "fp32", ASKED), type(None))


def _prompts(folder: pathlib.Path, place: str, **kernels: str) -> None:
    same = {"kv_cache_dtype": "bfloat16", "num_heads": 16, "batch_size": 2, "isl": 1024, "latency": 5.0, **kernels}
    pairs = {"num_key_value_heads": 2, "head_dim": 128, "window_size": 0}
    write(folder, place, [{**same, **pairs}])


_CHUNK = {"heads": 16.0, "requests": 2.0, "tokens": 1024.0, "reach": 1.0}
_MLA_CHUNK = {**_CHUNK, "latent": 512.0, "rope": 64.0, "nope": 128.0, "value": 128.0}
_GQA_CHUNK = {**_CHUNK, "kv_heads": 2.0, "width": 128.0, "window": 0.0}


@pytest.mark.parametrize(("kernel", "covered"), [("trtllm_mla", True), ("flash_attention", False)])
def test_prompts_over_latents_are_another_problem(folder: pathlib.Path, kernel: str, covered: bool):
    _prompts(folder, "h100_sxm/mla/sglang/1/context_mla_perf.parquet", kernel_source=kernel)
    assert (installed("h100").ask(Kind.MLA_PREFILL, "bf16", _MLA_CHUNK) is not None) is covered


@pytest.mark.parametrize(("reach", "covered"), [(1.0, True), (1.5, False)])
def test_prompts_with_a_prefix_are_another_problem(folder: pathlib.Path, reach: float, covered: bool):
    _prompts(folder, "h100_sxm/attention/sglang/1/context_attention_perf.parquet", attn_dtype="bfloat16")
    found = installed("h100").ask(Kind.HEADS_PREFILL, "bf16", {**_GQA_CHUNK, "reach": reach})
    assert (found is not None) is covered
