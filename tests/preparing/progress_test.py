"""What prepare prints while it writes shards."""

from tfcap.preparing.progress import Progress


def test_a_finished_shard_is_a_line_of_a_log_file(capsys):
    progress = Progress(images=8, shards=3, finished=1)
    progress.image()
    progress.problem("skipped image 3")
    progress.shard({"file": "a.tfrecord", "records": 1})
    progress.shard({"file": "b.tfrecord", "records": 6}, images=7)
    progress.end()
    shown = capsys.readouterr()
    assert progress.done == 8 and progress.finished == 3 and progress.rate() > 0
    assert shown.err == "skipped image 3\n"
    lines = [line.rpartition(", ")[0] for line in shown.out.splitlines()]
    assert lines == ["a.tfrecord: 1 images", "b.tfrecord: 6 images"]
