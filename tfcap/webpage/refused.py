"""The error that the page answers with a sentence."""


class Refused(ValueError):
    """An error for a request that the page refuses.

    Args:
      status: the HTTP status, for example 400.
      reason: a sentence that says what was wrong and what to do.
    """

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status
