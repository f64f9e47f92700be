"""The vocabulary: bytes sent by each exchange, and lengths that must agree."""

import jax
import jax.numpy as jnp
import pytest

from hw.compat import x64
from hw.work import SHAPES, Collective, CollectiveKind, Family, Rate, Work, sent_bytes

K = CollectiveKind


def sent(kind: CollectiveKind, payload: float, size: int) -> float:
    with x64():
        return float(sent_bytes(kind, payload, float(size)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (K.ALL_GATHER, 700),
        (K.REDUCE_SCATTER, 700),
        (K.ALL_REDUCE, 1400),
        (K.ALL_TO_ALL, 700),
        (K.DISPATCH, 700),
        (K.COMBINE, 700),
        (K.COPY_GATHER, 700),
        (K.SEND, 800),
    ],
)
def test_of_800_bytes_over_8_ranks(kind: CollectiveKind, expected: int) -> None:
    assert sent(kind, 800.0, 8) == expected


def test_the_weight_gather_of_article_000() -> None:
    """Claim K03: each rank receives 7/8 of 55,327,064,064 bytes a step."""
    assert sent(K.COPY_GATHER, 55_327_064_064.0, 8) == 48_411_181_056


@pytest.mark.parametrize("kind", K)
def test_a_group_of_one_sends_nothing(kind: CollectiveKind) -> None:
    assert sent(kind, 1e9, 1) == 0.0


def test_kinds_beside_each_other_give_what_each_gives_alone() -> None:
    kinds = tuple(K)
    with x64():
        together = sent_bytes(kinds, jnp.full(len(kinds), 4096.0), jnp.full(len(kinds), 4.0))
        assert together.tolist() == [sent(kind, 4096.0, 4) for kind in kinds]


def test_a_reduce_scatter_and_an_all_gather_make_an_all_reduce() -> None:
    parts = sent(K.REDUCE_SCATTER, 1e6, 16) + sent(K.ALL_GATHER, 1e6, 16)
    assert sent(K.ALL_REDUCE, 1e6, 16) == parts


def test_lengths_must_agree() -> None:
    one, two = jnp.ones(1), jnp.ones(2)
    with pytest.raises(ValueError, match="Work: bytes has 2 entries for 1 ops"):
        Work.of((Family.GEMM,), (Rate.BF16,), one, two)
    with pytest.raises(ValueError, match="Collective: stride has 2 entries for 1 ops"):
        Collective.of((K.SEND,), one, one, two)


def test_names_are_structure_and_numbers_are_leaves() -> None:
    work = Work.of((Family.GEMM,), (Rate.BF16,), jnp.ones(1), jnp.ones(1), steps=jnp.ones(1))
    assert len(jax.tree.leaves(work)) == 2 + len(SHAPES)
    assert (work.steps.tolist(), work.ctas.tolist()) == ([1.0], [0.0])
