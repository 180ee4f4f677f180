"""Checks the machine, prepared data, a run and an export, and says how to mend what is wrong.

python -m tfcap.doctor
python -m tfcap.doctor --data_dir data/shapes --model_dir runs/xtransformer --export_dir served

Without flags it checks the machine. It prints one line per check, `ok`, `warning` or `problem` with
its remedy, and changes nothing. The exit code is 0 without a problem, and 3 with one or more.
"""

import dataclasses
import sys
from collections.abc import Iterator

from absl import flags

from tfcap import console
from tfcap.files import json_text


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_string("data_dir", None, "Prepared directory to check; reads every record.")
    flags.DEFINE_string("model_dir", None, "Directory of a training run to check.")
    flags.DEFINE_string(
        "export_dir", None, "Export to check: the directory of all versions, or one version."
    )
    flags.DEFINE_bool("json", False, "Print one JSON object at the end instead of lines.")


def _run() -> None:
    from tfcap.health import finding

    given = flags.FLAGS
    findings = []
    for result in _findings(given.data_dir, given.model_dir, given.export_dir):
        findings.append(result)
        if not given.json:
            print(result, flush=True)
    counts = {status: sum(f.status == status for f in findings) for status in finding.STATUSES}
    if given.json:
        listed = [dataclasses.asdict(result) for result in findings]
        print(json_text({"findings": listed, "counts": counts}, indent=1))
    else:
        print(finding.summary(findings))
    if counts[finding.PROBLEM]:
        sys.exit(3)


def _findings(data_dir: str | None, model_dir: str | None, export_dir: str | None) -> Iterator:
    """Runs the checks of the machine, then those of each directory that is given."""
    from tfcap.health import machine

    yield from machine.findings([d for d in (data_dir, model_dir, export_dir) if d])
    if data_dir:
        from tfcap.health import data

        yield from data.findings(data_dir)
    if model_dir:
        from tfcap.health import run

        yield from run.findings(model_dir, data_dir)
    if export_dir:
        from tfcap.health import export

        yield from export.findings(export_dir)


def main() -> None:
    """Runs the command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
