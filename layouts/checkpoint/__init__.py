"""Weights from a folder of safetensors files, each rank reading its own part."""

from layouts.checkpoint.errors import CheckpointError
from layouts.checkpoint.folder import Folder, open_folder
from layouts.checkpoint.names import architecture_of, views
from layouts.checkpoint.place import place

__all__ = ["CheckpointError", "Folder", "architecture_of", "open_folder", "place", "views"]
