"""Decoders of transformers made on the spot, with other weights than the goldens', against the program: `make oracle`.

A golden can only go wrong once, when it is made; here the models are those of the installed library, and the checkpoint
is read as it writes one today. Seeds whose routers or indexers rounding could sway are passed over, as for goldens.
"""

import functools
import pathlib
import types
import warnings

import pytest

from layouts.layout import Layout
from layouts.models.load import load_model
from tests.layouts.covering import most_cut
from tests.layouts.decoding import FAMILIES, SCORED, at_once, error, golden, session_of, teacher_forced

BOUND = 2e-5
FIRST_SEED = 1000  # the goldens' are the first clear ones from 0
OTHERS = frozenset({"kimi-k3"})  # no class of transformers
LIVE = tuple(family for family in FAMILIES if family not in OTHERS)

pytestmark = pytest.mark.oracle


@functools.cache
def maker() -> types.ModuleType:
    """The script of the goldens. Only imported where a test asks: it wants torch, which nothing else here needs."""
    pytest.importorskip("torch", reason="torch is not installed here: make oracle")
    pytest.importorskip("transformers", reason="transformers is not installed here: make oracle")
    from tests.goldens import make_decoders

    make_decoders.torch.set_num_threads(1)
    return make_decoders


@pytest.fixture(scope="module", params=LIVE)
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, pathlib.Path]:
    """A family, and the folder of a model of it."""
    folder = tmp_path_factory.mktemp(request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # what the library says of itself
        made = maker()
        kind, values = made.DECODERS[request.param]
        seed, gap, model, tokens, logits = made.clear_seed(kind, values, FIRST_SEED)
        made.write(folder, model, tokens, logits)
    print(f"{request.param}: seed {seed}, least gap {gap:.1e}")
    return request.param, folder


def test_one_device_gives_what_the_live_model_gives(live: tuple[str, pathlib.Path]) -> None:
    _, folder = live
    _, _, tokens, expected = golden(str(folder))
    found = teacher_forced(session_of(str(folder), Layout()), tokens, width=20)
    assert error(found[:, -SCORED:], expected) < BOUND


def test_sixteen_devices_give_what_the_live_model_gives(live: tuple[str, pathlib.Path]) -> None:
    _, folder = live
    model, _, tokens, expected = golden(str(folder))
    layout = most_cut(model, 16)
    assert layout.gpus == 16
    found = at_once(session_of(str(folder), layout), tokens)
    assert error(found[:, -SCORED:], expected) < BOUND


def test_the_live_model_is_not_the_golden(live: tuple[str, pathlib.Path]) -> None:
    """Same shapes, other weights: else this file would repeat `test_decoder.py`."""
    family, folder = live
    assert load_model(str(folder)).layers == golden(family)[0].layers
    assert error(golden(str(folder))[3], golden(family)[3]) > 0.1


def test_every_family_of_the_goldens_is_live() -> None:
    assert set(maker().DECODERS) == set(LIVE)
