"""A check that fails becomes a problem, and findings are counted and printed in one line."""

import pytest

from tfcap.health import finding
from tfcap.health.finding import examine, ok, problem, warning


def _raise(error):
    raise error


def test_a_finding_gets_the_name_of_its_check():
    found = examine("data", "words", lambda n: ok(f"{n} words"), 3)
    assert (found.status, found.area, found.check, found.text) == ("ok", "data", "words", "3 words")
    assert str(found) == "ok       data     words             3 words"
    found = examine("run", "best", lambda: warning("no info.json.", "Evaluate."))
    assert str(found) == "warning  run      best              no info.json. Remedy: Evaluate."


@pytest.mark.parametrize("error", [ValueError("Cut off.\n  Prepare again."), OSError("Cut off.")])
def test_an_expected_error_is_a_problem_with_its_message(error):
    found = examine("data", "files", _raise, error)
    assert found.status == "problem" and found.text.startswith("Cut off.") and not found.remedy
    assert "\n" not in found.text


def test_an_error_in_a_check_is_a_problem_too():
    found = examine("data", "files", _raise, KeyError("boxes"))
    assert (found.status, found.text) == ("problem", "The check failed: KeyError: 'boxes'")
    assert "report this line" in found.remedy
    assert (
        examine("data", "files", _raise, KeyError(1), remedy="Restore it.").remedy == "Restore it."
    )


def test_a_long_message_is_cut():
    assert len(finding.one_line(ValueError("x" * 9999))) == 400
    assert finding.one_line(ValueError()) == "ValueError"


def test_findings_are_counted():
    found = [ok("a"), problem("b", "c"), warning("d", "e"), warning("f", "g")]
    assert finding.summary(found) == "4 checks: 1 ok, 2 warnings, 1 problem"
    assert finding.summary(found[:1]) == "1 check: 1 ok, 0 warnings, 0 problems"


def test_a_list_shows_its_first_items():
    assert finding.some([1, 2, 3]) == "1, 2, 3" and finding.some("abcde", 2) == "a, b and 3 more"
