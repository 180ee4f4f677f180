"""Exports a trained captioner for TF Serving.

    python -m tfcap.export --model_dir runs/xtransformer --export_dir served/xtransformer

This command writes `served/xtransformer/1/`, the next time `2/`, and so on. `--bundle` also writes
what a server needs: warm-up requests, configurations, manifests, a client and a model card.
`--format=run` writes a small run directory instead, to give away or to keep.
"""

import importlib.util
import os

from absl import flags

from tfcap import cli
from tfcap.files import sizes
from tfcap.picture_files import MOST_PIXELS, SERVED_PIXELS


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
    flags.DEFINE_enum(
        "weights", "float16", ["float16", "float32"], "Precision of the weights of --format=run."
    )
    flags.DEFINE_integer(
        "max_pixels",
        SERVED_PIXELS,
        "Largest number of pixels of a picture that the export reads; all frames of a GIF count.",
        lower_bound=1,
        upper_bound=MOST_PIXELS,
    )
    flags.DEFINE_bool(
        "bundle",
        False,
        "Write warm-up requests, configurations, manifests, a client and a model card, too.",
    )
    flags.DEFINE_string(
        "warmup_images",
        None,
        "Folder of pictures for the warm-up requests of --bundle; by default pictures are drawn.",
    )
    flags.DEFINE_string(
        "results", None, "Captions to score in the model card: what tfcap.evaluate --output wrote."
    )
    flags.DEFINE_string("references", None, "Reference captions of --results.")


def _run() -> None:
    given = flags.FLAGS
    cli.require("model_dir", "export_dir")
    _check_bundle(given)
    _check_format(given)
    from tfcap import runs

    if given.format == "run":
        from tfcap.runs import compact

        out = given.export_dir
        run = runs.load(given.model_dir[0], given.checkpoint)
        compact.write(run, out, given.weights, given.decoding, given.beam or 0)
        size = sum(sizes(out))
        print(f"{run.described} is exported to {out}: {size / 1e6:.1f} MB")
        print(f"caption: python -m tfcap.caption --model_dir {out} photo.jpg")
        return
    from tfcap.runs.savedmodel import export

    if given.bundle:
        from tfcap.serving.bundle import write_bundle

    run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
    _check_pictures(given, run)
    print(f"exporting {run.described} ...", flush=True)
    served = runs.server(run, given.decoding, given.beam, max_pixels=given.max_pixels)
    if given.bundle:
        files = (given.warmup_images, given.results, given.references)
        options = runs.changed(run, run.params.task.decoding, given.decoding, given.beam or 0)
        changed = options != run.params.task.decoding
        path = write_bundle(served, run, given.export_dir, *files, changed)
    else:
        path = export(served, given.export_dir)
    print(f"{run.described} is exported to {path}")
    print(f"show:  saved_model_cli show --dir {path} --all")
    base = os.path.abspath(given.export_dir)
    if given.bundle:
        print(f"serve: docker compose --project-directory {base} up")
        return
    server = "tensorflow_model_server --model_name=captions --rest_api_port=8501"
    print(f"serve: {server} --model_base_path={base}")


def _check_bundle(given) -> None:
    """Raises UsageError for flags that contradict each other, or if the extra is missing."""
    wanted = [name for name in ("warmup_images", "results", "references") if given[name].value]
    if wanted and not given.bundle:
        raise cli.UsageError(f"--{wanted[0]} needs --bundle. Received: no --bundle.")
    if bool(given.results) != bool(given.references):
        raise cli.UsageError(
            "--results and --references must be given together. Received: "
            f"--results={given.results or ''}, --references={given.references or ''}."
        )
    if given.bundle and importlib.util.find_spec("tensorflow_serving") is None:
        raise cli.UsageError(
            "--bundle needs the package tensorflow-serving-api. Received: it is not installed. "
            "Install it with pip install 'tfcap[serve]'."
        )


def _check_pictures(given, run) -> None:
    """Raises UsageError for flags about pictures if the run reads ready-made features."""
    for name in ("warmup_images", "max_pixels"):
        if given[name].present and run.fingerprint["backbone"] is None:
            raise cli.UsageError(
                f"--{name} needs a run that reads pictures. Received: {run.directory}, which reads "
                "ready-made features. Leave it out."
            )


def _check_format(given) -> None:
    """Raises UsageError for flags that the chosen --format does not use."""
    if given.format != "run":
        if given["weights"].present:
            raise cli.UsageError(
                f"--weights needs --format=run. Received: --weights={given.weights} and "
                f"--format={given.format}."
            )
        return
    if len(given.model_dir) > 1:
        raise cli.UsageError(
            f"--format=run needs exactly one --model_dir. Received: {len(given.model_dir)}."
        )
    if wrong := [name for name in ("bundle", "max_pixels", "dtype") if given[name].present]:
        raise cli.UsageError(f"--{wrong[0]} cannot be used with --format=run. Received: both.")


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
