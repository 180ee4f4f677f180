"""The captioner that comes with the package: its name, its files, its card, and a caption."""

import os
import pathlib
import re
import socket

import numpy as np
import pytest
from helpers import commands
from PIL import Image

import tfcap
from tfcap import caption as caption_command
from tfcap import prepare, pretrained, runs, train
from tfcap.backbones import networks
from tfcap.data.tokens import Vocab
from tfcap.ids import UNK
from tfcap.runs import checkpoints, compact

FOLDER = pathlib.Path(pretrained.packaged_directory(pretrained.DEFAULT))
FILES = {"MODEL_CARD.md", "checkpoint", "ckpt-0.data-00000-of-00001", "ckpt-0.index"}
FILES |= {"dataset.json", "info.json", "params.yaml", "vocab.txt"}
FILES |= {"captioner.json", "captioner.tflite", "confidence.json", "confidence.npz"}


def test_a_run_of_the_same_name_goes_first_and_another_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pretrained.directory_of("flickr8k") == str(FOLDER)
    assert pretrained.directory_of("runs/a") == "runs/a"
    folder = tmp_path / "flickr8k"
    folder.mkdir()
    (folder / "photo.jpg").touch()
    assert pretrained.directory_of("flickr8k") == str(FOLDER)
    assert pretrained.directory_of("./flickr8k") == "./flickr8k"
    (folder / "1").mkdir()  # a version of an export
    assert pretrained.directory_of("flickr8k") == "flickr8k"
    (folder / "1").rename(folder / "params.yaml")
    assert pretrained.directory_of(pathlib.Path("flickr8k")) == "flickr8k"


def test_an_unknown_name_is_an_error_with_the_known_ones():
    with pytest.raises(ValueError, match="There is no run directory flickr9k. .* models: flickr8k"):
        tfcap.load("flickr9k")
    with pytest.raises(ValueError, match="no pretrained model 'flickr9k'. .* flickr8k"):
        pretrained.packaged_directory("flickr9k")


def test_other_flags_take_the_name():
    assert checkpoints.find("flickr8k") == str(FOLDER / "ckpt-0")  # task.init_checkpoint
    with pytest.raises(ValueError, match=f"{FOLDER} has 1 checkpoints, fewer than `last=2`"):
        compact.load_mean("flickr8k", 2)


@pytest.mark.parametrize("name", pretrained.names())
def test_a_model_is_small_and_holds_no_picture_and_no_caption(name):
    folder = pathlib.Path(pretrained.packaged_directory(name))
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*")}
    assert sizes.keys() == FILES and sum(sizes.values()) < 24e6
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    assert len(words) > 1000 and not [word for word in words if re.search(r"\s", word)]
    rest = "".join((folder / file).read_text() for file in ("params.yaml", "dataset.json"))
    assert not re.search(r"[\s\"'](/|~)\w", rest), "a path of the machine that made it"


@pytest.mark.slow
def test_a_picture_gets_a_sentence_without_a_model_dir_and_without_a_network(
    tmp_path, monkeypatch, capsys
):
    def refused(*_, **__):
        raise OSError("there is no network")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.chdir(tmp_path)
    y, x = np.mgrid[:120, :160]
    picture = np.stack([y, 90 + x // 2, 255 - y], 2).astype(np.uint8)  # sky above grass
    Image.fromarray(picture).save("photo.jpg")
    commands.run_here(caption_command, "photo.jpg")
    path, _, sentence = capsys.readouterr().out.strip().partition("\t")
    captioner = tfcap.load()
    assert captioner("photo.jpg").text == sentence and "of flickr8k, beam" in repr(captioner)
    expected = Vocab.load(os.path.join(FOLDER, "vocab.txt")).words
    assert path == "photo.jpg" and 3 < len(sentence.split()) < 21
    assert set(sentence.split()) <= set(expected)
    try:
        networks.wheel_file()
    except ValueError:
        pytest.skip("the extra lite is not installed")
    assert captioner.model.name == "aoanet"  # the run beside the file
    reranking = caption_command._load(caption_command._Arguments(rerank="consensus"))
    assert reranking.runtime is reranking.runtime.trained  # the file cannot rerank
    shown = captioner("photo.jpg", attention="attention")
    assert shown.weights.shape == (len(shown.words), 49)
    by_run = tfcap.load(beam=3)("photo.jpg")
    # Half precision shows in a drawing, which is nothing like the photographs of the training.
    assert captioner("photo.jpg").score == pytest.approx(by_run.score, abs=1)


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_the_packaged_captioner_is_trained_further(shapes, tmp_path, monkeypatch, capsys):
    """The commands of the README, on drawings: they start from its weights, row by word."""
    try:
        networks.wheel_file()
    except ValueError:
        pytest.skip("the extra lite is not installed")
    monkeypatch.chdir(tmp_path)
    flags = ["--captions", f"{shapes}/dataset_shapes.json", "--images", f"{shapes}/images"]
    flags += ["--backbone", "efficientnet_lite2", "--min_count=1", "--out=data/mine"]
    commands.run_here(prepare, *flags)
    said = capsys.readouterr().out
    assert "--experiment=finetune --params_override=task.data_dir=data/mine --model_dir" in said
    small = "task.data_dir=data/mine,task.metrics=[CIDEr],trainer.shown_images=0,"
    small += "trainer.optimizer_config.schedule.learning_rate=1.0e-30,trainer.train_steps=1,"
    small += "trainer.train_tf_function=false,trainer.train_tf_while_loop=false,"
    small += "trainer.steps_per_loop=1,trainer.summary_interval=1,task.validation_data.limit=4"
    more = ["--experiment=finetune", f"--params_override={small}", "--model_dir=runs/mine"]
    commands.run_here(train, *more)
    assert "step 0: " in capsys.readouterr().out  # the score of the packaged captioner
    mine, packaged = runs.load("runs/mine"), runs.load("flickr8k")
    ids = packaged.vocab.ids(mine.vocab.words)
    expected = [row for row, number in enumerate(ids) if number != UNK]
    mine, packaged = (one.model.checkpoint_items["weights"] for one in (mine, packaged))
    assert len(expected) > 5
    np.testing.assert_allclose(
        mine["embed_tokens/embeddings"].numpy()[expected],
        packaged["embed_tokens/embeddings"].numpy()[np.array(ids)[expected]],
        rtol=1e-3,
    )
