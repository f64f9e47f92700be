"""What tests are run over: every shipped model, draft and chip, found by its data file."""

from typing import Final

from hw.figures import chip_names
from layouts.models import draft_names, preset_names

PRESETS: Final = preset_names()
DRAFTS: Final = draft_names()
CHIPS: Final = chip_names()
