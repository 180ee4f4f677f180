"""The plan of prepare: sizes, hours and cost, and no file."""

import pytest
from helpers.photos import make_features, run, write_captions

from tfcap import cli
from tfcap.preparing.forecast import measured
from tfcap.preparing.inputs import read
from tfcap.preparing.run import prepare
from tfcap.preparing.settings import Settings
from tfcap.preparing.work import bare, open_reader

photos = pytest.fixture(make_features)


def planned(photos, **changes):
    folder, entries, settings = photos
    prepare(Settings(captions=write_captions(folder, entries), **settings, plan=True, **changes))


def test_a_given_rate_gives_hours_and_cost_and_nothing_is_written(photos, capsys):
    before = sorted(photos[0].rglob("*"))
    planned(photos, rate=100, price=0.5, workers=4)
    assert sorted(photos[0].rglob("*")) == sorted([*before, photos[0] / "captions.json"])
    rate, own, million = capsys.readouterr().out.splitlines()[-3:]
    assert rate == "rate: 100.0 images/s in one process (given)"
    assert own.startswith("this data set: 12 images, 4 shards, ")
    assert million.startswith("a million images: 1000000 images, 250000 shards, ")
    assert million.endswith(", 41 min 40 s with 4 workers, cost 1.39")


def test_the_size_is_about_that_of_the_files(photos, capsys):
    planned(photos)
    said = capsys.readouterr().out.splitlines()
    assert "(measured)" in said[-3] and "cost" not in said[-1]
    run(photos)
    written = sum(path.stat().st_size for path in (photos[0] / "out").glob("*.tfrecord"))
    number, unit = said[-2].split(", ")[2].split()
    assert 0.5 < float(number) * {"kB": 1000, "bytes": 1}[unit] / written < 2


def test_a_rate_is_measured_without_the_first_images(photos):
    folder, entries, settings = photos
    inputs = read(Settings(captions=write_captions(folder, entries), **settings))
    reader = open_reader(inputs.settings, inputs.entries)
    assert measured(reader, bare(inputs.entries)) > 12


def test_rates_and_prices_need_the_plan(photos):
    with pytest.raises(cli.UsageError, match="are for --plan. Received: --rate=5"):
        run(photos, rate=5.0)
    with pytest.raises(cli.UsageError, match="--rate must be above 0"):
        planned(photos, rate=0.0)
