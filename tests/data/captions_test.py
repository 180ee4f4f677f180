"""The captions that a model learns from are those of the records."""

import json

from helpers.prepared import write_directory

from tfcap.data.captions import stored_captions
from tfcap.data.prepared import PreparedData
from tfcap.data.references import write_references


def test_the_words_of_a_caption_file_come_from_the_records(tmp_path):
    made = write_directory(str(tmp_path))
    raw = {record.image_id: ["A dog's.", "One cat!"] for record in made}
    rows = [(image, f"{image}.jpg", texts) for image, texts in raw.items()]
    write_references(tmp_path, "train", rows)
    data = PreparedData.load(tmp_path)
    assert stored_captions(data, "train") == data.references("train") == raw
    fingerprint = json.loads((tmp_path / "dataset.json").read_text())
    (tmp_path / "dataset.json").write_text(json.dumps(fingerprint | {"tokens": "given"}))
    data = PreparedData.load(tmp_path)
    assert stored_captions(data, "train") == {image: ["A dog .", "one Cat"] for image in raw}
    assert list(stored_captions(data, "train")) == list(raw)
