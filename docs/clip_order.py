"""Counts how many captions of the built-in clips name the right actions in the right order.

python docs/clip_order.py results.json data/moving_shapes/dataset_moving_shapes.json

The first file is what `tfcap.evaluate --output` wrote. A caption is right if it names the actions
of the clip in their order, and backwards if it names those of the clip when it is played backwards.
Whoever sees the frames without their order can only guess between the two.
"""

import argparse
import json
import re

from tfcap.preparing.moving_shapes import ACTIONS, BACKWARDS

PHRASES = {phrase: action for action, ways in ACTIONS.items() for phrase in ways}
ANY = re.compile("|".join(sorted(PHRASES, key=len, reverse=True)))


def named_actions(caption: str) -> list[str]:
    """Returns the actions that a caption names, in the order in which they happen."""
    actions = [PHRASES[match[0]] for match in ANY.finditer(caption.lower())]
    return actions[::-1] if " after " in caption else actions


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", help="File of tfcap.evaluate --output.")
    parser.add_argument("captions", help="dataset_moving_shapes.json")
    given = parser.parse_args()
    with open(given.captions, encoding="utf-8") as file:
        clips = {clip["imgid"]: clip for clip in json.load(file)["images"]}
    with open(given.results, encoding="utf-8") as file:
        results = json.load(file)
    right = backwards = 0
    for result in results:
        actions = [step["action"] for step in clips[result["image_id"]]["steps"]]
        named = named_actions(result["caption"])
        right += named == actions
        backwards += named == [BACKWARDS[action] for action in reversed(actions)]
    share = 100 / len(results)
    print(f"{len(results)} clips: {right * share:.1f} % right, {backwards * share:.1f} % backwards")


if __name__ == "__main__":
    main()
