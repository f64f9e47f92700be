"""What a user is told when a model cannot be had."""

from hw.errors import MeshwrightError


class ModelError(MeshwrightError):
    """A model that does not exist, or a config that cannot be read."""
