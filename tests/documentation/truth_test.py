"""The page on truth says what the kept results say, and the command would read them again."""

import json
import pathlib
import re

import pytest

from tfcap.measure.quality import commands, jobs
from tfcap.measure.quality.rows import KEYS, ROWS

ROOT = pathlib.Path(__file__).parents[2]
KEPT = sorted((ROOT / "docs" / "results" / "flickr8k_lite").glob("*.json"))
OPTIONS = jobs.Options("data", KEYS, width=192, examples=90_000, scst_examples=0)
JUDGED, CHOOSE = 500, 500


def job_of(name):
    row, stage, rate, dropout, seed = re.fullmatch(
        r"(\w+)_(xe|scst)_lr([\d.]+)_dropout([\d.]+)_seed(\d+)", name
    ).groups()
    return jobs.Job(row, stage, float(rate), float(dropout), (int(seed),))


@pytest.fixture(scope="module")
def kept():
    return {job_of(path.stem): json.loads(path.read_text()) for path in KEPT}


def test_kept_results_are_those_of_the_command_on_the_page(kept):
    for job, result in kept.items():
        settings = dict(result["settings"])
        assert settings.pop("data")["backbone"]["name"] == "efficientnet_lite2"
        assert settings == json.loads(json.dumps(commands.settings(job, OPTIONS, CHOOSE)))
        images = result["images"]["CIDEr"]
        assert len(images) == JUDGED and result["finished"]
        assert sum(images) / JUDGED == pytest.approx(result["scores"]["CIDEr"], abs=0.01)


def test_the_table_of_the_tuning_has_every_kept_result_of_seed_1(kept):
    page = (ROOT / "docs" / "truth.md").read_text(encoding="utf-8")
    section = page.partition("## Tuning\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| .* \| 0\.\d+, 0\.\d \|", line)]
    wanted = {
        f"| {ROWS[job.row].name} | {job.rate:g}, {job.dropout:g} | {result['chosen']:.1f} "
        f"| {result['scores']['CIDEr']:.1f} |"
        for job, result in kept.items()
        if job.seeds == (1,)
    }
    assert set(rows) == wanted
