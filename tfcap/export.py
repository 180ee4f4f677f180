"""Exports a trained captioner for TF Serving.

    python -m tfcap.export --model_dir runs/xtransformer --export_dir served/xtransformer

This command writes `served/xtransformer/1/`, the next time `2/`, and so on. `--bundle` also writes
what a server needs: warm-up requests, batch sizes, a compose file, a client and a model card.
`--format=run` writes a small run directory instead, to share or to archive; with `--last=N` its
weights are the mean of the last N checkpoints.
"""

import importlib.util
import os
import pathlib
from collections.abc import Sequence

from absl import flags

from tfcap import cli, pretrained
from tfcap.files import sizes
from tfcap.images import MOST_PIXELS, SERVED_PIXELS


def _define_flags() -> None:
    cli.define_run_flags()
    cli.define_decoding_flags()
    flags.DEFINE_string(
        "export_dir",
        None,
        "Base path of the model in TF Serving, or the run directory of --format=run.",
    )
    flags.DEFINE_enum(
        "format",
        "saved_model",
        ["saved_model", "run"],
        "What to write. saved_model: for TF Serving; run: a small run directory for the commands "
        "and tfcap.load. Training cannot continue in it with --weights=float16.",
    )
    flags.DEFINE_integer(
        "last",
        0,
        "For --format=run: average the weights of so many last checkpoints; 0 takes --checkpoint.",
        lower_bound=0,
    )
    flags.DEFINE_enum(
        "weights", "float16", ["float16", "float32"], "Precision of the weights of --format=run."
    )
    flags.DEFINE_integer(
        "max_pixels",
        SERVED_PIXELS,
        "Largest number of pixels of a picture that the export reads. Of a GIF the screen counts, "
        "however many frames it has.",
        lower_bound=1,
        upper_bound=MOST_PIXELS,
    )
    flags.DEFINE_bool(
        "bundle",
        False,
        "Write warm-up requests, batch sizes, a compose file, a client and a model card, too.",
    )


def _run() -> None:
    cli.require("export_dir")
    given = cli.arguments(export)
    export(**given | {"model_dir": given["model_dir"] or [pretrained.DEFAULT]})


def export(
    model_dir: str | Sequence[str],
    export_dir: str,
    *,
    checkpoint: str = "best",
    dtype: str = "float32",
    decoding: str = "",
    beam: int | None = None,
    format: str = "saved_model",
    last: int = 0,
    weights: str = "float16",
    max_pixels: int = SERVED_PIXELS,
    bundle: bool = False,
) -> str:
    """Exports a run, or an ensemble of runs; the arguments are the flags of the command.

    Returns the directory that was written.
    """
    if last and (format != "run" or checkpoint != "best"):
        raise cli.UsageError("--last needs --format=run, and cannot be used with --checkpoint.")
    if os.path.exists(export_dir) and not os.path.isdir(export_dir):
        raise cli.UsageError(f"--export_dir={export_dir} is a file. Name a directory.")
    if format == "run":
        folder, *others = [model_dir] if isinstance(model_dir, str) else model_dir
        if others or bundle:
            raise cli.UsageError(
                "--format=run needs a single run, and cannot be used with --bundle."
            )
        from tfcap import runs
        from tfcap.runs import small
        from tfcap.serving import card

        run = small.load_mean(folder, last) if last else runs.load(folder, checkpoint)
        run = run.with_decoding(decoding, beam or 0)
        small.write(run, export_dir, weights)
        text = card.hub_text(run, export_dir)
        pathlib.Path(export_dir, "README.md").write_text(text, encoding="utf-8")
        described = f"the mean of {last} checkpoints of {run.directory}" if last else run.described
        print(f"{described} is exported to {export_dir}: {sum(sizes(export_dir)) / 1e6:.1f} MB")
        print(f"caption: python -m tfcap.caption --model_dir {export_dir} photo.jpg")
        return export_dir
    if bundle and importlib.util.find_spec("tensorflow_serving") is None:
        raise cli.UsageError("--bundle needs tensorflow-serving-api: pip install 'tfcap[serve]'.")
    from tfcap import runs
    from tfcap.runs.server import export as write_version

    run = runs.load_together(model_dir, checkpoint, dtype).with_decoding(decoding, beam or 0)
    served = runs.server(run, max_pixels=max_pixels)
    if bundle:
        from tfcap.serving.bundle import write_bundle

        path = write_bundle(served, run, export_dir)
    else:
        path = write_version(served, export_dir)
    print(f"{run.described} is exported to {path}")
    print(f"show:  saved_model_cli show --dir {path} --all")
    base = os.path.abspath(export_dir)
    server = "tensorflow_model_server --model_name=captions --rest_api_port=8501"
    serve = f"{server} --model_base_path={base}"
    print(f"serve: {f'docker compose --project-directory {base} up' if bundle else serve}")
    return path


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
