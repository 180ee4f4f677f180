"""A SavedModel is a captioner too; what it cannot do is refused with a sentence."""

import os
import shutil

import numpy as np
import pytest
from helpers import captions, commands, picture_bytes

import tfcap
from tfcap import caption as command
from tfcap import errors

pytestmark = pytest.mark.slow  # it writes a SavedModel and loads it


@pytest.fixture(scope="module")
def served(exported):
    return tfcap.load(exported)


def test_it_gives_the_captions_of_the_run(captioner, served, exported, pictures, tmp_path):
    wanted = list(captions.every(captioner, pictures))
    for path, result, scores in captions.every(served, pictures, 2):
        assert (path, result) == wanted[0][:2]
        assert scores == pytest.approx(wanted.pop(0)[2], abs=1e-4)
    assert not wanted
    own, other = captioner(pictures[0]), served(pictures[0])
    for one, same in zip((own, *own.alternatives), (other, *other.alternatives), strict=True):
        np.testing.assert_allclose(one.log_probs, same.log_probs, atol=1e-4)
    assert repr(tfcap.load(os.path.join(exported, "1"))) == repr(served)
    folder = shutil.copytree(exported, tmp_path / "served")
    (folder / "0").mkdir()  # an empty, older version
    (folder / "2").mkdir()  # a newer one that is still being copied
    assert repr(tfcap.load(folder)) == repr(served).replace(exported, str(folder))


def test_a_bad_picture_does_not_stop_its_batch(served, pictures, bad):
    large = picture_bytes.claiming("PNG", 7100, 7100)
    values = [pictures[0], bad[0][0], pictures[1], bad[3][0], large]
    first, cut, second, missing, refused = served.stream(values)
    assert [str(first), str(second)] == [str(caption) for caption in served(pictures[:2])]
    assert bad[0][1] in cut.reason and bad[3][1] in missing.reason
    wanted = "too many pixels: 50410000, at most 50000000. Save the picture smaller."
    assert refused.reason == wanted


def test_what_it_cannot_do_is_refused(served, pictures):
    for ask in (
        lambda: served(pictures[0], attention="attention"),
        lambda: served.score(pictures[0], "a red circle"),
        lambda: served.model,
    ):
        with pytest.raises(ValueError, match="is an exported SavedModel, which only captions"):
            ask()


def test_options_of_a_run_are_refused(exported, served, trained):
    assert served.decoding is None
    with pytest.raises(ValueError, match="`beam` cannot be used with .*an export"):
        tfcap.load(exported, beam=3)
    with pytest.raises(ValueError, match="An ensemble needs run directories"):
        tfcap.load([trained, exported])


def test_the_command_takes_it(exported, pictures, captioner, capsys):
    lines = [f"{path}\t{result[0]}" for path, result, _ in captions.every(captioner, pictures[:2])]
    commands.run_here(command, "--model_dir", exported, *pictures[:2])
    assert capsys.readouterr().out.splitlines() == lines


def test_the_command_refuses_to_rerank_with_it(exported, pictures):
    with pytest.raises(errors.UsageError, match="--rerank needs a run"):
        commands.run_here(command, "--model_dir", exported, "--rerank=consensus", pictures[0])


def test_a_tiff_file_has_the_caption_of_the_same_png(captioner, served):
    tiff, png = picture_bytes.file("TIFF"), picture_bytes.file("PNG")
    for model in (captioner, served):
        assert model(tiff).score == pytest.approx(model(png).score, abs=1e-6)
    [failure] = served.stream([tiff[:-40]])
    assert "a truncated or damaged TIFF file" in failure.reason
