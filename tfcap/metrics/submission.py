"""Writes the archive that COCO's caption server takes.

The archive holds captions_val2014_NAME_results.json with 40,504 images and
captions_test2014_NAME_results.json with 40,775, both in COCO's result format. The server scores the
captions of test2014 in c5 and c40.
"""

import json
import os
import re
import zipfile
from collections.abc import Mapping

from tfcap import console
from tfcap.files import replacing

IMAGES = {"val2014": 40504, "test2014": 40775}
_DATE = (1980, 1, 1, 0, 0, 0)  # the same captions give the same bytes


def check(split: str, images: int) -> str:
    """Returns COCO's name of a split, `val2014` or `test2014`, if all of its images are there.

    Raises:
        UsageError: It is another split, or images are missing.
    """
    name = f"{split.removesuffix('2014')}2014"
    if name not in IMAGES:
        raise console.UsageError(
            f"--submission is for the splits val2014 and test2014. Received: --split={split}."
        )
    if images != IMAGES[name]:
        raise console.UsageError(
            f"--submission needs all {IMAGES[name]} images of {name}, and here are {images}."
        )
    return name


def add(path: str, split: str, captions: Mapping[int, str]) -> str:
    """Adds the captions of a split to an archive, or replaces them; makes the archive if needed.

    Args:
        path: The archive, NAME.zip or captions_NAME_results.zip.
        split: As for `check`.
        captions: Image id -> caption.

    Returns:
        A line that says what the archive holds and what it lacks.

    Raises:
        UsageError: As `check`.
    """
    split = check(split, len(captions))
    stem = os.path.splitext(os.path.basename(path))[0]
    name = re.sub(r"^captions_|_results$", "", stem)
    members = {}
    if os.path.exists(path):
        with zipfile.ZipFile(path) as archive:
            members = {member: archive.read(member) for member in archive.namelist()}
    entries = [{"image_id": int(i), "caption": captions[i]} for i in sorted(captions)]
    members[f"captions_{split}_{name}_results.json"] = json.dumps(entries).encode()
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for member in sorted(members):
            about = zipfile.ZipInfo(member, _DATE)
            about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(about, members[member])
    lacking = [other for other in IMAGES if not any(other in member for member in members)]
    rest = f"; give the same --submission with the split {lacking[0]}" if lacking else ""
    return f"{path}: captions of all images of {split}{rest}"
