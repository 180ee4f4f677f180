"""The card states what the run knows, renders as Markdown, and survives odd names."""

import dataclasses
import re
import shutil

import pytest
from markdown_it import MarkdownIt

from tfcap import runs
from tfcap.runs import small as small_runs

pytest.importorskip("tensorflow_serving")
from tfcap.serving import card, timing  # noqa: E402  it imports tensorflow_serving

pytestmark = pytest.mark.slow  # it trains


def _render(text):
    """The headings and the cells of the tables, as the parser of the documentation sees them."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    headings = [tokens[i + 1].content for i, t in enumerate(tokens) if t.type == "heading_open"]
    kinds = ("td_open", "th_open")
    cells = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type in kinds]
    plain = [token.content for token in tokens if token.type == "inline"]
    return headings, cells, [line for line in plain if line.startswith("|")]


def test_the_card_of_a_bundle_renders_with_all_sections(bundle, trained, run_and_server):
    text = (bundle / "MODEL_CARD.md").read_text()
    headings, cells, broken = _render(text)
    names = ["Model", "Training data", "Scores", "Latency", "Limits", "Licences"]
    assert headings == ["Model card: attention_lstm", *names] and not broken
    fingerprint = run_and_server[0].fingerprint
    assert fingerprint["vocab_sha256"] in cells and "64 images, " in " ".join(cells)
    assert "stable is version 1, canary is version 1" in cells
    assert "The scores of 12 images" in text and "CIDEr" in cells
    assert "at most 3,000,000 pixels" in text and "unknown: fill in" in cells
    # A reference is scored against the references of its image.
    assert re.search(r"\| BLEU-1 \| 100\.00 \| 100\.00 to 100\.00 \|", text)
    assert str(trained) not in text and not re.search(r"/(tmp|home|root)/", text)


@pytest.fixture(scope="module")
def facts():
    how = timing.choose({1: 0.05, 2: 0.06}, cores=2)
    labels = {"stable": 1, "canary": 2}
    return card.Facts(2, labels, 10**7, "beam search of width 3", 100, 4, how, {}, 0)


def test_without_captions_the_card_has_the_scores_of_training(run_and_server, facts):
    run = run_and_server[0]
    text = card.text(run, {"CIDEr": 35.78, "BLEU-4": 16.07, "loss": 2.7}, facts)
    _, cells, broken = _render(text)
    assert not broken and {"35.78", "16.07"} <= set(cells) and "loss" not in cells
    assert "For intervals" in text and "16.7" not in text
    assert "There are no validation scores of these weights" in card.text(run, {}, facts)
    assert "decodes in another way" not in text
    changed = dataclasses.replace(facts, changed=True)
    assert "decodes in another way, so its scores differ" in card.text(run, {"CIDEr": 1.0}, changed)
    one = dataclasses.replace(facts, images=1)
    assert "of one image, whose scores say nothing" in card.text(run, {"CIDEr": 1.0}, one)


def test_the_scores_are_those_of_the_exported_weights(trained, tmp_path):
    best = runs.load(trained)
    assert runs.validated(best) == runs.read_best(f"{trained}/best_ckpt") != {}
    assert runs.validated(runs.load(trained, "latest")) == {}
    other = shutil.copytree(trained, tmp_path / "other")
    assert runs.validated(runs.load_together([trained, str(other)])) == {}
    small_runs.write(best, str(tmp_path / "small"))
    small_runs.write(best, str(tmp_path / "wider"), beam=5)
    assert "CIDEr" not in runs.validated(runs.load(str(tmp_path / "wider")))
    small_runs.write(best, str(tmp_path / "same"), beam=best.params.task.decoding.beam)
    assert "CIDEr" in runs.validated(runs.load(str(tmp_path / "same")))
    small = runs.validated(runs.load(str(tmp_path / "small")))
    assert small["CIDEr"] == runs.validated(best)["CIDEr"]


def test_a_converted_run_has_a_card_without_splits(run_and_server, facts):
    run = run_and_server[0]
    known = {key: value for key, value in run.fingerprint.items() if key != "splits"}
    assert "split val" not in card.text(dataclasses.replace(run, fingerprint=known), {}, facts)


def test_names_of_any_characters_stay_in_their_cells(run_and_server, facts):
    run = run_and_server[0]
    name = "a | b\n## c `d` <script>x</script> \\"
    odd = dataclasses.replace(run, fingerprint=run.fingerprint | {"name": name})
    headings, cells, broken = _render(card.text(odd, {}, facts))
    assert len(headings) == 7 and not broken
    assert any(cell.startswith("a | b ## c 'd' &lt;script>") for cell in cells)
