"""The command ranks in both directions, continues after a kill, and finds images by query."""

import dataclasses
import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from helpers import commands
from helpers.prepared import with_other_vocabulary, without_training_images
from PIL import Image

from tfcap import cli, retrieve, runs
from tfcap.data.prepared import PreparedData
from tfcap.metrics import retrieval
from tfcap.nearest.space import Space
from tfcap.scoring import likelihood
from tfcap.scoring.candidates import Candidates
from tfcap.scoring.marginal import marginal_places
from tfcap.scoring.retrieval import Pairs, find, rank
from tfcap.visualize import contact_sheet

pytestmark = pytest.mark.slow

FLAGS = ("--split=val", "--marginal_images=9", "--seed=5", "--batch_size=2", "--shortlist=4")


@pytest.fixture(scope="module")
def data(shapes):
    return PreparedData.load(shapes)


@pytest.fixture(scope="module")
def run(trained):
    return runs.load(trained)


@pytest.fixture(scope="module")
def ranked(trained, tmp_path_factory):
    """Runs the command once; returns its output and the directory of its files."""
    folder = tmp_path_factory.mktemp("ranked")
    done = commands.run_command(
        "tfcap.retrieve",
        f"--model_dir={trained}",
        *FLAGS,
        f"--output={folder / 'scores'}",
        f"--metrics={folder / 'metrics.json'}",
        f"--index={folder / 'index'}",
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout, folder


def _parts(run, data, split, places):
    """Computes scores [len(places), N] of all validation captions given images, in one block."""
    captions = [c for own in data.references("val").values() for c in own]
    sentences = likelihood.encode(run.vocab, captions, run.params.task.max_length)
    scorer = likelihood.PairScorer(run.model, data.input_specs, sentences)
    (block,) = likelihood.images(data, split, places, len(places))
    return scorer(**block)


def test_the_command_writes_scores_and_ranks(ranked, run, data):
    printed, folder = ranked
    names = ["marginal-seed5.npy", "pairs.json", "pairs.npy"]
    assert sorted(path.name for path in (folder / "scores").iterdir()) == names
    scores = np.load(folder / "scores" / "pairs.npy")
    given = np.load(folder / "scores" / "marginal-seed5.npy")
    assert scores.dtype == np.float32 and len(scores) == 12 and len(given) == 9
    np.testing.assert_allclose(scores, _parts(run, data, "val", range(12)), rtol=1e-5)
    places = marginal_places(data, 9, 5)
    assert len(set(places.tolist())) == 9 and places.max() < 64
    np.testing.assert_allclose(given, _parts(run, data, "train", places), rtol=1e-5)

    owners = np.repeat(np.arange(12), [len(own) for own in data.references("val").values()])
    log_sum = np.log(np.exp(given.astype(np.float64)).sum(0))
    expected = {
        "image to text": retrieval.image_to_text(scores, owners, log_sum),
        "text to image": retrieval.text_to_image(scores, owners),
    }
    metrics = json.loads((folder / "metrics.json").read_text())
    rows = {row.split("  ")[0]: row.split() for row in printed.splitlines()}
    for name, queries in expected.items():
        summary = retrieval.summarize(list(queries))
        assert metrics[name] == summary.as_dict()
        numbers = [*summary.recall.values(), summary.median]
        np.testing.assert_allclose([float(n) for n in rows[name][-4:]], numbers, atol=0.06)
    assert (
        metrics["marginal"] == {"images": 9, "seed": 5, "normalise": "images"}
        and metrics["signature"] == "cross-entropy"
    )
    assert metrics["image to text, 4 nearest"]["R@10"] >= metrics["image to text"]["R@10"]
    assert f"{(12 + 9) * len(owners)} pairs in " in printed


def test_a_killed_command_continues(ranked, trained, run, data, tmp_path, monkeypatch, capsys):
    """After SIGKILL only the missing rows are computed, and the result is the same."""
    folder = tmp_path / "scores"
    given = [f"--model_dir={trained}", *FLAGS, f"--output={folder}"]
    given.append(f"--index={tmp_path / 'index'}")
    slow = "import time; from tfcap.scoring import likelihood as l; f = l.PairScorer.__call__\n"
    slow += "l.PairScorer.__call__ = lambda *a, **k: (time.sleep(0.3), f(*a, **k))[1]\n"
    slow += "from tfcap import retrieve; retrieve.main()"
    process = commands.start("-c", slow, *given, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not (folder / "pairs.npy").exists() or np.isnan(np.load(folder / "pairs.npy")[3]).any():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    left = np.flatnonzero(np.isnan(np.load(folder / "pairs.npy")).any(1))
    assert 0 < len(left) <= 8 and left[0] >= 4

    computed, real = [], likelihood.PairScorer.__call__
    monkeypatch.setattr(
        likelihood.PairScorer,
        "__call__",
        lambda self, features, mask: computed.append(len(mask)) or real(self, features, mask),
    )
    pairs = Pairs(run, data, "val", limit=0, block=2)
    rank(pairs, 9, 5, str(folder))
    assert sum(computed) == len(left) + 9
    for name in ("pairs.npy", "marginal-seed5.npy"):
        np.testing.assert_array_equal(np.load(folder / name), np.load(ranked[1] / "scores" / name))

    computed.clear()  # with more of the marginal's images the rest is computed, with fewer nothing
    rank(pairs, 12, 5, str(folder))
    assert sum(computed) == 3 and len(np.load(folder / "marginal-seed5.npy")) == 12
    computed.clear()
    capsys.readouterr()
    fewer, _ = rank(pairs, 4, 5, str(folder))
    assert not computed and "pairs in" not in capsys.readouterr().out
    in_memory, _ = rank(pairs, 4, 5)
    assert [fewer[name].as_dict() for name in fewer] == [
        in_memory[name].as_dict() for name in fewer
    ]


def test_scores_of_another_model_are_refused(ranked, run, data, tmp_path):
    folder = shutil.copytree(ranked[1] / "scores", tmp_path / "scores")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    weight = run.model.trainable_variables[0]
    kept = weight.numpy()
    pairs = Pairs(run, data, "val", limit=0, block=2)
    try:
        weight.assign_add(np.full(kept.shape, 1e-3, np.float32))
        with pytest.raises(ValueError, match="other settings: model.*Choose another --output"):
            rank(pairs, 9, 5, str(folder))
    finally:
        weight.assign(kept)
    some = Pairs(run, data, "val", limit=5, block=2)
    with pytest.raises(ValueError, match="other settings: images, sentences"):
        rank(some, 9, 5, str(folder))
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_scores_of_fewer_regions_or_another_precision_are_refused(ranked, run, trained, data):
    """The weights are the same, but the scores are not."""
    folder = ranked[1] / "scores"
    params = run.params.replace(task={"validation_data": {"max_regions": 2}})
    fewer = dataclasses.replace(run, params=params)
    with pytest.raises(ValueError, match="other settings: model. They"):
        rank(Pairs(fewer, data, "val", limit=0, block=2), 9, 5, str(folder))
    rounded = runs.load(trained, dtype="bfloat16")
    with pytest.raises(ValueError, match="other settings: precision. They"):
        rank(Pairs(rounded, data, "val", limit=0, block=2), 9, 5, str(folder))


def test_queries_find_their_images_and_a_sheet_shows_them(trained, run, data, tmp_path, capsys):
    sheet = tmp_path / "found.png"
    queries = ["a red circle above a zebra", "two small blue squares"]
    given = [f"--model_dir={trained}", *(f"--query={query}" for query in queries), "--word=red"]
    picture = next(iter(data.picture_paths("test").values()))
    given += [f"--image={picture}", "--normalise=mean_image", "--marginal_images=2"]
    commands.run_here(retrieve, *given, "--top=3", f"--sheet={sheet}")
    word, *lines = capsys.readouterr().out.splitlines()[1:]
    assert word.startswith("red: ") and word.count(",") == 2
    captions = {text for own in data.references("val").values() for text in own}
    assert lines[-4] == picture
    assert {line[16:] for line in lines[-3:]} <= captions and lines[-1].split()[0] == "3"
    assert lines[0] == queries[0] and lines[4] == queries[1]
    assert any(line.startswith("note: ") and "zebra" in line for line in lines)
    sentences = likelihood.encode(run.vocab, queries, run.params.task.max_length)
    scorer = likelihood.PairScorer(run.model, data.input_specs, sentences)
    (block,) = likelihood.images(data, "val", range(12), 12)
    names = list(data.file_names("val").values())
    for column, first in zip(scorer(**block).T, (1, 5), strict=True):
        best = np.argsort(-column, kind="stable")[:3]
        for number, (line, place) in enumerate(zip(lines[first:], best, strict=False), start=1):
            rank, score, name = line.split()
            assert (int(rank), name) == (number, names[place])
            assert float(score) == pytest.approx(column[place], abs=0.011)
    with Image.open(sheet) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    assert _tiles(pixels) == (2, 3)


def _tiles(pixels):
    """Returns rows and columns of a sheet; every square must have a picture and a text."""
    step, line, edge = contact_sheet.TILE, contact_sheet.LINE, contact_sheet.EDGE
    rows = (pixels.shape[0] - edge) // (step + 2 * line + edge)
    columns = (pixels.shape[1] - edge) // (step + edge)
    for row in range(rows):
        for column in range(columns):
            top = edge + row * (step + 2 * line + edge) + line
            left = edge + column * (step + edge)
            tile = pixels[top : top + step, left : left + step]
            assert (tile != 255).any(-1).mean() > 0.2, "no picture there"
            text = pixels[top + step : top + step + line, left : left + step]
            assert 0 < (text < 128).any(-1).mean() < 0.2, "no text under it"
    return rows, columns


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "--model_dir is missing: .* models: flickr8k"),
        ("--model_dir=a --neighbours=2", "--neighbours compares with --refined"),
        (
            "--model_dir=a --neighbours=2 --refined=a --query=b --sheet=c.png",
            "either queries or --neighbours",
        ),
        ("--model_dir=no/run", "no/run"),
    ],
)
def test_wrong_flags_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        commands.run_here(retrieve, *given.split())


def test_data_without_pictures_or_with_other_words_is_refused(
    trained, shapes, tmp_path, monkeypatch
):
    other = with_other_vocabulary(shapes, tmp_path / "other")
    with pytest.raises(ValueError, match="other has another vocabulary"):
        commands.run_here(retrieve, f"--model_dir={trained}", f"--data_dir={other}")
    monkeypatch.setattr(PreparedData, "images", None)
    with pytest.raises(ValueError, match="--sheet needs pictures"):
        commands.run_here(retrieve, f"--model_dir={trained}", "--query=a circle", "--sheet=a.png")


def test_data_without_training_images_is_refused_before_the_scoring(
    trained, shapes, data, tmp_path, capsys
):
    folder = without_training_images(shapes, tmp_path / "val")
    picture = next(iter(data.picture_paths("val").values()))
    given = [f"--model_dir={trained}", f"--data_dir={folder}"]
    for more in (
        [],
        [f"--image={picture}"],
        ["--query=a circle", "--candidates=1"],
        ["--neighbours=1", f"--refined={trained}"],
    ):
        with pytest.raises(cli.UsageError, match="has no split train, only val. --marginal_"):
            commands.run_here(retrieve, *given, *more)
        assert "pairs in" not in capsys.readouterr().out
    commands.run_here(retrieve, *given, "--marginal_images=0", "--limit=2")
    assert "image to text" in capsys.readouterr().out


def test_an_ensemble_scores_as_the_mean_of_its_members(trained, data, tmp_path, capsys):
    other = shutil.copytree(trained, tmp_path / "other")  # an ensemble of a model with itself
    flags = [f"--model_dir={trained}", f"--model_dir={other}", "--limit=2", "--marginal_images=0"]
    commands.run_here(retrieve, *flags, f"--output={tmp_path / 'scores'}")
    assert "text to image" in capsys.readouterr().out
    scores = np.load(tmp_path / "scores" / "pairs.npy")
    sentences = sum(len(own) for own in list(data.references("val").values())[:2])
    assert scores.shape == (2, sentences)
    alone = _parts(runs.load(trained), data, "val", range(2))[:, :sentences]
    np.testing.assert_allclose(scores, alone, rtol=1e-5)
    assert [path.name for path in (tmp_path / "scores").glob("*.npy")] == ["pairs.npy"]


def test_queries_without_a_known_word_are_refused(run, data):
    pairs = Pairs(run, data, "val", limit=4, block=4)
    for query in ("zebras everywhere", "?!", ""):
        with pytest.raises(cli.UsageError, match="must have a word that the model knows"):
            find(pairs, ["a circle", query], 2)
    found, note = find(pairs, ["a circle " * 20], 9)
    assert len(found[0]) == 4 and "cut to 12 words" in note


@pytest.fixture(scope="module")
def first(data):
    return Candidates(data, "val", Space("original"), None)


def test_all_images_as_candidates_rank_as_without_a_first_stage(run, data, first):
    """The scores are equal bit for bit, and so are all results."""
    pairs = Pairs(run, data, "val", limit=0, block=5)
    queries = ["a big red circle", "two small blue squares", "a circle"]
    whole, _ = find(pairs, queries, 12)
    for number in (12, 99):
        assert find(pairs, queries, 12, first.of_sentences(queries, number))[0] == whole
    dense, _ = rank(pairs, 9, 5)
    all_of_them, _ = rank(pairs, 9, 5, first=first, number=60)
    assert list(all_of_them) == list(dense)
    assert [one.as_dict() for one in all_of_them.values()] == [
        one.as_dict() for one in dense.values()
    ]


def test_only_the_candidates_of_a_query_are_scored(run, data, first):
    pairs = Pairs(run, data, "val", limit=0, block=5)
    queries = ["a big red circle", "two small blue squares"]
    whole = [dict(own) for own in find(pairs, queries, 12)[0]]
    chosen = first.of_sentences(queries, 4)
    assert set(chosen[0].tolist()) != set(chosen[1].tolist())
    matches, _ = find(pairs, queries, 9, chosen)
    for own, places, every in zip(matches, chosen, whole, strict=True):
        assert {place for place, _ in own} == set(places.tolist())
        assert [score for _, score in own] == sorted((s for _, s in own), reverse=True)
        for place, score in own:
            assert score == pytest.approx(every[place], rel=1e-5)


def test_ranks_with_candidates_put_all_others_last(ranked, run, data, first, tmp_path):
    """Compared with the scores of all pairs: what is no candidate counts as -inf."""
    scores = np.load(ranked[1] / "scores" / "pairs.npy")
    pairs = Pairs(run, data, "val", limit=0, block=2)
    captions, owners = pairs.captions()
    number = 7
    of_images, of_captions = (np.zeros(scores.shape, bool) for _ in range(2))
    for image, places in enumerate(first.among_sentences(captions, number)):
        of_images[image, places] = True
    for caption, places in enumerate(first.of_sentences(captions, number)):
        of_captions[places, caption] = True
    found, _ = rank(pairs, 9, 5, str(tmp_path), None, first, number)
    marginal = retrieval.log_marginal(np.load(ranked[1] / "scores" / "marginal-seed5.npy"))
    by_image = retrieval.image_to_text(np.where(of_images, scores, -np.inf), owners, marginal)
    by_caption = retrieval.text_to_image(np.where(of_captions, scores, -np.inf), owners)
    for name, queries in (("image to text", by_image), ("text to image", by_caption)):
        wanted = retrieval.summarize(list(queries)).as_dict()
        assert found[f"{name}, 7 candidates"].as_dict() == wanted
    given = np.load(tmp_path / "marginal-seed5.npy")
    np.testing.assert_allclose(retrieval.log_marginal(given), marginal, rtol=1e-5)
    kept = np.load(tmp_path / "candidates.npy")
    np.testing.assert_array_equal(np.isfinite(kept), of_images | of_captions)
    np.testing.assert_allclose(kept[of_images], scores[of_images], rtol=1e-5)
    with pytest.raises(ValueError, match="other settings: candidates"):
        rank(pairs, 9, 5, str(tmp_path), None, first, number + 1)


def test_pictures_and_sentences_find_images_through_an_index(trained, data, tmp_path, capsys):
    index = tmp_path / "index"
    given = [f"--model_dir={trained}", "--query=a red circle", "--top=3", f"--index={index}"]
    path = next(iter(data.picture_paths("val").values()))
    commands.run_here(retrieve, *given, "--candidates=4", f"--query_image={path}")
    lines = [line for line in capsys.readouterr().out.splitlines()[1:] if line[:5] != "note:"]
    assert lines[0] == "a red circle" and lines[4].startswith(f"{path}: ") and len(lines) == 8
    names = list(data.file_names("val").values())
    assert all(line.split()[2] in names for line in (*lines[1:4], *lines[5:8]))
    first = Candidates(data, "val", Space("original"), str(index))
    near = [names[place] for place in first.nearest(first.index.vectors[:1], 4)[0]]
    assert {line.split()[2] for line in lines[5:8]} <= set(near)
    before = {path: path.stat().st_mtime_ns for path in index.rglob("*")}
    assert {path.name for path in index.iterdir()} == {"train-original", "val-original-centred"}
    commands.run_here(retrieve, *given, "--candidates=4")
    assert capsys.readouterr().out.splitlines()[1:5] == lines[:4]
    assert before == {path: path.stat().st_mtime_ns for path in index.rglob("*")}
