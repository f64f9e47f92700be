"""Decoders of the goldens under every valid tuple of degrees of 8 and of 16 devices: 3009 layouts of the 4109.

The rest are those of 16 devices with replicas: each is one of 8 devices, which runs here, with twice the replicas. They
do the same work on a rank, and no exchange joins replicas; both are tested below. The alternatives under a tuple
(`weight_shard`, `vocab_tp`, `dcp_backend`, `dispatch`) take turns.

One step scores all tokens with nothing cached: what steps leave to each other is tested in `test_decoder.py`. A layout
takes 1 to 3 s of one core, 1.8 on average, nearly all of it to compile: an hour and a half for all. `make sweep`, or
one family with `pytest -m sweep -k kimi-k3 tests/layouts`.
"""

import dataclasses
import functools
from collections import Counter

import jax
import pytest

from layouts.audit.traced import traced
from layouts.layout import Layout
from layouts.text import parse, text_of
from tests.layouts.covering import CHOICES, DEGREES, KEYS, every_cut, every_layout, most_cut
from tests.layouts.decoding import FAMILIES, SCORED, at_once, error, golden, session_of

BOUND = 2e-5
Case = tuple[str, int, str]  # family, devices, layout


@functools.cache
def cuts(family: str, gpus: int) -> tuple[Layout, ...]:
    return tuple(every_cut(golden(family)[0], gpus))


def cases() -> list[Case]:
    return [
        (family, gpus, text_of(layout, golden(family)[0]))
        for family in FAMILIES
        for gpus in (8, 16)
        for layout in cuts(family, gpus)
        if gpus == 8 or layout.replicas == 1
    ]


@pytest.mark.sweep
@pytest.mark.parametrize(("family", "gpus", "text"), cases())
def test_every_cut_gives_what_others_give(family: str, gpus: int, text: str) -> None:
    model, _, tokens, expected = golden(family)
    layout = parse(text, gpus, model)
    groups = layout.replicas * layout.attn_dp
    session = session_of(family, layout, requests=-(-len(tokens) // groups), context=tokens.shape[1])
    found = at_once(session, tokens)
    jax.clear_caches()  # no two cases share a program
    assert error(found[:, -SCORED:], expected) < BOUND


@pytest.mark.parametrize("family", FAMILIES)
def test_layouts_of_16_with_replicas_are_those_of_8_with_twice_as_many(family: str) -> None:
    def all_of(gpus: int, times: int) -> set[tuple[int, ...]]:
        columns = every_layout(golden(family)[0], gpus).columns
        rows = zip(*(columns[key].tolist() for key in KEYS), strict=True)
        assert KEYS[0] == "replicas"
        return {(replicas * times, *rest) for replicas, *rest in rows}

    assert {row for row in all_of(16, 1) if row[0] > 1} == all_of(8, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_twice_the_replicas_do_the_same_work_on_a_rank_and_exchange_nothing(family: str) -> None:
    model, forms, _, _ = golden(family)
    for layout in (most_cut(model, 8), next(la for la in cuts(family, 8) if la.replicas > 1)):
        doubled = dataclasses.replace(layout, replicas=2 * layout.replicas)
        once, twice = (traced(model, forms, la, batch=2, verify=20, context=48) for la in (layout, doubled))
        assert once.flops
        assert once == twice  # exchanges with the names of their mesh axes: none is an axis of replicas


@pytest.mark.parametrize("gpus", [8, 16])
def test_every_tuple_of_degrees_once_and_alternatives_by_turns(gpus: int) -> None:
    columns = every_layout(golden("deepseek_v3")[0], gpus).columns
    every = set(zip(*(columns[key].tolist() for key in DEGREES), strict=True))
    found = Counter(tuple(getattr(layout, key) for key in DEGREES) for layout in cuts("deepseek_v3", gpus))
    assert found == Counter(every)
    for key in CHOICES:
        turns = Counter(getattr(layout, key) for layout in cuts("deepseek_v3", gpus))
        assert len(turns) == len(set(columns[key].tolist()))
        assert min(turns.values()) >= 5, (key, turns)


def test_how_many_there_are() -> None:
    assert len(cases()) == 3009
    assert sum(len(cuts(family, gpus)) for family in FAMILIES for gpus in (8, 16)) == 4109
