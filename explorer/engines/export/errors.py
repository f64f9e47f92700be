"""What cannot be exported."""

from hw.errors import MeshwrightError


class ExportError(MeshwrightError):
    """A layout that the flags of an engine cannot say, or a place that a file cannot be written to."""
