"""Members of tar files; `webdataset_test.py` has the damaged and hostile ones."""

import tarfile

import pytest
from helpers import source_files

from tfcap.preparing.sources import tar


def test_members_have_the_places_of_their_content(tmp_path):
    path = tmp_path / "a.tar"
    long = "x" * 300 + ".jpg"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as file:
        source_files.add(file, "é/1.jpg", b"first")
        source_files.add(file, long, b"second")
    content = path.read_bytes()
    found = {
        member.name: content[member.offset_data :][: member.size] for member in tar.members(path)
    }
    assert found == {"é/1.jpg": b"first", long: b"second"}
    assert tar.is_tar(content) and not tar.is_tar(b"") and not tar.is_tar(b"x" * 512)


def test_headers_in_headers_are_one_clear_error(tmp_path):
    path = tmp_path / "a.tar"
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    path.write_bytes(header.tobuf() * 5000)
    with pytest.raises(tar.DamagedError, match="cannot be read as a tar file"):
        list(tar.members(path))
