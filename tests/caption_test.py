"""Picture files are captioned in order and in batches; unreadable ones are reported."""

import dataclasses
import io
import json
import os
import shutil
import signal
import sys
import types

import numpy as np
import pytest
from helpers import captions, commands
from PIL import Image

import tfcap
from tfcap import caption as caption_command
from tfcap import errors
from tfcap.caption import _Arguments as Arguments
from tfcap.captioning import Caption


@pytest.fixture
def bad(tmp_path):
    """Paths that cannot be read as pictures -> the expected reason."""
    (tmp_path / "empty.png").touch()
    return {
        str(tmp_path / "empty.png"): "the file is empty",
        f"{tmp_path}/miss\ning.png": "there is no such file",
    }


@pytest.mark.slow
def test_the_command_prints_json_and_counts_bad_pictures(trained, captioner, pictures, bad):
    """With another beam. A bad picture gets a line, and the exit code is 3."""
    flag = ["--model_dir", trained, "--beam=3", "--json"]
    done = commands.run_command("tfcap.caption", *flag, pictures[0], *bad, pictures[1])
    assert done.returncode == 3
    *lines, last = commands.errors(done)
    for line, (path, reason) in zip(lines, bad.items(), strict=True):
        assert line.startswith(f"error: {errors.escaped(path)}: ") and reason in line
    assert last.startswith("error: 2 of 4 pictures could not be captioned (1 x ")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["image"] for answer in answers] == pictures[:2]
    wider = captions.every(tfcap.load(trained, beam=3), pictures[:2])
    for answer, (_, texts, scores) in zip(answers, wider, strict=True):
        assert answer["captions"] == texts and answer["caption"] == texts[0] and len(texts) == 3
        np.testing.assert_allclose(answer["scores"], scores, rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "Give at least one picture"),
        (["--before=x", "a.png"], "--before needs --write"),
        (["--write=csv", "a.png"], "--out is missing"),
        (["--write=txt", "--max_characters=1", "--after=.", "a.png"], "leaves no room"),
        (["--write=csv", "--out=a.txt", "a.png"], r"does not end with \.csv"),
        (["--write=xml", "a.png"], "--write must be txt, xmp, .* html or kohya, and not 'xml'"),
        (["--write=kohya", "a.png"], "such as --out=captions.json"),
        (["--write=csv", "--out=a.csv", "--captions=2", "a.png"], "--captions needs --write with"),
        (["--write=xmp", "--language=in English", "a.png"], "is no name of a language"),
        (["--captions=2", "a.png"], "--captions needs --write"),
        (
            ["--write=csv", "--out=a.csv", "--extension=.caption", "a.png"],
            "--extension needs --write with txt. Add",
        ),
        (["--write=txt", "--language=en", "a.png"], "needs --write with xmp or embed. Add"),
        (
            ["--write=csv,html", "--out=a.csv", "a.png"],
            "--out is a single file, so it needs --write",
        ),
        (["--write=txt", "--out=a.txt", "a.png"], "needs --write with exactly one of csv"),
        (["--write=txt", "--json", "a.png"], "--json prints"),
        (["--attention=seen.jpg", "a.png"], "seen.jpg does not end with .png, .pdf, .svg"),
        (["--attention=a.png", "a.png"], "would overwrite a picture"),
        (["--attention=x.png", "a/dog.png", "b/dog.png"], "pictures have the same name"),
        (["--unsure", "a.png"], "--unsure needs --min_confidence"),
        (
            ["--write=txt", "--min_confidence=0.5", "--unsure", "--max_characters=8", "a.png"],
            "leaves no room",
        ),
        (["--rerank=oracle", "a.png"], "--rerank=oracle needs references"),
    ],
)
def test_wrong_flags(arguments, word):
    with pytest.raises(errors.UsageError, match=word):
        commands.run_here(caption_command, *arguments)


def test_further_captions_are_as_good_as_the_first_must_be():
    def made(text, score, confidence, others=()):
        return Caption(text, score, tuple(text.split()), confidence, others)

    others = (
        made("two dogs", -1, 0.4),
        made("three dogs", -4, 0.9),
        made("a dog", -2, 0.9),
        made("a cat", -2, 0.9),
    )
    args = caption_command._Arguments(captions=9, min_confidence=0.5, min_score=-3)
    work = caption_command._Work(args, None, several=False)
    assert work._further(made("a dog", -1, 0.9, others), "a dog") == ["a cat"]


@pytest.mark.slow
def test_a_run_on_ready_made_features_is_refused(trained, pictures, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    fingerprint = json.loads((run / "dataset.json").read_text())
    (run / "dataset.json").write_text(json.dumps({**fingerprint, "backbone": None}))
    with pytest.raises(ValueError, match="ready-made features. Use tfcap.evaluate"):
        commands.run_here(caption_command, "--model_dir", run, *pictures)
    converted = {**fingerprint, "backbone": None, "converted": {"from": "xlan"}}
    (run / "dataset.json").write_text(json.dumps(converted))
    with pytest.raises(ValueError, match="Convert it again with --regions=DETECTOR"):
        commands.run_here(caption_command, "--model_dir", run, *pictures)


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_a_name_that_is_not_utf8_does_not_end_the_command(
    trained, pictures, tmp_path, flag, monkeypatch
):
    """Such names come from old disks and archives."""
    folder, output = os.fsencode(tmp_path), io.BytesIO()
    for name in (b"a\xe9.png", b"b.png"):
        shutil.copy(pictures[0], os.path.join(folder, name))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, "utf-8", "strict"))
    commands.run_here(caption_command, "--model_dir", trained, *flag, tmp_path)
    sys.stdout.flush()
    first, second = output.getvalue().splitlines()
    assert b"a\\udce9.png" in first and b"b.png" in second


def test_a_picture_is_read_from_standard_input(trained, captioner, pictures, capsys, monkeypatch):
    with open(pictures[0]) as file:
        monkeypatch.setattr(sys, "stdin", file)
        commands.run_here(caption_command, "--model_dir", trained, "-", pictures[1])
    first, second = captioner(pictures[:2])
    assert capsys.readouterr().out.splitlines() == [f"-\t{first}", f"{pictures[1]}\t{second}"]


class Interrupted(io.BytesIO):
    """Standard input; Ctrl-C is pressed while it is read."""

    def read(self, *size):
        signal.raise_signal(signal.SIGINT)
        return super().read(*size)


@pytest.mark.slow
def test_ctrl_c_says_how_many_pictures_are_done(trained, pictures, monkeypatch):
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=Interrupted()))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    flags = ["--model_dir", trained, "--batch_size=1"]
    done = commands.run_command("tfcap.caption", *flags, *pictures, "-", *pictures)
    signal.signal(signal.SIGINT, before)
    last = f"error: Interrupted after {len(done.stdout.splitlines())} of 11 pictures."
    assert done.returncode == 130 and done.stderr.splitlines()[-1] == last
    assert "Traceback" not in done.stderr and done.stdout


@pytest.mark.slow
def test_the_command_writes_attention_figures_and_reranks(trained, pictures, tmp_path, capsys):
    """Two pictures give a figure each and captions in the order of their consensus."""
    flag = ["--model_dir", trained, "--decoding", "search=sample,samples=5", *pictures[:2]]
    more = ["--json", "--rerank", "consensus", "--rerank_neighbours", "8"]
    more += ["--rerank_index", tmp_path.parent / f"{tmp_path.name}-index"]
    commands.run_here(caption_command, *more, "--attention", tmp_path / "new/seen.png", *flag)
    for line in capsys.readouterr().out.splitlines():
        result = json.loads(line)
        assert len(result["captions"]) == 5 and len(set(result["scores"])) > 1
        # A similarity is never negative, and the logarithm of a probability always is.
        assert (
            result["scores"] == sorted(result["scores"], reverse=True) and result["scores"][-1] >= 0
        )
    names = [os.path.splitext(os.path.basename(path))[0] for path in pictures[:2]]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(
        f"seen-{name}.png" for name in names
    )
    sizes = [Image.open(path).size for path in (tmp_path / "new").iterdir()]
    assert all(width > 100 and height > 100 for width, height in sizes)


def test_the_best_caption_that_fits_is_written():
    texts = ("a dog is running in a field", "a dog in a field", "a dog runs")
    best, *others = (Caption(text, -3.0, tuple(text.split()), 0.4) for text in texts)
    best = dataclasses.replace(best, alternatives=tuple(others))
    for limit, expected in [(0, best), (27, best), (26, others[0]), (10, others[1]), (9, best)]:
        assert Arguments(max_characters=limit).wording.first(best) == expected
    assert Arguments(max_characters=17, sentence=True).wording.first(best) == others[0]
    assert Arguments(max_characters=16, sentence=True).wording.first(best) == others[1]
    # The mark of captions below the level needs room, too.
    unsure = Arguments(max_characters=27, min_confidence=0.5, unsure=True).wording
    assert unsure.first(best) == others[0] and unsure.of(others[0]) == "unsure: a dog in a field"
    assert dataclasses.replace(unsure, min_confidence=0.3).first(best) == best


@pytest.mark.slow
def test_captions_can_be_sentences_and_those_that_do_not_fit_are_counted(
    trained, captioner, pictures, tmp_path, capsys
):
    shutil.copy(pictures[0], tmp_path)
    flags = ["--model_dir", trained, tmp_path]
    commands.run_here(caption_command, *flags, "--sentence")
    text = str(captioner(pictures[0]))
    assert capsys.readouterr().out.endswith(f"\t{text[0].upper()}{text[1:]}.\n")
    commands.run_here(caption_command, *flags, "--write=txt,html", "--max_characters=1")
    said = capsys.readouterr().out
    assert "0 captions are written" in said
    assert "1 captions are left out: no phrase of them fits" in said
    assert not list(tmp_path.glob("*.txt"))
