"""A run that was trained on clips captions GIF files, folders of frames, and exports itself."""

import io
import json
import pathlib

import numpy as np
import pytest
from helpers import commands, picture_bytes
from PIL import Image, ImageSequence

import tfcap
from tfcap import caption as command
from tfcap import configs
from tfcap.data import clips
from tfcap.data.prepared import PreparedData
from tfcap.training.stages import train

# It trains, and writes a SavedModel.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("module_without_java")]


@pytest.fixture(scope="module")
def run(moving_shapes, small, tmp_path_factory):
    """A finished run of a few steps on clips."""
    folder = str(tmp_path_factory.mktemp("run"))
    model = {"attention_lstm": {"width": 16, "attention_width": 6, "region_positions": "frames"}}
    task = {**small["task"], "data_dir": moving_shapes, "model": model}
    task |= {"max_length": 6, "decoding": {"beam": 1}}
    trainer = {**small["trainer"], "train_steps": 2, "validation_interval": 2}
    # Two steps and one validation take less time than their graphs.
    graphs = ("train_tf_function", "train_tf_while_loop", "eval_tf_function")
    trainer |= dict.fromkeys(graphs, False)
    override = json.dumps({"task": task, "trainer": trainer})
    params = configs.resolve("attention_lstm", override=override)
    train(params, "attention_lstm", folder)
    return folder


@pytest.fixture(scope="module")
def captioner(run):
    return tfcap.load(run)


@pytest.fixture(scope="module")
def paths(moving_shapes):
    data = PreparedData.load(moving_shapes)
    return [str(pathlib.Path(data.images, name)) for name in data.file_names("val").values()]


@pytest.fixture(scope="module")
def folders(paths, tmp_path_factory):
    """A folder with the frames of the first two clips, each in a folder of its own."""
    place = tmp_path_factory.mktemp("folders")
    for number, path in enumerate(paths[:2]):
        (place / str(number)).mkdir()
        with Image.open(path) as file:
            for frame, one in enumerate(ImageSequence.Iterator(file)):
                one.convert("RGB").save(place / str(number) / f"{frame}.png")
    return place


def test_a_gif_file_is_read_whole(captioner, paths, moving_shapes):
    data = PreparedData.load(moving_shapes)
    ids = list(data.file_names("val"))
    recorded = data.read("val", ids)["features"].numpy()
    np.testing.assert_array_equal(captioner.features(paths), recorded)
    assert str(captioner(paths[0])) and len(captioner(paths)) == len(paths)
    content = pathlib.Path(paths[0]).read_bytes()
    assert captioner(content).score == pytest.approx(captioner(paths[0]).score, abs=1e-5)


def test_a_clip_played_backwards_has_its_regions_in_reverse_order(captioner, paths):
    with Image.open(paths[0]) as file:
        frames = [one.convert("RGB") for one in ImageSequence.Iterator(file)][:8]
    there, back = io.BytesIO(), io.BytesIO()
    frames[0].save(there, "GIF", save_all=True, append_images=frames[1:], duration=100)
    frames[-1].save(back, "GIF", save_all=True, append_images=frames[-2::-1], duration=100)
    one, other = captioner.features([there.getvalue(), back.getvalue()])
    np.testing.assert_allclose(one, other[::-1], atol=0.05)
    assert np.abs(one - other).max() > 0.3


def test_folders_are_clips(captioner, paths, folders):
    one = captioner(folders / "0")  # a clip: one caption and no list
    assert one.text == str(captioner(paths[0])) and one.source == str(folders / "0")
    both = captioner(folders)
    assert [str(caption) for caption in both] == [str(caption) for caption in captioner(paths[:2])]
    assert [caption.source for caption in both] == [str(folders / "0"), str(folders / "1")]
    assert len(captioner(pathlib.Path(paths[0]).parent)) > len(paths)  # a folder of GIF files


def test_a_still_picture_and_pixels_are_clips_of_one_frame(captioner, folders):
    frame = folders / "0" / "0.png"
    features = captioner.features([frame, np.asarray(Image.open(frame))])
    np.testing.assert_array_equal(features[0], features[1])
    assert (features[0] == features[0][0]).all()


def test_bad_clips_have_a_reason(captioner, paths, tmp_path):
    (tmp_path / "cut.gif").write_bytes(pathlib.Path(paths[0]).read_bytes()[:100])
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "0.png").write_bytes(b"no picture")
    cut, good, folder = captioner.stream([tmp_path / "cut.gif", paths[0], tmp_path / "frames"])
    assert "or it is damaged" in cut.reason and str(good)
    assert "0.png: a picture must be" in folder.reason


def test_attention_is_drawn_on_a_sheet_of_the_frames(captioner, paths, tmp_path):
    caption = captioner(paths[0], attention="attention")
    assert caption.picture.shape == (3 * 96, 3 * 96, 3)  # eight frames and an empty place
    np.testing.assert_array_equal(caption.boxes, clips.sheet_boxes(8))
    assert caption.weights.shape == (len(caption.words), 8)
    caption.draw(tmp_path / "seen.png")
    assert Image.open(tmp_path / "seen.png").size[0] > 100


def test_the_command_captions_clips(run, captioner, paths, folders, capsys):
    commands.run_here(command, f"--model_dir={run}", paths[0], str(folders))
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == [paths[0], str(folders / "0"), str(folders / "1")]
    assert lines[0][1] == lines[1][1] == str(captioner(paths[0]))


def test_the_export_takes_the_bytes_of_gif_files(captioner, paths, folders, tmp_path):
    captioner.export(tmp_path)
    served = tfcap.load(tmp_path)
    frame = np.full((9, 9), 7, np.uint8)
    steps = [(frame, left, 40) for left in (10, 20, 30)]  # each smaller than the screen
    content = picture_bytes.gif((64, 64), steps)
    result = served([paths[0], paths[1], folders / "0" / "0.png", content])
    wanted = captioner([paths[0], paths[1], folders / "0" / "0.png", content])
    assert [str(caption) for caption in result] == [str(caption) for caption in wanted]
    assert [one.score for one in result] == pytest.approx([one.score for one in wanted], abs=1e-4)
    with pytest.raises(ValueError, match="no directories of frames"):
        served(folders / "0")
