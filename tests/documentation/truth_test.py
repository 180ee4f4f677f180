"""The kept results are those of the command on the page on truth, and it would read them again."""

import json

import pytest
from helpers import documented

from tfcap.measure.quality import commands

JUDGED, CHOOSE = 500, 500


@pytest.fixture(scope="module")
def results():
    return documented.program("kept_results")


def test_kept_results_are_those_of_the_command_on_the_page(results):
    for job, result in results.kept().items():
        settings = dict(result["settings"])
        assert settings.pop("data")["backbone"]["name"] == "efficientnet_lite2"
        wanted = commands.settings(job, results.OPTIONS, CHOOSE)
        assert settings == json.loads(json.dumps(wanted))
        images = result["images"]["CIDEr"]
        assert len(images) == JUDGED and result["finished"]
        assert sum(images) / JUDGED == pytest.approx(result["scores"]["CIDEr"], abs=0.01)


def test_the_best_options_have_the_highest_score_on_the_images_that_choose(results):
    assert {"updown", "attention_lstm", "xlan"} <= set(results.best())
    for row, best in results.best().items():
        tried = {job: one for job, one in results.kept().items() if job.row == row}
        tried = {job: one["chosen"] for job, one in tried.items() if job.seeds == (1,)}
        assert len(tried) == 6 and tried[best] == max(tried.values())
