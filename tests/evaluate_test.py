"""A model and a result file are scored; flags and files that do not fit are refused."""

import json
import re
import shutil

import numpy as np
import pytest
from helpers import commands
from helpers.photos import make_features

import tfcap
from tfcap import configs, errors, evaluate, runs
from tfcap.data.prepared import PreparedData, write_references
from tfcap.files import file_sha256
from tfcap.inference.likelihood import perplexities_of_split
from tfcap.inference.rerank import ConsensusReranker
from tfcap.metrics import diversity, results
from tfcap.preparing.build import prepare
from tfcap.preparing.settings import Settings

pytestmark = pytest.mark.slow

NO_JAVA = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr"]


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """Runs the command once over the validation split; returns its output and its files.

    It finds no Java: METEOR, which other tests compare with stored scores, loads for eight seconds.
    """
    folder = tmp_path_factory.mktemp("evaluated")
    output, metrics = folder / "results.json", folder / "metrics.json"
    flag = ["--model_dir", trained, "--split", "val", "--output", output, "--metrics", metrics]
    with commands.hidden_java(tmp_path_factory.mktemp("no_java")):
        done = commands.run_command("tfcap.evaluate", *flag)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.json", "results.json"]
    return done.stdout, output, json.loads(metrics.read_text())


def test_the_result_file_holds_one_caption_per_image(evaluated, data):
    entries = json.loads(evaluated[1].read_text())
    names = data.file_names("val")
    assert all(entry.keys() == {"image_id", "file_name", "caption"} for entry in entries)
    assert all(entry["file_name"] == names[entry["image_id"]] for entry in entries)
    assert [entry["image_id"] for entry in entries] == list(data.references("val"))
    assert len(entries) == 12 and all(entry["caption"] for entry in entries)


def test_the_metrics_file_and_the_table_have_the_same_scores(evaluated, trained):
    printed, output, metrics = evaluated
    apart = ("unavailable", "notes", "signature")
    numbers = {k: v for k, v in metrics.items() if k not in apart}
    assert metrics["signature"] == "cross-entropy" and "trained with: cross-entropy" in printed
    left_out = metrics.get("unavailable", {})
    assert set(numbers) | set(left_out) == set(results.KEYS[:8])
    assert set(left_out) == {"METEOR", "SPICE"} and set(numbers) == set(NO_JAVA)
    assert "note:" in printed
    assert all(isinstance(value, float) for value in numbers.values()) and numbers["CIDEr"] > 0
    for key, value in numbers.items():
        interval = re.search(rf"^{key} +{value:.2f} \((.*) to (.*)\)$", printed, re.MULTILINE)
        assert float(interval[1]) <= round(value, 1) <= float(interval[2])
    assert "\n12 images; in brackets 95 % intervals" in printed
    assert re.match(rf"{trained}/best_ckpt/best_ckpt-\d+ \(step 6\) on ", printed)
    for key, why in left_out.items():
        assert re.search(rf"^{key} +-$", printed, re.MULTILINE)
        assert f"\n{key} is not computed: {why}\n" in printed
    share = diversity.distinct_share(results.load_results(output))
    assert f"distinct captions: {share:.1f} %" in printed


def test_scores_equal_those_of_the_validation_during_training(evaluated, trained):
    printed, _, metrics = evaluated
    best = runs.read_best(f"{trained}/best_ckpt")
    for key in ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "CIDEr"):
        assert metrics[key] == pytest.approx(best[key], rel=1e-9)
    assert f"distinct captions: {best['distinct_captions']:.1f} %" in printed


def test_a_result_file_gets_the_scores_of_the_model(evaluated, data, tmp_path, capsys):
    """With Java's tokenizer these scores are the same."""
    _, output, metrics = evaluated
    references = f"{data.folder}/references_val.json"
    scored = tmp_path / "scored.json"
    files = ["--predictions", output, "--references", references]
    commands.run_here(evaluate, *files, "--scores=BLEU,ROUGE-L,CIDEr", "--metrics", scored)
    again = json.loads(scored.read_text())
    assert {key: again[key] for key in NO_JAVA} == {key: metrics[key] for key in NO_JAVA}
    assert "unavailable" not in again and "note:" not in capsys.readouterr().out


@pytest.mark.usefixtures("no_java")
def test_scores_are_chosen(evaluated, data, tmp_path, capsys):
    files = ["--predictions", evaluated[1], "--references", f"{data.folder}/references_val.json"]
    scored = tmp_path / "scored.json"
    commands.run_here(evaluate, *files, "--scores=CIDEr,CHAIR", "--metrics", scored)
    result = json.loads(scored.read_text())
    assert set(result) == {"CIDEr", "CHAIRi", "CHAIRs", "CHAIR-recall", "notes"}
    assert "CHAIR knows only the objects that the references mention" in capsys.readouterr().out


@pytest.mark.usefixtures("no_java")
def test_captions_do_not_depend_on_limit_and_batch_size(trained, evaluated, tmp_path):
    """The file of hypotheses also holds the other captions of the beam."""
    output, every = tmp_path / "results.json", tmp_path / "hypotheses.json"
    flag = ["--model_dir", trained, "--limit", "7", "--batch_size", "3", "--beam", "2"]
    commands.run_here(evaluate, *flag, "--output", output, "--hypotheses", every)
    whole = results.load_results(evaluated[1])
    assert results.load_results(output) == dict(list(whole.items())[:7])
    result = results.load_hypotheses(every)
    assert {image: captions[0] for image, captions in result.captions.items()} == dict(
        list(whole.items())[:7]
    )
    assert all(len(captions) == 2 for captions in result.captions.values())


@pytest.mark.usefixtures("no_java")
def test_perplexity_diversity_and_scores_of_images_are_written(trained, data, tmp_path, capsys):
    metrics, each = tmp_path / "metrics.json", tmp_path / "images.json"
    flag = ["--model_dir", trained, "--decoding", "search=sample,samples=3", "--diversity"]
    commands.run_here(evaluate, *flag, "--perplexity", "--metrics", metrics, "--per_image", each)
    references = data.references("val")
    printed, content = capsys.readouterr().out, json.loads(metrics.read_text())
    run = runs.load(trained)
    perplexity = perplexities_of_split(run, data, "val").corpus
    firsts = {image: texts[:1] for image, texts in references.items()}
    assert len(perplexities_of_split(run, data, "val", references=firsts).image) == 12
    assert content["perplexity"] == pytest.approx(perplexity, rel=1e-6)
    assert f"perplexity: {perplexity:.2f} per word" in printed
    assert content["diversity"].keys() >= {"novel %", "Div-1", "Div-2", "mBLEU-4", "self-CIDEr"}
    assert all(content["oracle"][key] >= content["mean"][key] for key in content["oracle"])
    scores = json.loads(each.read_text())
    mean = sum(image["CIDEr"] for image in scores.values()) / 12
    assert len(scores) == 12 and mean == pytest.approx(content["CIDEr"])


@pytest.mark.usefixtures("no_java")
def test_the_report_compares_runs_and_shows_attention(trained, evaluated, tmp_path, capsys):
    """The page has six images with attention, and the captions of another run."""
    page = tmp_path / "report.html"
    flag = ["--model_dir", trained, "--limit", "6", "--report", page]
    commands.run_here(evaluate, *flag, "--beside", f"other={evaluated[1]}")
    assert "6 images, 6 of them with a picture" in capsys.readouterr().out
    result = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    text = json.dumps(json.loads(result[1]))
    captions = list(results.load_results(evaluated[1]).values())
    assert all(caption in text for caption in captions[:6]) and '"other"' in text
    assert text.count('"attended"') == 6
    with pytest.raises(errors.UsageError, match="must be NAME=results.json"):
        commands.run_here(evaluate, *flag, "--beside", str(evaluated[1]))


@pytest.mark.usefixtures("no_java")
def test_a_model_of_other_words_captions_the_pictures_of_the_data(
    trained, shapes, tmp_path, capsys, monkeypatch
):
    """The captioner of the package knows other words, and its own data is not there."""
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.html"
    flag = ["--model_dir", trained, "--limit", "3", "--report", page, "--beside", "b=flickr8k"]
    commands.run_here(evaluate, *flag)
    assert "b: aoanet of flickr8k, beam 3, 3 pictures" in capsys.readouterr().out
    content = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])
    assert [run["name"] for run in content["runs"]] == ["run", "b"]
    paths = PreparedData.load(shapes).picture_paths("val")
    captioner = tfcap.load()
    for row in content["images"]:
        assert row["runs"][1]["text"] == captioner(paths[int(row["id"])]).text
        assert row["runs"][1]["attended"]
    assert content["notes"][0] == "The intervals are 95 %, by bootstrap over the images."
    with pytest.raises(ValueError, match="b was trained on other words or features .* --images"):
        commands.run_here(evaluate, *flag, "--images", tmp_path)


@pytest.mark.usefixtures("no_java")
def test_the_page_of_a_file_has_pictures_of_the_split_that_is_named(
    evaluated, shapes, tmp_path, capsys
):
    """An unknown split is refused before the scoring."""
    page, pictures = tmp_path / "page.html", f"{shapes}/images"
    flag = ["--predictions", evaluated[1], "--references", f"{shapes}/references_val.json"]
    flag += ["--data_dir", shapes, "--images", pictures, "--scores=CIDEr", "--report", page]
    commands.run_here(evaluate, *flag)
    printed = capsys.readouterr().out
    assert "12 images, 12 of them with a picture" in printed and "no picture" not in printed
    commands.run_here(evaluate, *flag, "--split=test")
    printed = capsys.readouterr().out
    assert printed.startswith("note: split test of ") and "no picture is shown" in printed
    assert "12 images, 0 of them with a picture" in printed
    with pytest.raises(ValueError, match="has no split 'dev'"):
        commands.run_here(evaluate, *flag, "--split=dev")
    assert "CIDEr" not in capsys.readouterr().out


@pytest.mark.usefixtures("no_java")
def test_reranking_only_changes_the_order_and_the_oracle_scores_higher(trained, tmp_path):
    result, ciders = {}, {}
    flag = ["--model_dir", trained, "--decoding", "search=sample,samples=6"]
    for kind in ("", "consensus", "oracle"):
        every, scores = tmp_path / f"{kind}all.json", tmp_path / f"{kind}scores.json"
        files = ["--hypotheses", every, "--metrics", scores]
        more = ["--rerank", kind, "--rerank_best", "10"]
        if kind == "consensus":
            more += ["--rerank_neighbours", "5", "--rerank_index", tmp_path / "index"]
        commands.run_here(evaluate, *flag, *files, *(more if kind else []))
        result[kind] = results.load_hypotheses(every).captions
        ciders[kind] = json.loads(scores.read_text())["CIDEr"]
    best = tmp_path / "best.json"
    results.write_results(best, {image: own[0] for image, own in result[""].items()})
    more += ["--report", tmp_path / "page.html", "--beside", f"other={best}"]
    commands.run_here(evaluate, *flag, *more)
    page = (tmp_path / "page.html").read_text()
    assert "--rerank=oracle changed the captions of run only" in page
    for kind in ("consensus", "oracle"):
        assert result[kind] != result[""]
        for image, captions in result[""].items():
            assert sorted(result[kind][image]) == sorted(captions)
    assert ciders["oracle"] > ciders[""]


@pytest.mark.usefixtures("no_java")
def test_reranking_reads_as_many_regions_as_the_model(trained, data, tmp_path):
    """The neighbours are those of the first two regions, for the image and for the references."""
    folder = shutil.copytree(trained, tmp_path / "run")
    experiment, params = configs.resume(str(folder / "params.yaml"))
    params = params.replace(task={"validation_data": {"max_regions": 2}})
    configs.save(params, experiment, str(folder / "params.yaml"))
    flag = ["--model_dir", folder, "--split", "val", "--hypotheses", tmp_path / "all.json"]
    more = ["--rerank", "consensus", "--rerank_neighbours", "2", "--rerank_best", "10"]
    commands.run_here(evaluate, *flag, *more, "--rerank_index", tmp_path / "index")
    result = results.load_hypotheses(tmp_path / "all.json")
    reranker = ConsensusReranker(data, neighbours=2, best=10, max_regions=2)
    batch = data.read("val", list(result.captions), 2)
    vectors = reranker.vectors(batch["features"], batch["mask"])
    for image, one in zip(
        result.captions, reranker.rerank(vectors, list(result.captions.values())), strict=True
    ):
        assert result.scores[image] == pytest.approx(one.scores, abs=1e-5)


@pytest.mark.usefixtures("no_java")
def test_a_file_of_hypotheses_is_reranked_without_a_model(data, tmp_path):
    texts = [own[0] for own in data.references("val").values()]
    values = {image: texts[n:] + texts[:n] for n, image in enumerate(data.references("val"))}
    source, written = tmp_path / "given.json", tmp_path / "written.json"
    results.write_hypotheses(source, values)
    flag = ["--predictions", source, "--references", f"{data.folder}/references_val.json"]
    flag += ["--data_dir", data.folder, "--rerank=consensus", "--rerank_index", tmp_path / "index"]
    flag += ["--rerank_neighbours=2", "--rerank_best=9", "--scores=CIDEr", "--hypotheses", written]
    commands.run_here(evaluate, *flag)
    reranker = ConsensusReranker(data, neighbours=2, best=9)
    batch = data.read("val", list(values))
    vectors = reranker.vectors(batch["features"], batch["mask"])
    wanted = reranker.rerank(vectors, list(values.values()), np.array(list(values)))
    result = results.load_hypotheses(written)
    assert list(result.captions.values()) == [ranked.captions for ranked in wanted]


@pytest.mark.usefixtures("no_java")
def test_nocaps_is_scored_by_domain_and_its_server_gets_a_list(tmp_path, capsys):
    """The domains come through prepare, or from the file of the references."""
    features = make_features(tmp_path)[2]
    domains = ["in-domain", "near-domain", "out-domain"] * 4
    images = [
        {"id": i, "file_name": f"{i}.jpg", "domain": domain, "open_images_id": f"{i:016x}"}
        for i, domain in enumerate(domains)
    ]
    texts = [
        (i, f"A {color} dog {n}.") for i in range(12) for n, color in enumerate(("red", "blue"))
    ]
    annotations = [{"id": n, "image_id": i, "caption": text} for n, (i, text) in enumerate(texts)]
    source = tmp_path / "nocaps_val_4500_captions.json"
    source.write_text(json.dumps({"images": images, "annotations": annotations}))
    (tmp_path / "vocab.txt").write_text("<pad>\n<bos>\n<eos>\n<unk>\na\n")  # that of a run
    prepare(Settings(captions=source, vocab=tmp_path / "vocab.txt", **features))
    data = PreparedData.load(features["out"])
    assert data.domains("val") == dict(enumerate(domains))
    predictions = tmp_path / "predictions.json"
    results.write_results(predictions, {i: f"a red dog {i % 3}" for i in range(12)})
    written = []
    for references in (source, f"{data.folder}/references_val.json"):
        scores, server = tmp_path / "scores.json", tmp_path / "nocaps.json"
        files = ["--predictions", predictions, "--references", references, "--metrics", scores]
        files += ["--data_dir", data.folder, "--scores=BLEU,CIDEr", "--submission", server]
        commands.run_here(evaluate, *files)
        written.append(json.loads(scores.read_text()))
        assert json.loads(server.read_text()) == json.loads(predictions.read_text())
        printed = capsys.readouterr().out
        assert re.search(r"^ +in-domain +near-domain +out-domain +all$", printed, re.MULTILINE)
        assert re.search(r"^images +4 +4 +4 +12$", printed, re.MULTILINE)
        assert f"{server}: captions of 12 images" in printed
    assert written[0] == written[1] and list(written[0]["domains"]) == sorted(set(domains))
    assert written[0]["domains"]["in-domain"]["BLEU-1"] > written[0]["BLEU-1"]


@pytest.mark.usefixtures("no_java")
def test_a_run_is_scored_by_domain(trained, shapes, tmp_path):
    folder = shutil.copytree(shapes, tmp_path / "data")
    references = PreparedData.load(shapes).references("val")
    names = PreparedData.load(shapes).file_names("val")
    domains = {image: ("in-domain", "out-domain")[i % 2] for i, image in enumerate(references)}
    items = [(image, names[image], texts) for image, texts in references.items()]
    write_references(folder, "val", items, domains)
    content = json.loads((folder / "dataset.json").read_text())
    content["splits"]["val"]["references_sha256"] = file_sha256(folder / "references_val.json")
    (folder / "dataset.json").write_text(json.dumps(content))
    server = tmp_path / "server.json"
    scores = evaluate.evaluate(
        model_dir=trained, data_dir=str(folder), metrics="BLEU", submission=str(server)
    )
    assert {name: values["images"] for name, values in scores.domains.items()} == {
        "in-domain": 6,
        "out-domain": 6,
    }
    rows = json.loads(server.read_text())
    assert [row["image_id"] for row in rows] == list(references)
    assert all(row.keys() == {"image_id", "caption"} for row in rows)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("", "Give --model_dir to evaluate a run, or --predictions"),
        ("--predictions RESULTS", "--references is missing"),
        ("--predictions RESULTS --references REFERENCES --rerank oracle", "needs --data_dir"),
        ("--predictions RESULTS --references REFERENCES --beside a=b", "--beside needs --report"),
        ("--predictions RESULTS --submission a.zip --split test", "all 40775 images of test2014"),
        ("--model_dir a --submission a.json --limit 5", "takes the captions of a whole split"),
        ("--model_dir a --scores FOO", "'FOO' is not among the scores: BLEU"),
    ],
)
def test_wrong_flags_are_refused(given, part, shapes, tmp_path, monkeypatch):
    results.write_results(tmp_path / "RESULTS", {1: "a dog"})
    words = given.replace("REFERENCES", f"{shapes}/references_val.json")
    words = words.replace("RESULTS", str(tmp_path / "RESULTS")).replace(
        "a.zip", f"{tmp_path}/a.zip"
    )
    with pytest.raises(ValueError, match=part):
        commands.run_here(evaluate, *words.split())
