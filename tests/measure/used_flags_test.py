"""Flags of the benchmark that no wanted measurement reads are refused, with what to do."""

import re

import pytest
from helpers import commands

from tfcap import benchmark, cli
from tfcap.measure import used_flags


def check(what, *arguments):
    """Checks a command line as the command does, without measuring."""
    given = commands.parse(benchmark, f"--what={what}", *arguments)
    used_flags.check(given.what, given)


@pytest.mark.parametrize(
    ("what", "flag", "remedy"),
    [
        ("quality", "--data_dir=d", "Give the prepared directory as --data."),
        ("input", "--data=d", "Give the prepared directory as --data_dir."),
        ("xe,growth", "--data=shapes", "Leave it out: it is for --what=quality."),
        ("xe", "--rows=mrnn,xlan", "Leave it out: it is for --what=quality."),
        ("growth", "--seeds=3", "Leave it out: it is for --what=quality."),
        ("beam", "--tune", "Leave it out: it is for --what=quality."),
        ("search,plan", "--dtype=bfloat16", "it is for --what=xe,scst,beam,"),
        ("quality", "--threads=1", "it is for --what=xe,scst,beam,"),
        ("growth", "--nostages", "it is for --what=xe,scst,beam,"),
        ("plan", "--repeats=3", "it is for --what=xe,scst,beam,"),
        ("beam", "--sentences=3", "Leave it out: it is for --what=retrieval,growth."),
        ("xe", "--corpus=3", "Leave it out: it is for --what=scst,reward."),
        ("xe", "--indexed=200", "Leave it out: it is for --what=search."),
        ("input", "--out=o", "Leave it out: it is for --what=growth,quality."),
        ("xe", "--points=2", "Leave it out: it is for --what=growth,plan."),
    ],
)
def test_a_flag_that_is_not_used_is_refused(what, flag, remedy):
    name = flag.partition("=")[0].replace("--no", "--")
    message = f"{name} is not used by --what={what}. Received: {flag}. "
    with pytest.raises(cli.UsageError, match=f"^{re.escape(message)}.*{re.escape(remedy)}"):
        check(what, flag)


def test_one_of_several_measurements_is_enough():
    check("plan,quality", "--data=d", "--rows=mrnn", "--assume=price=1")
    check("xe,input", "--data_dir=d", "--dtype=bfloat16", "--nostages")
    check("growth", "--length=3", "--sentences=2", "--points=2", "--repeats=1")


@pytest.mark.parametrize(
    ("what", "given", "message"),
    [
        ("reward,input", [], "--what=input needs --data_dir, .* Received: no --data_dir"),
        ("quality", ["--steps=9", "--examples=900"], "Received: --steps=9 --examples=900. Leave"),
    ],
)
def test_flags_that_are_missing_or_too_many_are_refused_before_the_work(what, given, message):
    with pytest.raises(cli.UsageError, match=message):
        check(what, *given)


@pytest.mark.parametrize("what", ["", "beam,nothing"])
def test_an_unknown_measurement_is_refused(what):
    with pytest.raises(cli.UsageError, match=f"--what must be some of xe, .*'{what}'"):
        check(what)


def test_every_flag_has_its_measurements():
    assert set(commands.defined(benchmark)) == {"what", *used_flags.READ_BY}
    for readers in used_flags.READ_BY.values():
        assert readers and set(readers) <= set(used_flags.WHAT)
