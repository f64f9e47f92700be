"""What tests are run over: every shipped model, draft and chip, found by its data file; and how they compile."""

from collections.abc import Callable
from typing import Any, Final

import equinox as eqx

from hw.compat import COMPILE_TO_RUN_ONCE
from hw.figures import chip_names
from layouts.models import draft_names, preset_names
from layouts.models.load import has_program

PRESETS: Final = preset_names()
WITH_PROGRAM: Final = tuple(name for name in PRESETS if has_program(name))
DRAFTS: Final = draft_names()
CHIPS: Final = chip_names()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A formula of the cost side, which a test runs once or a few times: LLVM may leave it as it is."""
    # Equinox passes the keywords of jax.jit on, but its overloads do not declare them
    return eqx.filter_jit(function, compiler_options=dict(COMPILE_TO_RUN_ONCE))  # pyright: ignore[reportCallIssue]
