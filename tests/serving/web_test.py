"""The engine of the page comes from npm once, and is the known one."""

import base64
import hashlib
import tarfile

import pytest
from helpers.webpages import folder_served

from tfcap.serving import web


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder that serves as npm, and its only package."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "npm/@own/parts/-/parts-1.0.0.tgz"
    file.parent.mkdir(parents=True)
    with tarfile.open(file, "w:gz") as packed:
        packed.addfile(tarfile.TarInfo("package/part.js"))
    sha512 = base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    return tmp_path / "npm", web.Package("@own/parts", "1.0.0", sha512), file.read_bytes()


def test_an_archive_comes_from_npm_once_and_then_from_the_cache(package, tmp_path):
    npm, parts, content = package
    with folder_served(npm) as (address, end):
        parts = parts._replace(registry=address.rstrip("/"))
        assert web.archive(parts) == content
        end()
        assert web.archive(parts) == content
        (kept,) = tmp_path.glob("cache/tfcap/npm/*")
        kept.write_bytes(content[:9])  # a damaged file is not used
        with pytest.raises(
            ValueError, match=r"failed: .*Run `npm pack @own/parts@1.0.0` else.*tgz"
        ):
            web.archive(parts)


def test_another_archive_than_the_known_one_is_refused(package, tmp_path):
    npm, parts, _ = package
    with folder_served(npm) as (address, _):
        with pytest.raises(ValueError, match="is not the file that it was"):
            web.archive(parts._replace(registry=address.rstrip("/"), sha512="other"))
    assert not list(tmp_path.glob("cache/tfcap/npm/*"))
