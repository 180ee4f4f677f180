"""The flags that choose scores, shared by the commands that score captions."""

from collections.abc import Collection

from absl import flags

from tfcap import cli
from tfcap.metrics import chair, registry


def define(clip: bool = False) -> None:
    """Defines --scores and --instances, and --clip for commands with pictures."""
    more = ", ".join(registry.ON_REQUEST)
    flags.DEFINE_list(
        "scores",
        registry.defaults(),
        f"Scores to compute, separated by commas. These must be asked for: {more}.",
    )
    flags.DEFINE_list(
        "instances",
        [],
        "COCO's instances_*.json with the labelled objects of the images, for CHAIR; without it "
        "CHAIR knows only the objects that the references mention.",
    )
    if clip:
        flags.DEFINE_string(
            "clip",
            None,
            "CLIP for the score CLIPScore: the directory of a preset of keras-hub, or a handle.",
        )


def chosen(given: flags.FlagValues, clip: str | None = None) -> list[str]:
    """Returns the names of --scores; reads the files of --instances.

    Args:
        given: The flags.
        clip: The value of --clip, which tfcap.evaluate alone has.

    Raises:
        UsageError: A score is unknown, there is none, or a flag belongs to another score.
        ValueError: A file of --instances is bad.
    """
    if not given.scores or set(given.scores) - set(registry.METRICS):
        raise cli.UsageError(
            f"--scores must be some of {','.join(registry.METRICS)}. Received: "
            f"{','.join(given.scores) or 'none'}"
        )
    for flag, value, name in (("instances", given.instances, "CHAIR"), ("clip", clip, "CLIPScore")):
        if value and name not in given.scores:
            raise cli.UsageError(
                f"--{flag} is used by {name} only. Received: --scores={','.join(given.scores)}. "
                f"Add {name} to it, or leave --{flag} out."
            )
    for path in given.instances:
        chair.read_labels(path)  # before any decoding, which may take an hour
    return given.scores


def check_images(given: flags.FlagValues, images: Collection[int]) -> None:
    """Raises ValueError if --instances has none of the images; called before any decoding."""
    if given.instances:
        chair.labels_of(given.instances, images)
