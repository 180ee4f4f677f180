"""Labelled objects are read from COCO's instance files, one annotation at a time."""

import json

import pytest

from tfcap.metrics.instances import labelled_objects

CONTENT = {
    "info": {"year": 2014, "lists": [1, [2]]},
    "images": [{"id": 42, "file_name": "a.jpg"}, {"id": 7, "file_name": "b.jpg"}, {"id": 9}],
    "licenses": [],
    "annotations": [
        {"segmentation": [[1.5, 2]], "iscrowd": 0, "image_id": 42, "category_id": 18, "id": 1},
        {
            "segmentation": {"counts": [3], "size": [1, 1]},
            "image_id": 42,
            "category_id": 1,
            "id": 2,
        },
        {"image_id": 42, "category_id": 1, "id": 3},
        {"image_id": 7, "category_id": 18, "id": 4},
    ],
    "categories": [
        {"supercategory": "person", "id": 1, "name": "person"},
        {"supercategory": "animal", "id": 18, "name": "dog"},
    ],
}
FOUND = {42: {"person", "dog"}, 7: {"dog"}, 9: set()}


@pytest.mark.parametrize("indent", [None, 1])
def test_each_image_has_its_classes(tmp_path, indent):
    path = tmp_path / "instances_val2014.json"
    path.write_text(json.dumps(CONTENT, indent=indent))
    assert labelled_objects(path) == FOUND


def test_the_order_of_the_keys_and_a_byte_order_mark_do_not_matter(tmp_path):
    path = tmp_path / "instances.json"
    turned = {key: CONTENT[key] for key in reversed(CONTENT)}
    path.write_text("\ufeff " + json.dumps(turned) + "\n")
    assert labelled_objects(path) == FOUND


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [{"image_id": "42", "category_id": 1}]}, 'annotations 0: "image_id" must'),
        ({"annotations": [{"image_id": 42, "category_id": 3}]}, "in categories. Received: 3"),
        ({"annotations": {"image_id": 42}}, "Received: no annotations"),
        ({"categories": [{"id": 1, "name": 2}]}, '"name" must be text'),
        ({"images": [5]}, "images 0 must be an object"),
        ({"categories": None}, "Received: no categories"),
    ],
)
def test_other_layouts_are_refused(tmp_path, change, message):
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(CONTENT | change))
    with pytest.raises(ValueError, match=message):
        labelled_objects(path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"images": [', '{"images": [1 2]}', '{"a" 1}', '{"images": [{}] "b": 1}'],
)
def test_text_that_is_no_such_json_is_refused(tmp_path, text):
    path = tmp_path / "instances.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"instances.json( is not a JSON|: images 0)"):
        labelled_objects(path)
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match="not UTF-8 text at byte 0"):
        labelled_objects(path)
    with pytest.raises(ValueError, match="Cannot read .*none.json"):
        labelled_objects(tmp_path / "none.json")
