"""The one base of every error that is the user's to mend."""


class MeshwrightError(ValueError):
    """A request that cannot be met. The message is one line: the input, the rule it breaks, and the remedy."""
