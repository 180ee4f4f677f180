"""WebDataset tar files, good, damaged and hostile."""

import gzip
import tarfile
import tracemalloc

import pytest
from helpers import source_files
from helpers.source_files import add, jpeg

from tfcap.preparing.sources.webdataset import recognises, webdataset

GIGABYTE = 1 << 30


def read(path, **changes):
    """Entries and the skipped rows of one file."""
    given = source_files.Made([path], None, []).given(**changes)
    return webdataset(given), given.skipped


def write(path, *members):
    """Writes a tar file with a good sample and further members."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        add(tar, "0.jpg", jpeg(0))
        add(tar, "0.txt", b"A dog.")
        for name, content, changes in members:
            add(tar, name, content, **changes)
    return path


def end(path):
    """Where the first of the empty blocks behind the members begins."""
    with tarfile.open(path) as tar:
        tar.getmembers()
        return tar.offset


def test_pictures_are_read_from_the_tar_files(tmp_path):
    made = source_files.webdataset(tmp_path)
    assert recognises(made.files[0]) and recognises(tmp_path)
    for given in (made.given(), made._replace(captions=[tmp_path]).given()):
        entries = sorted(webdataset(given), key=lambda entry: entry.file_name)
        assert not given.skipped
        assert [entry.split for entry in entries] == ["train"] * 4 + ["val", "test"]
        assert {entry.captions for entry in entries} == {("A dog.", "A cat.")}
        assert [entry.file_name for entry in entries] == [f"{n:06d}.jpg" for n in range(6)]
        assert [entry.content.read() for entry in entries] == [jpeg(n) for n in range(6)]


def test_the_split_in_the_json_counts_and_keys_keep_their_folders(tmp_path):
    said = b'\xef\xbb\xbf{"caption": "A cat.", "split": "restval"}'
    path = write(
        tmp_path / "test.tar",
        ("a/1.JPEG", jpeg(1), {}),
        ("a/1.json", said, {}),
        ("b/1.seg.png", b"another kind", {}),
        ("b/1.webp", b"x", {}),
    )
    entries, skipped = read(path)
    assert not skipped
    assert [(entry.file_name, entry.split) for entry in entries] == [
        ("0.jpg", "test"), ("a/1.JPEG", "train"), ("b/1.webp", "test"),
    ]  # fmt: skip
    assert entries[1].captions == ("A cat.",) and entries[2].captions == ()


def test_pictures_with_more_dots_in_their_names_are_counted(tmp_path, capsys):
    more = [(name, jpeg(1), {}) for name in ("c.v2.PNG", "d.1.jpg", "._a.b.jpg", "e.v2.npy")]
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "0.tar", *more)
    entries, skipped = read(write(tmp_path / "parts" / "1.tar", *more).parent)
    assert len(entries) == 2 and not skipped
    assert (
        "note: 4 pictures are not read, because their names have more than one dot, as 'c.v2.P"
        in (capsys.readouterr().out)
    )
    read(write(tmp_path / "2.tar"))
    assert "note" not in capsys.readouterr().out
    read(write(tmp_path / "3.tar", ("a.\udcff.jpg", b"x", {})))
    assert r"as 'a.\udcff.jpg'" in capsys.readouterr().out  # it can be printed


def test_a_member_of_10_gigabytes_is_skipped_within_little_memory(tmp_path):
    path = write(tmp_path / "train.tar")
    large = tarfile.TarInfo("1.jpg")
    large.size = 10 * GIGABYTE
    start = end(path)
    with open(path, "r+b") as file:
        file.truncate(start)
        file.seek(start)
        file.write(large.tobuf(tarfile.GNU_FORMAT))
        file.seek(large.size, 1)  # a hole, which takes no space on the disk
        behind = tarfile.TarInfo("2.jpg")
        behind.size = len(jpeg(2))
        file.write(behind.tobuf() + jpeg(2).ljust(-(-len(jpeg(2)) // 512) * 512, b"\0"))
        file.write(bytes(1024))
    tracemalloc.start()
    entries, skipped = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [entry.file_name for entry in entries] == ["0.jpg", "2.jpg"]
    assert entries[1].content.read() == jpeg(2)
    assert (
        len(skipped) == 1 and "at most 268435456 bytes. Received: 10737418240" in skipped[0].reason
    )
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("name", "content", "changes", "reason"),
    [
        ("../1.jpg", b"x", {}, "must be relative and without"),
        ("a/../../1.jpg", b"x", {}, "must be relative and without"),
        ("/etc/1.jpg", b"x", {}, "must be relative and without"),
        ("1.jpg", b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "ordinary file"),
        ("1.jpg", b"", {"type": tarfile.LNKTYPE, "linkname": "0.jpg"}, "ordinary file"),
        ("1.jpg", b"", {"type": tarfile.FIFOTYPE}, "ordinary file"),
        ("1.jpg", b"", {"type": tarfile.CHRTYPE}, "ordinary file"),
        ("1.\udcff.jpg", b"", {}, None),
        ("\udcff.jpg", b"x", {}, "valid Unicode"),
        ("0.png", b"x", {}, "the second picture of its key"),
        ("1.txt", b"A cat.", {}, "captions and no picture"),
        ("0.json", b"{", {}, "Expecting property name"),
        ("0.json", b"[1]", {}, "must be a JSON object"),
        ("0.json", b'{"caption": 5}', {}, "must be text"),
        ("0.json", b'{"caption": "\\ud800"}', {}, "valid Unicode"),
        ("0.json", b'{"caption": "A", "split": "moon"}', {}, "the split must be one of"),
        ("0.json", b'{"caption": "A", "split": 0}', {}, "Received: 0. Write train, val or test"),
        ("0.json", b"\xff", {}, "must be UTF-8"),
        ("0.json", b" " * (1 << 20) + b"{}", {}, "must have at most 1048576 bytes"),
    ],
)
def test_a_bad_member_is_skipped_and_listed(tmp_path, name, content, changes, reason):
    good = ("8.jpg", jpeg(8), {})
    entries, skipped = read(write(tmp_path / "train.tar", (name, content, changes), good))
    assert entries[-1].file_name == "8.jpg"
    assert [row.reason for row in skipped if reason not in row.reason] == []
    assert len(skipped) == (reason is not None)


def test_what_lies_behind_a_damaged_header_is_left_out_and_told(tmp_path):
    path = write(tmp_path / "train.tar", ("1.jpg", jpeg(1), {}), ("2.jpg", jpeg(2), {}))
    with tarfile.open(path) as tar:
        place = tar.getmember("1.jpg").offset
    content = bytearray(path.read_bytes())
    content[place : place + 512] = b"\x55" * 512
    path.write_bytes(content)
    entries, skipped = read(path)
    assert [entry.file_name for entry in entries] == ["0.jpg"]
    assert f"the header at byte {place} is damaged" in skipped[0].reason


def test_a_file_that_ends_early_gives_its_whole_members(tmp_path):
    path = write(tmp_path / "train.tar", ("1.jpg", bytes(5000), {}))
    path.write_bytes(path.read_bytes()[: 512 * 6])
    entries, skipped = read(path)
    assert [entry.file_name for entry in entries] == ["0.jpg"]
    assert "the file ends inside its member '1.jpg'" in skipped[0].reason


@pytest.mark.parametrize("size", [-512, -1536])
def test_a_negative_length_ends_and_does_not_lead_back(tmp_path, size):
    path = write(tmp_path / "train.tar")
    member = tarfile.TarInfo("1.jpg")
    member.size = size
    path.write_bytes(
        path.read_bytes()[: end(path)] + member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    )
    entries, skipped = read(path)
    assert len(entries) == 1 and len(skipped) == 1


def test_a_header_of_10_gigabytes_is_not_read(tmp_path):
    path = write(tmp_path / "train.tar")
    start = end(path)
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 10 * GIGABYTE
    with open(path, "r+b") as file:
        file.truncate(start)
        file.seek(start)
        file.write(name.tobuf(tarfile.GNU_FORMAT))
        file.truncate(start + 11 * GIGABYTE)
    entries, skipped = read(path)
    assert len(entries) == 1 and "a header must have at most" in skipped[0].reason


@pytest.mark.parametrize(
    "content",
    [b"", b"no tar file", bytes(1024), gzip.compress(b"x" * 999, mtime=0), b"BZh9" + bytes(600)],
)
def test_a_file_that_is_no_tar_file_is_refused(tmp_path, content):
    path = tmp_path / "train.tar"
    path.write_bytes(content)
    assert not recognises(path)
    with pytest.raises(ValueError, match=r"train.tar: |must have at least one usable picture"):
        read(path)


def test_too_many_bad_members_end_the_command(tmp_path):
    path = write(tmp_path / "train.tar", *((f"../{n}.jpg", b"x", {}) for n in range(5)))
    with pytest.raises(ValueError, match="--max_skipped allows 3"):
        read(path, most_skipped=3)
