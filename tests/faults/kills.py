"""Kills commands at random moments, and compares what they leave with an undisturbed run.

    PYTHONPATH=.:tests python tests/faults/kills.py FOLDER [KILLS [WORK ...]]

Each try starts a command, ends it by SIGKILL after a random part of its time, gives the same
command again, and compares. A command that ends before the signal is started again. The works are
prepare, train (cross-entropy), second (self-critical training), export and retrieve. The suite has
a sample of these as tests.
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

from helpers import commands, events, forks

from tfcap.files import versions
from tfcap.preparing import shapes

WORKS = ("prepare", "train", "second", "export", "retrieve")
STEPS = 40
TRAINER = {
    "train_steps": STEPS,
    "steps_per_loop": 2,
    "summary_interval": 2,
    "checkpoint_interval": 4,
    "validation_interval": 20,
    "shown_images": 0,
}


def overrides(folder, **task):
    group = {
        "data_dir": str(folder / "data"),
        "max_length": 8,
        "metrics": ["CIDEr"],
        "model": {"show_tell": {"width": 16}},
        "train_data": {"global_batch_size": 8, "captions_per_image": 2},
        "validation_data": {"global_batch_size": 8, "captions_per_image": 2},
        **task,
    }
    return f"--params_override={json.dumps({'task': group, 'trainer': TRAINER})}"


def command(work, folder, out):
    """The command line of a work that writes `out`."""
    run = f"--model_dir={folder / 'train'}"
    trained = {"init_checkpoint": str(folder / "train"), "objective": "scst"}
    trained["label_smoothing"] = 0.0
    trained["self_critical"] = {"samples": 3, "start_tolerance": 50.0}
    return {
        "prepare": [
            "tfcap.prepare",
            f"--captions={folder / 'shapes' / 'dataset_shapes.json'}",
            f"--images={folder / 'shapes' / 'images'}",
            "--backbone=pixels",
            "--images_per_shard=20",
            f"--out={out}",
        ],
        "train": ["tfcap.train", "--experiment=show_tell", f"--model_dir={out}", overrides(folder)],
        "second": [
            "tfcap.train",
            "--experiment=show_tell",
            f"--model_dir={out}",
            overrides(folder, **trained),
        ],
        "export": ["tfcap.export", run, f"--export_dir={out}"],
        "retrieve": ["tfcap.retrieve", run, "--split=test", "--batch_size=2", f"--output={out}"],
    }[work]


def content(work, out):
    """What must be the same as in an undisturbed run."""
    if work in ("train", "second"):
        best = next((out / "best_ckpt").glob("*.index")).with_suffix("")
        found = {}
        for path in (out / f"ckpt-{STEPS}", best):
            found |= {f"{path.name}/{k}": v.tobytes() for k, v in events.tensors(path).items()}
        return {name: value for name, value in found.items() if "save_counter" not in name}
    if work == "export":
        left = [path.name for path in out.iterdir() if not path.name.isdecimal()]
        for version in versions(out):
            assert (out / str(version) / "saved_model.pb").stat().st_size > 1000
            assert list((out / str(version) / "variables").glob("*.index"))
        return {"other files": [name for name in left if name.startswith(".")]}
    files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    return {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def run(arguments):
    """Runs a command to its end; returns the seconds that it took."""
    start = time.monotonic()
    done = forks.run(["-m", *arguments], commands.ROOT)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - start


def killed(arguments, seconds):
    """Starts a command and kills it after some seconds; returns whether it was still running."""
    process = forks.start(
        ["-m", *arguments], commands.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return True


def prepare_world(folder):
    """Makes pictures, a prepared directory and a finished run, once."""
    if not (folder / "shapes").exists():
        shapes.write(folder / "shapes", 60, 20, 20, 1)
    for work, name in (("prepare", "data"), ("train", "train")):
        if not (folder / name / "done").exists():
            shutil.rmtree(folder / name, ignore_errors=True)
            run(command(work, folder, folder / name))
            (folder / name / "done").touch()


def main(folder, kills, works):
    folder.mkdir(parents=True, exist_ok=True)
    without_java = commands.hide_java(folder)  # its start would take most of the time
    paths = [without_java.pop("PYTHONPATH"), os.environ.get("PYTHONPATH", "")]
    os.environ.update(without_java, PYTHONPATH=os.pathsep.join(paths))
    prepare_world(folder)
    for work in works:
        out = folder / f"out_{work}"
        shutil.rmtree(out, ignore_errors=True)
        seconds = run(command(work, folder, out))
        wanted = content(work, out)
        rng, done, equal, late = random.Random(), 0, 0, 0
        while done < kills:
            shutil.rmtree(out, ignore_errors=True)
            arguments, moment = command(work, folder, out), rng.uniform(0, seconds)
            if not killed(arguments, moment):
                seconds, late = moment, late + 1  # it takes less time than thought
                continue
            run(arguments)
            done, equal = done + 1, equal + (content(work, out) == wanted)
        print(f"{work}: {done} killed, {equal} equal; {late} ended before the signal", flush=True)


if __name__ == "__main__":
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    main(pathlib.Path(sys.argv[1]).absolute(), kills, sys.argv[3:] or WORKS)
