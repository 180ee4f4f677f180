"""Findings of the doctor, in a form that tests compare."""

import os


def by_check(findings) -> dict:
    """The findings by the name of their check, which is unique within an area."""
    listed = list(findings)
    named = {finding.check: finding for finding in listed}
    assert len(named) == len(listed)
    return named


def faults(findings) -> dict[str, str]:
    """The status of every check that is not ok."""
    return {check: f.status for check, f in by_check(findings).items() if f.status != "ok"}


def flip(path, place: int) -> None:
    """Flips one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


def cut(path, share: float = 0.5) -> None:
    """Cuts off the end of a file."""
    os.truncate(path, int(os.path.getsize(path) * share))
