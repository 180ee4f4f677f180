"""Reads the pictures of a request, and how long captions may be."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from tfcap.captioning.server.web import MOST_BYTES, RequestError, too_large

MOST_PICTURES = 16  # of one request


def decoded(text: Any, form: str) -> bytes:
    """Decodes the base64 of a picture file, whose lines may be broken.

    Args:
      text: the base64.
      form: where the base64 must stand, for the error.

    Raises:
      RequestError: `text` is no base64, or the file is too large.
    """
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (AttributeError, TypeError, binascii.Error, ValueError):
        raise RequestError(400, f"{form}, with the picture file in base64.") from None
    if len(content) > MOST_BYTES:
        raise too_large()
    return content


def of_url(url: Any) -> bytes:
    """Returns the picture file in a data URL, such as `data:image/jpeg;base64,...`.

    Raises:
      RequestError: it is another URL, no base64, or the file is too large.
    """
    form = "The URL of a picture must be data:image/jpeg;base64,..."
    if not isinstance(url, str) or not url.startswith("data:"):
        raise RequestError(
            400, f"{form}: tfcap loads nothing from other addresses. Send the picture itself."
        )
    head, _, text = url.partition(",")
    if not head.endswith(";base64"):
        raise RequestError(400, f"{form}, with the picture file in base64.")
    return decoded(text, form)


def asked(messages: Any) -> list[dict[str, Any]]:
    """Returns the messages of a conversation that ask for an answer: those after the last answer.

    A last message of the assistant is the beginning of an answer, which is not read.

    Raises:
      RequestError: `messages` is no list of messages.
    """
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise RequestError(400, "`messages` must be a list of messages, which are objects.")
    result: list[dict[str, Any]] = []
    for message in reversed(messages):
        if message.get("role") != "assistant":
            result.insert(0, message)
        elif result:
            break
    return result


def check_number(contents: Sequence[bytes]) -> None:
    """Raises RequestError if there is no picture, or if there are more than `MOST_PICTURES`."""
    if not 1 <= len(contents) <= MOST_PICTURES:
        raise RequestError(
            400,
            f"There are {len(contents)} pictures to caption; there must be 1 to {MOST_PICTURES}. "
            "A captioner answers no questions: send a picture with each request.",
        )


def most_words(name: str, value: Any) -> int | None:
    """Reads the largest number of words of a caption; None, 0 and less are no limit, as for Ollama.

    Raises:
      RequestError: `value` is no whole number.
    """
    if value is not None and type(value) is not int:
        raise RequestError(400, f"`{name}` must be a whole number.")
    return value if value and value > 0 else None
