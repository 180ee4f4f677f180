"""Bytes of pictures that are parts of files."""

import pytest

from tfcap.preparing.sources import content
from tfcap.preparing.sources.content import FilePart, check_size


def test_a_part_of_a_file_is_read(tmp_path):
    path = tmp_path / "shard.tar"
    path.write_bytes(b"0123456789")
    assert FilePart(path, 3, 4).read() == b"3456" and FilePart(path, 10, 0).read() == b""
    with pytest.raises(ValueError, match="must have 4 bytes from byte 8. Received: 2. .*truncated"):
        FilePart(path, 8, 4).read()
    with pytest.raises(FileNotFoundError):
        FilePart(tmp_path / "none", 0, 1).read()


def test_a_part_that_claims_too_much_is_refused_before_it_is_read(tmp_path):
    with pytest.raises(ValueError, match="at most 268435456 bytes. Received: 10737418240"):
        FilePart(tmp_path / "none", 0, 10 << 30).read()
    check_size(content.MOST_BYTES)
