"""What tests are run over: every shipped model, draft and chip, found by its data file."""

from typing import Final

from hw.figures import chip_names
from layouts.models import draft_names, preset_names
from layouts.models.load import has_program

PRESETS: Final = preset_names()
WITH_PROGRAM: Final = tuple(name for name in PRESETS if has_program(name))
DRAFTS: Final = draft_names()
CHIPS: Final = chip_names()
