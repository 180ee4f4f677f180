"""Exports a trained captioner for TF Serving.

    python -m tfcap.export --model_dir runs/xtransformer --export_dir served/xtransformer

writes `served/xtransformer/1/`, the next time `2/`, and so on.
"""

import os

from absl import flags

from tfcap import console
from tfcap.flags import define_decoding_flags, define_run_flags
from tfcap.picture_files import MOST_PIXELS, SERVED_PIXELS


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    define_run_flags()
    define_decoding_flags()
    flags.DEFINE_string(
        "export_dir",
        None,
        "Base path of the model in TF Serving.",
    )
    flags.DEFINE_integer(
        "max_pixels",
        SERVED_PIXELS,
        "Largest number of pixels of a picture that the export reads; all frames of a GIF count.",
        lower_bound=1,
        upper_bound=MOST_PIXELS,
    )


def _run() -> None:
    given = flags.FLAGS
    if not given.model_dir or not given.export_dir:
        raise console.UsageError(
            "--model_dir and --export_dir must be given. Received: "
            f"--model_dir={','.join(given.model_dir)}, --export_dir={given.export_dir or ''}."
        )
    from tfcap import runs
    from tfcap.runs.savedmodel import export

    run = runs.load_together(given.model_dir, given.checkpoint, given.dtype)
    served = runs.server(run, given.decoding, given.beam, max_pixels=given.max_pixels)
    path = export(served, given.export_dir)
    print(f"{run.checkpoint} is exported to {path}")
    print(f"show:  saved_model_cli show --dir {path} --all")
    base = os.path.abspath(given.export_dir)
    server = "tensorflow_model_server --model_name=captions --rest_api_port=8501"
    print(f"serve: {server} --model_base_path={base}")


def main() -> None:
    """Runs the command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
