"""How the articles' values are read, written back, and judged."""

import pytest

from experiments.seed_claims.claims import read_claims
from experiments.seed_claims.values import ClaimError, judge, parse_value

CLAIMS = read_claims()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("627048448", [(627048448.0,)]),
        ("0.70", [(0.7,)]),
        ("3.50 / 2.92", [(3.5,), (2.92,)]),
        ("145.2 / 109.9; 47.7 / 14.6", [(145.2,), (109.9,), (47.7,), (14.6,)]),
        ("1440.734 -> 1364.046", [(1440.734,), (1364.046,)]),
        ("1.54-1.62 / 6.33", [(1.54, 1.62), (6.33,)]),
        ("9.9 / 3.6 / -3.1", [(9.9,), (3.6,), (-3.1,)]),
        ("4 to 5 / below 2", [(4.0, 5.0), (2.0,)]),
        ("1.5 GiB / 2.5 ms", [(1.5,), (2.5,)]),
        ("7 integers", [(7.0,)]),
        ("tp x pp", [()]),
        ("1/c", [()]),
        ("1 x 16 + 1 x 8 / 1 x 16 + 2 x 8", [(), ()]),
        ("fits / does not / does not", [(), (), ()]),
    ],
)
def test_parts(text, numbers):
    assert [part.numbers for part in parse_value(text).parts] == numbers


@pytest.mark.parametrize(
    ("text", "predicted", "written"),
    [
        ("83.5", (80.0,), 80.0),
        ("3.50 / 2.92", (3.4992, 2.9159), "3.499 / 2.916"),
        ("10240 / 1280", (10240.0, 1280.0), "10240 / 1280"),
        ("145.2 / 109.9; 47.7 / 14.6", (143.1, 107.7, 47.86, 14.78), "143.1 / 107.7; 47.86 / 14.78"),
        ("1.54-1.62 / 6.33", ((1.541, 1.622), 6.327), "1.541-1.622 / 6.327"),
        ("4 to 5 / below 2", ((3.9, 4.1), 0.5), "3.900 to 4.100 / below 0.5000"),
        ("1.5 GiB / 2.5 ms", (1.494, 2.83), "1.494 GiB / 2.830 ms"),
        ("0.16 / 0.02", (0.16019, 0.0), "0.1602 / 0"),
        ("tp x pp", ("dp x tp x pp",), "dp x tp x pp"),
    ],
)
def test_a_prediction_keeps_the_shape(text, predicted, written):
    assert parse_value(text).write(predicted) == written


@pytest.mark.parametrize(
    ("text", "predicted"),
    [("3.50 / 2.92", (1.0,)), ("1.54-1.62", (1.0,)), ("83.5", ("fits",)), ("tp x pp", (3.0,)), ("1", ((1.0, 2.0),))],
)
def test_another_shape_is_an_error(text, predicted):
    with pytest.raises(ClaimError):
        judge(parse_value(text), predicted, "5%")


@pytest.mark.parametrize(
    ("text", "predicted", "tolerance", "passed"),
    [
        ("100", (104.9,), "5%", True),
        ("100", (94.9,), "5%", False),
        ("100 / 10", (100.0, 11.0), "5%", False),  # every figure must hold
        ("7", (7.0,), "0", True),
        ("7", (7.000001,), "0", False),
        ("1196", (1196.4,), "0.5MiB", True),
        ("1196", (1196.6,), "0.5MiB", False),
        ("0", (1e-6,), "1e-5", True),
        ("0", (1e-4,), "1e-5", False),
        ("0.16 / 0.02", (0.1602, 0.0238), "print precision", True),
        ("0.16 / 0.02", (0.1602, 0.0251), "print precision", False),
        ("0.6", (0.1,), "upper bound", True),
        ("0.6", (0.61,), "upper bound", False),
        ("0.1", (0.3,), "upper bound x3", True),
        ("0.1", (0.31,), "upper bound x3", False),
        ("4 to 5 / below 2", ((4.1, 4.9), 1.9), "range", True),
        ("4 to 5 / below 2", ((3.9, 4.9), 1.9), "range", False),
        ("4 to 5 / below 2", ((4.1, 4.9), 2.0), "range", False),
        ("1.54-1.62 / 6.33", ((1.541, 1.7), 6.33), "0.5%", False),
        ("fits / does not", ("fits", "does not"), "0", True),
        ("fits / does not", ("fits", "fits"), "0", False),
        ("1.0", (99.0,), "given", None),
    ],
)
def test_verdict(text, predicted, tolerance, passed):
    assert judge(parse_value(text), predicted, tolerance).passed is passed


def test_the_error_is_that_of_the_worst_figure():
    assert judge(parse_value("100 / 10"), (101.0, 9.0), "5%").error == pytest.approx(-0.1)
    assert judge(parse_value("1196"), (1196.25,), "0.5MiB").error == pytest.approx(0.25)


def test_an_unknown_tolerance_is_an_error():
    with pytest.raises(ClaimError, match="unknown"):
        judge(parse_value("1"), (1.0,), "roughly")


def test_every_claim_can_be_read_and_judged():
    """Each value judged against itself: it passes, or there is no tolerance to pass."""
    for claim in CLAIMS:
        stated = [
            part.template if not part.numbers else part.numbers if len(part.numbers) == 2 else part.numbers[0]
            for part in claim.parsed.parts
        ]
        judge(claim.parsed, stated, claim.tolerance)
        if claim.tolerance.endswith("MiB"):
            assert claim.unit == "MiB"
