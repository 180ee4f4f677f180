"""A gallery finds what a search finds, and reads the pictures once."""

import pytest

import tfcap


@pytest.mark.slow
def test_a_gallery_finds_what_a_search_finds(captioner, pictures, bad, tmp_path):
    gallery = captioner.gallery([bad[3][0], *pictures], batch_size=2)
    assert len(gallery) == len(pictures) and gallery.sources == pictures
    (failure,) = gallery.failures
    assert isinstance(failure, tfcap.Failure) and "there is no such file" in failure.reason
    texts = ["a red circle", "a blue square"]
    wanted = captioner.search(texts, pictures, top=3)
    for own, matches in zip(wanted, gallery.search(texts, top=3), strict=True):
        assert [match.source for match in matches] == [match.source for match in own]
        assert [match.position - 1 for match in matches] == [match.position for match in own]
        assert [m.score for m in matches] == pytest.approx([m.score for m in own], abs=1e-4)
    assert gallery.search(texts[0], top=1)[0].source == wanted[0][0].source
    with pytest.warns(UserWarning, match="outside the vocabulary: zebra"):
        gallery.search("a zebra")
    with pytest.raises(ValueError, match="top must be at least 1"):
        gallery.search("a circle", top=0)
    (tmp_path / "empty").mkdir()
    assert captioner.gallery([]).search("a circle") == []
