"""Every pattern of `patterns.toml` reads a line in the format of the source or the log that it cites."""

import re

import pytest

from explorer.engines.logs.entries import Event, Reading
from explorer.engines.logs.patterns import Pattern, all_patterns
from tests.engines.lines_of_sglang import SGLANG
from tests.engines.lines_of_vllm import VLLM
from tests.engines.readings import is_reading

LINES = [*SGLANG, *VLLM]


@pytest.mark.parametrize(("event", "line", "values"), LINES)
def test_a_line_is_read(event, line, values):
    (found,) = [read.values for read in all_patterns().read(line) if read.event is event]
    assert found is not None and set(found) == set(values)
    for name, value in values.items():
        if isinstance(value, Reading):
            assert is_reading(found[name], value.value, value.half_width), name
        else:
            assert found[name] == value


def all_of(event: Event) -> tuple[Pattern, ...]:
    return all_patterns().by_event[event]


def test_every_pattern_has_a_line_that_it_is_the_first_to_read():
    units: dict[str, float] = dict.fromkeys(("GiB", "MiB", "KiB", "B", "bytes", "s", "ratio"), 1.0)
    firsts = {
        (event, next(n for n, pattern in enumerate(all_of(event)) if pattern.read(line, units) is not None))
        for event, line, _ in LINES
    }
    assert firsts == {(event, n) for event in Event for n in range(len(all_of(event)))}


def test_every_figure_is_read_of_some_line():
    read = {(event, name) for event, _, values in LINES for name in values}
    assert {(event, name) for event in Event for p in all_of(event) for name in p.figures} <= read


def test_every_event_has_a_pattern_and_says_where_it_was_read():
    assert all(all_of(event) for event in Event)
    assert all(source for event in Event for pattern in all_of(event) for source in pattern.read_in)


def test_a_line_that_is_cut_names_its_event_and_no_figure():
    (read,) = all_patterns().read("Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfl")
    assert read.event is Event.LOAD_END and read.values is None


def test_lines_of_a_serving_engine_are_no_events():
    for line in (
        "Decode batch. #running-req: 31, #token: 129488, token usage: 0.80, gen throughput (token/s): 1290.67",
        "Engine 000: Avg prompt throughput: 115.2 tokens/s, Running: 1 reqs, GPU KV cache usage: 2.6%",
        "Loading weights took 9.23 seconds",
        "self = run_scheduler_process(server_args=server_args, port_args=port_args)",
    ):
        assert not list(all_patterns().read(line))


def test_no_expression_repeats_without_a_bound_before_its_end():
    """What a line says is anyone's: a free repetition inside an expression can make it quadratic in the line."""
    for event in Event:
        for pattern in all_of(event):
            for figure in pattern.figures.values():
                plain = re.sub(r"\[[^\]]*\]", "c", re.sub(r"\\.", "c", figure.find.pattern))
                inner = re.sub(r"(\.\*|c\+)\)$", ")", plain)
                assert not re.search(r"[*+]", inner), (event, figure.find.pattern)
