"""The judge scores the half of `val` that chose nothing."""

import json

import pytest

from tfcap.data.prepared import PreparedData
from tfcap.measure.quality import judge
from tfcap.metrics import coco


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(judge, "METRICS", ("BLEU", "CIDEr"))


def test_only_the_second_half_is_scored(shapes, tmp_path, fast):
    data = PreparedData.load(shapes)
    ids, references = data.index("val").id.tolist(), data.references("val")
    captions = {image: references[image][0] for image in ids}
    with judge.Judge(shapes) as one:

        def scored(name, captions):
            rows = [{"image_id": image, "caption": text} for image, text in captions.items()]
            (tmp_path / name).write_text(json.dumps(rows))
            return one.scores(tmp_path / name)

        scores = scored("a", captions)
        assert one.half == len(ids) // 2 == 6 and list(scores.per_image) == ids[6:]
        second = {image: references[image] for image in ids[6:]}
        expected = coco.CocoScorer(("BLEU", "CIDEr")).score(
            second, {i: captions[i] for i in second}
        )
        assert scores.corpus == expected.corpus
        assert scored("b", captions | dict.fromkeys(ids[:6], "nothing")).corpus == scores.corpus
        with pytest.raises(ValueError, match="There are no predictions for image"):
            scored("c", {image: captions[image] for image in ids[:-1]})


def test_a_result_is_read_without_its_captions(shapes, fast):
    with judge.Judge(shapes) as one:
        ids = PreparedData.load(shapes).index("val").id.tolist()[6:]
        values = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
        read = one.read({"scores": {"CIDEr": 35.0}, "images": {"CIDEr": values}})
        assert read.corpus == {"CIDEr": 35.0}
        assert read.per_image == {i: {"CIDEr": v} for i, v in zip(ids, values, strict=True)}
        with pytest.raises(ValueError, match="must have the scores of 6 images. Received: 5."):
            one.read({"scores": {"CIDEr": 35.0}, "images": {"CIDEr": values[:-1]}})


def test_a_half_without_images_is_an_error(shapes, fast, monkeypatch):
    monkeypatch.setattr(
        PreparedData, "references", lambda self, split: dict.fromkeys(range(99), [])
    )
    with pytest.raises(ValueError, match="must have captions in both halves. Received: 12 images"):
        judge.Judge(shapes)
