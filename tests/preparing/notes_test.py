"""What prepare prints about captions and pictures."""

import pytest

from tfcap.preparing.captions import Kept
from tfcap.preparing.notes import print_dropped, print_notes, print_problem
from tfcap.preparing.sources import Entry


def test_each_dropped_caption_has_a_line(capsys):
    entries = [Entry(n, f"{n}.jpg", "val", ("A dog.", "?", " ")) for n in range(2)]
    images = {n: Kept(n, f"{n}.jpg", "val", ["A dog."] * (n + 1), []) for n in range(2)}
    assert print_dropped(entries, images) == 3
    line = "dropped an empty caption of image"
    assert capsys.readouterr().err.splitlines() == [
        f"{line} 0 (0.jpg)", f"{line} 0 (0.jpg)", f"{line} 1 (1.jpg)",
    ]  # fmt: skip


def test_a_name_with_a_line_feed_is_one_line(capsys):
    print_problem("skipped a\nb\tc.jpg: no such file")
    assert capsys.readouterr().err == "skipped a\\nb\\tc.jpg: no such file\n"


@pytest.mark.parametrize(
    ("shard", "part"), [({"dropped_boxes": 2}, "boxes of 5 images"), ({"animated": 2}, "files: 5.")]
)
def test_a_note_sums_over_all_shards(shard, part, capsys):
    (key,) = shard
    print_notes({"train": [shard, {}], "val": [{key: 3}]})
    assert part in capsys.readouterr().out
    print_notes({"train": [{}]})
    assert not capsys.readouterr().out
