"""The kept results are those of the command on the page on truth, and it would read them again."""

import json

import pytest
from helpers import documented

from tfcap.measure.quality import commands

# Images that choose, and as many that judge.
HALVES = {
    "flickr8k_lite": 500,
    "shapes": 100,
    "flickr8k_lite_width96": 500,
    "flickr8k_lite_grid4": 500,
    "shapes_long": 100,
}


@pytest.fixture(scope="module")
def results():
    return documented.program("kept_results")


@pytest.mark.parametrize(("study", "half"), HALVES.items())
def test_kept_results_are_those_of_the_commands_on_the_page(results, study, half):
    kept = results.kept(study)
    assert kept
    for job, result in kept.items():
        settings = dict(result["settings"])
        data = settings.pop("data")
        drawn, cells = study.startswith("shapes"), 16 if study.endswith("grid4") else 49
        assert data["backbone"]["name"] == ("pixels" if drawn else "efficientnet_lite2")
        assert drawn or data["features"]["max_regions"] == cells
        wanted = commands.settings(job, results.OPTIONS[study], half)
        assert settings == json.loads(json.dumps(wanted))
        images = result["images"]["CIDEr"]
        assert len(images) == half and result["finished"]
        assert sum(images) / half == pytest.approx(result["scores"]["CIDEr"], abs=0.01)


def test_the_best_options_have_the_highest_score_on_the_images_that_choose(results):
    best_of = results.best("flickr8k_lite")
    assert {"updown", "attention_lstm", "xlan"} <= set(best_of)
    for row, best in best_of.items():
        kept = results.kept("flickr8k_lite").items()
        tried = {job: one for job, one in kept if (job.row, job.stage) == (row, "xe")}
        tried = {job: one["chosen"] for job, one in tried.items() if job.seeds == (1,)}
        assert len(tried) == 6 and tried[best] == max(tried.values())
