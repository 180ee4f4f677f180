"""The error that the page answers with a sentence."""


class Refused(ValueError):
    """A request that is not answered.

    Args:
      status: the status of HTTP, for example 400.
      reason: a sentence that says what was wrong and what to do.
    """

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status
