"""Better commands: flags alone change, and what is told is what the engine accepts and starts with."""

import pytest

from explorer.engines.check.better import WRITERS, _degrees, _dense_tp, _layouts, better, changed, rewritten
from explorer.engines.command import read_launches
from explorer.engines.setup import Asked, setup_of
from explorer.engines.startup import startup
from explorer.engines.startup.parts import Parts

SGLANG = "python3 -m sglang.launch_server --model-path "
DEEPSEEK = f"{SGLANG}deepseek-ai/DeepSeek-V3 --tp 8"


def setup(command: str, hardware: str = "h200", **asked):
    (launch,) = read_launches(command)
    return setup_of(launch, Asked(hardware, context=5120, **asked))


def advice(command: str, hardware: str = "h200", **asked):
    found = setup(command, hardware, **asked)
    return found, better(found, Parts(found).tables)


@pytest.mark.smoke
def test_advice_is_a_command_that_means_its_layout_and_starts():
    found, rows = advice(DEEPSEEK, requests=64)
    assert rows
    for row in rows:
        assert row.gain >= 0.05 and row.changes
        flags = " ".join(
            change.flag if change.then == "on" else f"{change.flag} {change.then}"
            for change in row.changes
            if change.then is not None
        )
        again = setup(f"{DEEPSEEK} {flags}", requests=64)
        assert again.broken == ()
        assert again.request.layout(row.layout_text) == again.layout
        up = startup(again)
        assert up.starts and up.running_instance >= 64
        assert row.kv_tokens == up.group_tokens * up.groups
    assert len(rows[0].changes) == min(len(row.changes) for row in rows)
    assert rows[-1].rate == max(row.rate for row in rows)
    assert found.layout not in {found.request.layout(row.layout_text) for row in rows}


def test_dense_layers_keep_the_default_of_the_engine():
    """Attention DP does not change how a dense MLP is cut unless it is asked to: no advice asks for it."""
    found = setup(DEEPSEEK)
    for degrees in _degrees(found):
        assert degrees.dense_tp == (degrees.tp if degrees.attn_dp > 1 else None)
    own = setup(f"{DEEPSEEK} --attn-dp-size 8 --moe-dense-tp-size 1").settings.degrees
    assert [_dense_tp(own, 8, 4), _dense_tp(own, 8, 1), _dense_tp(own, 4, 4)] == [1, None, 1]
    own = setup(f"{DEEPSEEK} --attn-dp-size 8 --enable-dense-mlp-attn-tp").settings.degrees
    assert _dense_tp(own, 8, 4) is None


@pytest.mark.parametrize(
    "command",
    [
        DEEPSEEK,
        f"{DEEPSEEK} --attn-dp-size 8 --moe-a2a-backend deepep --enable-dp-lm-head",
        f"{DEEPSEEK} --attn-dp-size 4 --moe-a2a-backend deepep --ep-size 8",
        "vllm serve deepseek-ai/DeepSeek-V3 -tp 2 -dp 4 --enable-expert-parallel",
        "vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 8",
        f"{SGLANG}meta-llama/Llama-3.1-70B --tp 8",
    ],
)
def test_every_candidate_is_what_its_flags_say(command):
    """The layout that is priced is that of the command with the changed flags, on as many GPUs."""
    found = setup(command)
    seen = 0
    for layout, settings in list(_layouts(found))[::3]:
        again = setup_of(rewritten(found.launch, found.settings, settings), found.asked)
        assert again.request.gpus == found.request.gpus
        if not again.broken:
            assert again.layout == layout, settings.degrees
            seen += 1
    assert seen > 2


def test_vllm_has_experts_on_all_ranks_or_on_none():
    found = setup("vllm serve deepseek-ai/DeepSeek-V3 -tp 8")
    assert {degrees.ep for degrees in _degrees(found) if degrees.pp == 1} == {1, 8}
    assert all(degrees.exchange == "all_gather" for degrees in _degrees(found) if degrees.attn_dp == 1)


def test_models_without_experts_are_cut_without_them():
    found = setup(f"{SGLANG}meta-llama/Llama-3.1-70B --tp 8")
    assert {(degrees.ep, degrees.exchange) for degrees in _degrees(found)} == {(1, "all_gather")}


def test_changes_are_flags_that_are_set_changed_or_left_out():
    before = setup(f"{DEEPSEEK} --attn-dp-size 8 --moe-a2a-backend deepep").settings
    after = setup(f"{DEEPSEEK} --attn-dp-size 4 --ep-size 2 --enable-dp-lm-head").settings
    assert changed(before, before) == ()
    rows = {change.flag: (change.now, change.then) for change in changed(before, after)}
    assert rows == {
        "--attn-dp-size": ("8", "4"),
        "--ep-size": (None, "2"),
        "--moe-a2a-backend": ("deepep", None),
        "--enable-dp-lm-head": (None, "on"),
    }
    assert set(WRITERS) == {before.engine, setup("vllm serve meta-llama/Llama-3.1-8B").settings.engine}


def test_a_flag_that_is_left_out_is_gone_and_others_stay():
    found = setup(f"{DEEPSEEK} --dcp-size 8 --host 0.0.0.0 --mem-fraction-static 0.85")
    after = setup(f"{DEEPSEEK} --mem-fraction-static 0.85").settings
    values = rewritten(found.launch, found.settings, after).values
    assert "dcp_size" not in values
    assert (values["host"], values["mem_fraction_static"], values["tp_size"]) == ("0.0.0.0", 0.85, 8)


def test_nothing_is_told_of_what_is_as_good_as_it_gets():
    """One GPU has no other cut."""
    assert advice("vllm serve meta-llama/Llama-3.1-8B", "h100", requests=8)[1] == ()
