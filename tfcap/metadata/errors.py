"""The error of descriptions that cannot be read or written."""


class MetadataError(ValueError):
    """A description cannot be read or written. The message says why, in one sentence."""
