"""Writes the page that runs a portable captioner in a browser.

The page computes with LiteRT.js, which is no part of tfcap: `write` takes it from npm once, and
keeps it in the user's cache. The folder that it writes holds all that the page needs.
"""

import base64
import hashlib
import http.client
import importlib.resources
import io
import logging
import os
import pathlib
import tarfile
import urllib.request
from typing import NamedTuple

from tfcap import files

_log = logging.getLogger(__name__)

_SECONDS = 60  # without a byte, until a download is given up


class Package(NamedTuple):
    """A package of npm in one version.

    Attributes:
      name: the name of the package.
      version: the version.
      sha512: SHA-512 of its archive, in base64, as npm states it.
      registry: the address of the server.
    """

    name: str
    version: str
    sha512: str
    registry: str = "https://registry.npmjs.org"

    @property
    def file(self) -> str:
        """The name of the archive, such as `core-2.5.3.tgz`."""
        return f"{self.name.rpartition('/')[2]}-{self.version}.tgz"


ENGINE = Package(
    "@litertjs/core",
    "2.5.3",
    "PlGmbMOq9WitX7FO0jhbdJw9GthatsyuCQXjTt/wJZo0FLaw48q4tz8IwqgqCIkviYGr9OFDL1kCnN4nzWoyJQ==",
)
# Of its four builds the one for all browsers: one thread, and no relaxed SIMD.
_BUILD = ("litert_wasm_compat_internal.js", "litert_wasm_compat_internal.wasm")


def archive(package: Package) -> bytes:
    """Returns the archive of a package: from the cache, or else from npm.

    The cache is `tfcap/npm` in the user's cache.

    Raises:
      ValueError: the archive cannot be downloaded, or it is not the one that `sha512` names.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = pathlib.Path(cache, "tfcap", "npm", package.file)
    if path.is_file() and _is(package, content := path.read_bytes()):
        return content
    address = f"{package.registry}/{package.name}/-/{package.file}"
    remedy = (
        f"Run `npm pack {package.name}@{package.version}` elsewhere, and copy its file to {path}."
    )
    _log.info("Downloading %s %s from npm", package.name, package.version)
    try:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"The download of {address} failed: {error}. {remedy}") from None
    if not _is(package, content):
        raise ValueError(f"{address} is not the file that it was, by its SHA-512. {remedy}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as temporary:
        pathlib.Path(temporary).write_bytes(content)
    return content


def _is(package: Package, content: bytes) -> bool:
    return base64.b64encode(hashlib.sha512(content).digest()).decode() == package.sha512


def write(folder: str) -> None:
    """Writes the page and its engine into the folder of a portable captioner.

    Args:
      folder: a local folder with captioner.json, words.txt and the LiteRT file.

    Raises:
      ValueError: the engine cannot be downloaded.
    """
    package = importlib.resources.files("tfcap")
    page = {
        "theme.css": package / "visualize" / "theme.css",
        "demo.css": package / "captioning" / "demo.css",
        **{file.name: file for file in (package / "serving" / "page").iterdir()},
    }
    contents = {name: file.read_bytes() for name, file in page.items()}
    with tarfile.open(fileobj=io.BytesIO(archive(ENGINE))) as packed:
        for name in _BUILD:
            member = packed.extractfile(f"package/wasm/{name}")
            assert member is not None  # a file
            contents[f"engine/{name}"] = member.read()
    contents["engine/LICENSE.txt"] = contents.pop("engine_license.txt")
    offline = contents.pop("offline.js").decode()
    card = files.read_json(os.path.join(folder, "captioner.json"), "Export the captioner again.")
    for name, content in contents.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    kept = sorted([*contents, "captioner.json", "words.txt", card["file"]])
    sums = "".join(files.file_sha256(os.path.join(folder, name)) for name in kept)
    offline = offline.replace("{{files}}", files.json_text(["./", *kept]))
    offline = offline.replace("{{version}}", hashlib.sha256(sums.encode()).hexdigest()[:16])
    pathlib.Path(folder, "offline.js").write_text(offline, encoding="utf-8")
