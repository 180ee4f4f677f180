"""Names of splits become parts of file names, so only plain ones are accepted."""

import pytest

from tfcap.data.splits import ordered, split_name


@pytest.mark.parametrize("name", ["train", "test2014", "val-2", "2017_test", "T"])
def test_plain_names_are_accepted(name):
    assert split_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "..", "a/b", "a\\b", "../val", ".hidden", "-x", "a b", "a\n", "é", "a" * 65, 3, None],
)
def test_names_that_cannot_be_part_of_a_file_name_are_refused(name):
    with pytest.raises(ValueError, match="the name of a split must be 1 to 64 letters"):
        split_name(name)


def test_the_usual_splits_come_first_and_others_in_their_order():
    names = ["test2014", "val", "extra", "train", "test2014", "val"]
    assert ordered(names) == ["train", "val", "test2014", "extra"]
    assert ordered([]) == []


def test_names_that_are_one_file_on_some_systems_are_refused():
    with pytest.raises(ValueError, match="Received: 'test2014' and 'Test2014'"):
        ordered(["test2014", "Test2014"])
