"""What a user is told when a checkpoint cannot be loaded."""

from hw.errors import MeshwrightError


class CheckpointError(MeshwrightError):
    """A folder of weights that is damaged, incomplete, or another model's."""
