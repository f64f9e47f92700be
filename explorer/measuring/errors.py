"""What keeps a machine from being measured."""

from hw.errors import MeshwrightError


class MeasuringError(MeshwrightError):
    """A measurement that cannot be made or gone on with."""
