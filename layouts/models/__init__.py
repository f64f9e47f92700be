"""Models as data: presets, configs, drafts."""

from layouts.models.draft import Draft
from layouts.models.errors import ModelError
from layouts.models.layer import Layer
from layouts.models.load import load_model
from layouts.models.model import Model
from layouts.models.presets import draft_names, preset_names

__all__ = ["Draft", "Layer", "Model", "ModelError", "draft_names", "load_model", "preset_names"]
