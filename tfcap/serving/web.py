"""Writes the page that runs a portable captioner in a browser.

The page computes with LiteRT.js: the folder `page/engine` holds the files of its npm package
@litertjs/core 2.5.3 that all browsers run, with one thread and without relaxed SIMD.
"""

import hashlib
import importlib.resources
import os
import pathlib
import shutil

from tfcap import files


def write(folder: str) -> None:
    """Writes the page and its engine into the folder of a portable captioner.

    Args:
      folder: a local folder with captioner.json, words.txt and the LiteRT file.
    """
    package = importlib.resources.files("tfcap")
    with importlib.resources.as_file(package / "serving" / "page") as page:
        shutil.copytree(page, folder, dirs_exist_ok=True)
    for name in ("visualize/theme.css", "captioning/demo.css"):
        content = package.joinpath(name).read_bytes()
        pathlib.Path(folder, os.path.basename(name)).write_bytes(content)
    script = pathlib.Path(folder, "offline.js")
    kept = sorted(
        path.relative_to(folder).as_posix()
        for path in pathlib.Path(folder).rglob("*")
        if path.is_file() and path != script and path.suffix not in (".py", ".md")
    )
    sums = "".join(files.file_sha256(os.path.join(folder, name)) for name in kept)
    offline = script.read_text(encoding="utf-8")
    offline = offline.replace("{{files}}", files.json_text(["./", *kept]))
    offline = offline.replace("{{version}}", hashlib.sha256(sums.encode()).hexdigest()[:16])
    script.write_text(offline, encoding="utf-8")
