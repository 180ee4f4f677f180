"""The arguments of the commands that score captions."""

from collections.abc import Sequence

from tfcap.arguments import argument, arguments


@arguments
class ScoringArguments:
    """Base class for the arguments of a command that scores captions.

    The argument `partial` leaves out images that lack references or captions. The argument
    `instances` names the files with the labelled objects of the images, for CHAIR. A subclass adds
    the arguments of its own command.
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
