"""The tables of flags: what parsers' sources say, read by hand, and the reader of those sources on a made-up engine."""

import pathlib

import pytest

from experiments.flag_tables import sglang, vllm
from experiments.flag_tables.__main__ import main, tables, written
from experiments.flag_tables.sources import Sources
from explorer.engines.flags import table
from hw.errors import MeshwrightError


@pytest.mark.smoke
def test_versions_and_sizes() -> None:
    assert (table("sglang").version, table("vllm").version) == ("0.5.23", "0.33.0")
    assert len(table("sglang").flags) > 500
    assert len(table("vllm").flags) > 300


@pytest.mark.parametrize(
    ("engine", "name", "spellings", "kind", "default"),
    [
        ("sglang", "tp_size", ("--tp-size", "--tensor-parallel-size"), "count", 1),
        ("sglang", "attn_dp_size", ("--attn-dp-size", "--attention-data-parallel-size"), "count", 1),
        ("sglang", "ep_size", ("--ep-size", "--expert-parallel-size", "--ep"), "count", 1),
        ("sglang", "mem_fraction_static", ("--mem-fraction-static",), "number", None),
        ("sglang", "mamba_full_memory_ratio", ("--mamba-full-memory-ratio",), "number", None),
        ("sglang", "enable_dp_lm_head", ("--enable-dp-lm-head",), "switch", False),
        ("sglang", "cuda_graph_bs_decode", ("--cuda-graph-bs-decode",), "list", None),
        ("vllm", "tensor_parallel_size", ("--tensor-parallel-size", "-tp"), "count", 1),
        ("vllm", "gpu_memory_utilization", ("--gpu-memory-utilization", "--device-memory-utilization"), "number", 0.92),
        ("vllm", "enable_expert_parallel", ("--enable-expert-parallel", "-ep"), "optional-bool", False),
        ("vllm", "compilation_config", ("--compilation-config", "-cc"), "json", None),
        ("vllm", "enable_log_requests", ("--enable-log-requests",), "optional-bool", False),
        ("vllm", "port", ("--port",), "count", 8000),
    ],
)
def test_flags_that_matter(engine: str, name: str, spellings: tuple[str, ...], kind: str, default: object) -> None:
    """Read by hand in sglang/srt/arg_groups/fields and vllm/engine/arg_utils.py with vllm/config."""
    flag = table(engine).flags[name]
    assert (flag.spellings, flag.kind, flag.default) == (spellings, kind, default)


def test_choices() -> None:
    flags = table("sglang").flags
    assert flags["dcp_comm_backend"].choices == ("ag_rs", "a2a", "fi_a2a")
    assert flags["cp_strategy"].choices == ("zigzag", "interleave")
    assert flags["deepep_mode"].choices == ("auto", "normal", "low_latency")
    assert flags["mamba_full_memory_ratio"].fallback == 0.9
    flags = table("vllm").flags
    assert flags["dcp_comm_backend"].choices == ("a2a", "ag_rs")
    # a word that the kernels bind for themselves is no choice of the flag (EngineArgs.add_cli_args)
    assert "passthrough" not in " ".join(map(str, flags["all2all_backend"].choices))
    assert flags["kv_cache_dtype"].open
    assert "fp8_e4m3" in flags["kv_cache_dtype"].choices


def test_negations() -> None:
    known = table("vllm").spellings
    assert known["--no-enable-prefix-caching"] == (table("vllm").flags["enable_prefix_caching"], False)
    assert known["--disable-prefix-caching"] == (table("vllm").flags["enable_prefix_caching"], False)
    # a flag of its own is not taken for the negation of another
    assert known["--disable-log-stats"][1] is True
    assert "--no-enable-dp-lm-head" not in table("sglang").spellings


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_older_flags_lead_to_flags(engine: str) -> None:
    known = table(engine)
    for renamed in known.renamed.values():
        assert renamed.source
        targets = [renamed.to.partition(".")[0]] if renamed.to else []
        for name in (*targets, *renamed.sets, *renamed.moves, *renamed.copies):
            assert name in known.flags, renamed.spelling
        for name in (*renamed.moves.values(), *renamed.copies.values()):
            assert name in known.flags, renamed.spelling
        for name, value in renamed.sets.items():
            choices = known.flags[name].choices
            assert not choices or value in choices, renamed.spelling
        for word in renamed.write.split():
            if word.startswith("--"):
                assert word.partition(".")[0] in known.spellings, renamed.spelling


_FIELDS = """
from typing import List, Literal, Optional
from sglang.srt.arg_groups.arg_utils import A, Arg
from sglang.srt.arg_groups.choices import MODES

class Parallel:
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    width: A[int, Arg(help="x", aliases=["--breadth"])] = 2 * 4
    share: A[Optional[float], "x"] = None
    mode: A[Optional[str], Arg(help="x", choices=MODES + ["more"])] = "a"
    kind: A[Literal["p", "q"], "x"] = "q"
    step: A[Literal[1, 2], "x"] = 2
    sizes: A[Optional[List[int]], "x"] = None
    extra: A[Optional[dict], Arg(help="x", type_parser=json.loads)] = None
    inner: A[bool, Arg(no_cli=True)] = False
    on: A[bool, "x"] = False
    maybe: A[bool, Arg(help="x", action=argparse.BooleanOptionalAction)] = True
    other_name: A[int, Arg(help="x", cli_name="--named")] = -1
    derived: A[int, Derived()] = 0
"""
_ARGS = """
from sglang.srt.arg_groups.choices import MODES
from sglang.srt.arg_groups.fields.parallel import Parallel

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--old", action=DeprecatedStoreTrueAction, new_flag="--new")
        modes = set(MODES)
        parser.add_argument("--config", type=str)
        parser.add_argument("--late", type=int, choices=modes, default=_declared_default("width"))
"""


def _put(root: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_annotated_fields_are_read_without_running_them(tmp_path: pathlib.Path) -> None:
    root = _put(
        tmp_path,
        {
            "sglang/__init__.py": "raise SystemExit",
            "sglang/_version.py": "__version__ = '9.9'",
            "sglang/srt/server_args.py": _ARGS,
            "sglang/srt/arg_groups/choices.py": 'MODES = ["a", "b"]',
            "sglang/srt/arg_groups/fields/parallel.py": _FIELDS,
            "sglang/cli/serve.py": 'def _extract_model_type_override(w):\n    return w[0] == "x" or w == "--first"',
        },
    )
    version, rows = tables(root)["sglang"]
    assert version == "9.9"
    assert rows == {
        "model_path": {"spellings": ["--model-path", "--model"], "kind": "word"},
        "width": {"spellings": ["--width", "--breadth"], "kind": "count", "default": 8},
        "share": {"spellings": ["--share"], "kind": "number"},
        "mode": {"spellings": ["--mode"], "kind": "word", "choices": ["a", "b", "more"], "default": "a"},
        "kind": {"spellings": ["--kind"], "kind": "word", "choices": ["p", "q"], "default": "q"},
        "step": {"spellings": ["--step"], "kind": "count", "choices": [1, 2], "default": 2},
        "sizes": {"spellings": ["--sizes"], "kind": "list", "items": "count"},
        "extra": {"spellings": ["--extra"], "kind": "json"},
        "on": {"spellings": ["--on"], "kind": "switch", "default": False},
        "maybe": {"spellings": ["--maybe"], "kind": "optional-bool", "default": True},
        "named": {"spellings": ["--named"], "kind": "count", "default": -1, "field": "other_name"},
        "old": {"spellings": ["--old"], "kind": "switch"},
        "config": {"spellings": ["--config"], "kind": "word"},
        "first": {"spellings": ["--first"], "kind": "word"},
        "late": {"spellings": ["--late"], "kind": "count", "choices": ["a", "b"], "default": 8},
    }


_CONFIG = """
Mode = Literal["b", "a"]
Level = Literal[Mode, "c"]

@config
class Inner:
    x: int = 0

class Rank(IntEnum):
    ONE = 1

@config
class Outer:
    size: int = Field(default=1, ge=1)
    max_model_len: int | None = None
    share: float = 0.5
    level: Level | None = "a"
    kind: Mode | str = "b"
    inner: Inner = Field(default_factory=Inner)
    names: list[str] | None = None
    sizes: list[int] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    loose: str | dict[str, str] = ""
    on: bool = False
    rank: Rank = 2
"""
_ENGINE = """
from vllm.config import Outer

class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        outer_kwargs = get_kwargs(Outer)
        outer_kwargs["level"]["choices"].remove("b")
        group = parser.add_argument_group(title="x")
        group.add_argument("--size", "-s", **outer_kwargs["size"])
        group.add_argument("--max-model-len", **outer_kwargs["max_model_len"])
        group.add_argument("--share", **{**outer_kwargs["share"], "default": None})
        for_it = 1
        group.add_argument("--level", **outer_kwargs["level"])
        group.add_argument("--kind", **outer_kwargs["kind"])
        group.add_argument("--inner", **outer_kwargs["inner"])
        group.add_argument("--names", **outer_kwargs["names"])
        group.add_argument("--sizes", **outer_kwargs["sizes"])
        group.add_argument("--extra", **outer_kwargs["extra"])
        group.add_argument("--loose", **outer_kwargs["loose"])
        group.add_argument("--on", **outer_kwargs["on"])
        group.add_argument("--rank", **outer_kwargs["rank"])
        parser.add_argument("--plain", action="store_true")
        return parser

class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--chatty", action=argparse.BooleanOptionalAction, default=EngineArgs.missing)
"""
_SERVER = """
from vllm.config import Outer

@config
class BaseFrontendArgs:
    port: int = 8000
    origins: list[str] = field(default_factory=list)

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["origins"]["type"] = json.loads
        del frontend_kwargs["origins"]["nargs"]
        return frontend_kwargs

@config
class FrontendArgs(BaseFrontendArgs):
    middleware: list[str] = field(default_factory=list)

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs = super()._customize_cli_kwargs(frontend_kwargs)
        frontend_kwargs["middleware"]["action"] = "append"
        return frontend_kwargs

def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true", default=False)
    return parser
"""


def test_configuration_classes_are_read_without_running_them(tmp_path: pathlib.Path) -> None:
    root = _put(
        tmp_path,
        {
            "vllm/__init__.py": "raise SystemExit",
            "vllm/config/__init__.py": "from .outer import Outer",
            "vllm/config/outer.py": _CONFIG,
            "vllm/engine/arg_utils.py": _ENGINE,
            "vllm/entrypoints/common/cli_args.py": _SERVER,
        },
    )
    assert vllm.read(Sources(root, "vllm")) == {
        "headless": {"spellings": ["--headless"], "kind": "switch", "default": False},
        "port": {"spellings": ["--port"], "kind": "count", "default": 8000},
        "origins": {"spellings": ["--origins"], "kind": "json"},
        "middleware": {"spellings": ["--middleware"], "kind": "list", "items": "word", "repeated": True},
        "size": {"spellings": ["--size", "-s"], "kind": "count", "default": 1},
        "max_model_len": {"spellings": ["--max-model-len"], "kind": "count", "suffixes": True},
        "share": {"spellings": ["--share"], "kind": "number"},
        "level": {"spellings": ["--level"], "kind": "word", "choices": ["a", "c"], "default": "a"},
        "kind": {"spellings": ["--kind"], "kind": "word", "open": True, "choices": ["a", "b"], "default": "b"},
        "inner": {"spellings": ["--inner"], "kind": "json"},
        "names": {"spellings": ["--names"], "kind": "list", "items": "word"},
        "sizes": {"spellings": ["--sizes"], "kind": "list", "items": "count"},
        "extra": {"spellings": ["--extra"], "kind": "json"},
        "loose": {"spellings": ["--loose"], "kind": "json", "open": True, "default": ""},
        "on": {"spellings": ["--on"], "kind": "optional-bool", "default": False},
        "rank": {"spellings": ["--rank"], "kind": "count", "default": 2},
        "plain": {"spellings": ["--plain"], "kind": "switch"},
        "chatty": {"spellings": ["--chatty"], "kind": "optional-bool"},
    }


def test_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MeshwrightError, match="holds no engine"):
        tables(tmp_path)
    _put(
        tmp_path,
        {
            "sglang/__init__.py": "",
            "sglang/srt/server_args.py": _ARGS,
            "sglang/srt/arg_groups/choices.py": 'MODES = ["a", "b"]',
            "sglang/srt/arg_groups/fields/parallel.py": _FIELDS,
        },
    )
    assert main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert '[flags.width]\nspellings = ["--width", "--breadth"]\nkind = "count"\ndefault = 8\n' in text
    assert text.rstrip() == written("sglang", "", sglang.read(Sources(tmp_path, "sglang"))).rstrip()
