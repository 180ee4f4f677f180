"""Curves of validations: read from event files, written as a table and a picture."""

import csv

import pytest
import tensorflow as tf

from tfcap.measure.quality import curves


@pytest.mark.parametrize("names", [("8", "9"), ("9", "10")])  # by name, 10 stands before 9
def test_the_last_value_of_a_step_counts_and_groups_are_left_out(names, tmp_path):
    for name, values in zip(names, ({5: 1.0, 10: 2.0}, {10: 3.0}), strict=True):
        with tf.summary.create_file_writer(str(tmp_path / "new")).as_default():
            for step, value in values.items():
                tf.summary.scalar("scores/CIDEr", value, step)
                tf.summary.scalar("loss", -value, step)
        (written,) = (tmp_path / "new").iterdir()
        written.rename(tmp_path / f"events.out.tfevents.{name}.v2")
    read = curves.scalars(str(tmp_path))
    assert read == {"CIDEr": {5: 1.0, 10: 3.0}, "loss": {5: -1.0, 10: -3.0}}


def test_the_damaged_end_of_a_killed_run_is_left_out(tmp_path):
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for step in (1, 2):
            tf.summary.scalar("CIDEr", step / 2, step)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    assert curves.scalars(str(tmp_path)) == {"CIDEr": {1: 0.5}}


def test_a_folder_without_event_files_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="A run must have event files. Received: "):
        curves.scalars(str(tmp_path))


def test_the_table_and_the_picture_hold_every_run(tmp_path):
    curves.write(str(tmp_path), {"b": {10: 2.0, 5: 1.25}, "a": {5: 3.0}})
    with open(tmp_path / "curves.csv", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["run", "step", "CIDEr"]
    assert rows == [["b", "5", "1.25"], ["b", "10", "2.00"], ["a", "5", "3.00"]]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    curves.write(str(tmp_path), {})
    assert (tmp_path / "curves.csv").read_text().strip() == "run,step,CIDEr"
