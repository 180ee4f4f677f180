"""Picture files are captioned in order and in batches; unreadable ones are reported."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers import captions, commands
from PIL import Image

import tfcap
from tfcap import caption as caption_command
from tfcap import cli
from tfcap.data.prepared import PreparedData


@pytest.fixture(scope="module")
def pictures(shapes):
    """Paths of five pictures of the data."""
    data = PreparedData.load(shapes)
    return [os.path.join(data.images, name) for name in list(data.file_names("val").values())[:5]]


@pytest.mark.slow
def test_the_command_prints_json_and_counts_bad_pictures(trained, captioner, pictures, tmp_path):
    """Also with another beam and precision. With one bad picture of three, the exit code is 3."""
    (tmp_path / "text.png").write_text("no picture")
    paths = [pictures[0], str(tmp_path / "text.png"), pictures[1]]
    flag = ["--model_dir", trained, "--beam=3", "--dtype=bfloat16", "--json"]
    done = commands.run_command("tfcap.caption", *flag, *paths)
    assert done.returncode == 3
    lines = commands.errors(done)
    assert len(lines) == 2 and lines[0].startswith(f"error: {paths[1]}: a picture must be JPEG")
    assert lines[1] == "error: 1 of 3 pictures could not be captioned"
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["image"] for answer in answers] == [paths[0], paths[2]]
    wider = tfcap.load(trained, beam=3, dtype="bfloat16")
    expected = list(captions.every(wider, paths[::2]))
    assert [answer["captions"] for answer in answers] == [found for _, found, _ in expected]
    scores = [answer["scores"] for answer in answers]
    np.testing.assert_allclose(scores, [found for _, _, found in expected], rtol=1e-5)
    exact = next(captions.every(tfcap.load(trained, beam=3), paths[:1]))[2]
    assert scores[0] != exact and scores[0] == pytest.approx(exact, rel=0.02)  # bfloat16 rounds
    for answer in answers:
        assert answer["caption"] == answer["captions"][0]
        assert len(answer["scores"]) == len(answer["captions"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_a_name_that_is_not_utf8_does_not_end_the_command(trained, pictures, tmp_path, flag):
    """Such names come from old disks and archives."""
    folder = os.fsencode(tmp_path)
    for name in (b"a\xe9.png", b"b.png"):
        shutil.copy(pictures[0], os.path.join(folder, name))
    done = subprocess.run(
        [sys.executable, "-m", "tfcap.caption", "--model_dir", trained, *flag, tmp_path],
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},  # as in most locales but C
        capture_output=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2, done.stderr
    assert b"a\\udce9.png" in lines[0] and b"b.png" in lines[1]


@pytest.mark.slow
def test_a_missing_picture_gives_one_error_line():
    done = commands.run_command("tfcap.caption")
    assert done.returncode == 2
    assert commands.errors(done) == ["error: At least one picture file must be given."]


def test_the_command_prints_path_and_caption(trained, captioner, pictures, capsys):
    commands.run_here(caption_command, "--model_dir", trained, *pictures[:2])
    expected = [f"{one.source}\t{one}" for one in captioner(pictures[:2])]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_picture_is_read_from_standard_input(trained, captioner, pictures, capsys, monkeypatch):
    with open(pictures[0]) as file:
        monkeypatch.setattr(sys, "stdin", file)
        commands.run_here(caption_command, "--model_dir", trained, "-", pictures[1])
    first, second = captioner(pictures[:2])
    assert capsys.readouterr().out.splitlines() == [f"-\t{first}", f"{pictures[1]}\t{second}"]


@pytest.mark.slow
def test_a_name_with_a_tab_is_one_column(trained, pictures, tmp_path, capsys):
    names = [tmp_path / "a\tb\nc.png", tmp_path / "d\ne.png"]
    shutil.copy(pictures[0], names[0])
    with pytest.raises(SystemExit):
        commands.run_here(caption_command, "--model_dir", trained, *names)
    said = capsys.readouterr()
    (line,) = said.out.splitlines()
    assert line.split("\t")[0] == f"{tmp_path}/a\\tb\\nc.png" and line.count("\t") == 1
    assert said.err.splitlines()[0] == f"error: {tmp_path}/d\\ne.png: there is no such file"


@pytest.mark.slow
def test_ctrl_c_says_how_many_pictures_are_done(trained, pictures):
    command = [sys.executable, "-m", "tfcap.caption", "--model_dir", trained, "--batch_size=1"]
    with subprocess.Popen(
        [*map(str, command), *(pictures * 200)],
        cwd=commands.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    done = 1 + len(out.splitlines())
    last = f"error: Interrupted after {done} of 1000 pictures."
    assert process.returncode == 130 and err.splitlines()[-1] == last and "Traceback" not in err


@pytest.mark.slow
def test_runs_on_ready_made_features_are_refused(trained, pictures, tmp_path):
    with pytest.raises(cli.UsageError, match="At least one picture file must"):
        commands.run_here(caption_command, "--model_dir", trained)
    with pytest.raises(ValueError, match="params.yaml is missing. --model_dir must be"):
        commands.run_here(caption_command, "--model_dir", tmp_path, *pictures)
    run = shutil.copytree(trained, tmp_path / "run")
    fingerprint = json.loads((run / "dataset.json").read_text())
    (run / "dataset.json").write_text(json.dumps({**fingerprint, "backbone": None}))
    with pytest.raises(ValueError, match="trained on ready-made features.*tfcap.evaluate"):
        commands.run_here(caption_command, "--model_dir", run, *pictures)


@pytest.mark.slow
def test_the_command_writes_attention_figures_and_reranks(trained, pictures, tmp_path, capsys):
    """Two pictures give a figure each and captions in the order of their consensus."""
    flag = ["--model_dir", trained, "--decoding", "search=sample,samples=5", *pictures[:2]]
    more = ["--json", "--rerank", "consensus", "--rerank_neighbours", "8"]
    more += ["--rerank_index", tmp_path.parent / f"{tmp_path.name}-index"]
    commands.run_here(caption_command, *more, "--attention", tmp_path / "new/seen.png", *flag)
    for line in capsys.readouterr().out.splitlines():
        found = json.loads(line)
        assert len(found["captions"]) == 5 and len(set(found["scores"])) > 1
        # A similarity is never negative, and the logarithm of a probability always is.
        assert found["scores"] == sorted(found["scores"], reverse=True) and found["scores"][-1] >= 0
    names = [os.path.splitext(os.path.basename(path))[0] for path in pictures[:2]]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(
        f"seen-{name}.png" for name in names
    )
    sizes = [Image.open(path).size for path in (tmp_path / "new").iterdir()]
    assert all(width > 100 and height > 100 for width, height in sizes)


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--attention=seen.jpg", "must name a .png file"),
        ("--rerank=oracle", "needs references. Use tfcap.evaluate"),
    ],
)
def test_bad_attention_and_rerank_flags_are_refused(trained, pictures, flag, part):
    with pytest.raises(cli.UsageError, match=part):
        commands.run_here(caption_command, "--model_dir", trained, flag, pictures[0])
    with pytest.raises(cli.UsageError, match="--attention=.* would overwrite a picture"):
        commands.run_here(caption_command, pictures[0], f"--attention={pictures[0]}")
    with pytest.raises(cli.UsageError, match="several pictures of the same name"):
        commands.run_here(
            caption_command,
            *["--model_dir", trained, "--attention=x.png", "a/dog.png", "b/dog.png"],
        )
