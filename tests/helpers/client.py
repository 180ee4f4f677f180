"""The client of a bundle, imported as the two files that it is outside of the package."""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).parents[2] / "tfcap" / "serving" / "client"
sys.path.append(str(FOLDER))

import captions_client  # noqa: E402
import captions_protocols  # noqa: E402

__all__ = ["FOLDER", "captions_client", "captions_protocols"]
