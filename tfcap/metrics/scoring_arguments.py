"""The arguments of the commands that score captions."""

from collections.abc import Sequence

from tfcap import segmentation
from tfcap.arguments import argument, arguments


@arguments
class ScoringArguments:
    """Base class for the arguments of a command that scores captions.

    The argument `partial` leaves out images that lack references or captions. The argument
    `instances` names the files with the labelled objects of the images, for CHAIR. The argument
    `tokens` says how captions are cut into the words that are compared. A subclass adds the
    arguments of its own command.
    """

    partial: bool = argument(
        "Score only the images that have references and captions in every file.", default=False
    )
    instances: Sequence[str] = argument(
        "COCO's instances_*.json with the labelled objects of the images, for CHAIR; without it "
        "CHAIR knows only the objects that the references mention.",
        default=(),
        many="commas",
    )
    tokens: str | None = argument(
        "How captions and references are cut into words, as in tfcap.prepare; by default as in the "
        "prepared data.",
        default=None,
        choices=segmentation.WAYS,
    )
