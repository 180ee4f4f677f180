"""Exports a trained captioner: for TF Serving, or to run without TensorFlow.

    python -m tfcap.export --model_dir runs/xtransformer --export_dir served/xtransformer

This command writes `served/xtransformer/1/`, the next time `2/`, and so on. `--bundle` also writes
what a server needs: warm-up requests, batch sizes, a compose file, a client and a model card.

`--format=litert`, `onnx` and `web` write a portable export: a directory whose captioner needs no
TensorFlow, on phones, in other programs and in browsers. `--format=run` writes a small run
directory, to share or to archive; with `--last=N` its weights are the mean of the last N
checkpoints, and with several `--model_dir` the mean of these runs.
"""

import importlib.util
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfcap import cli, errors, pretrained
from tfcap.arguments import argument, arguments, takes
from tfcap.files import sizes
from tfcap.images import MOST_PIXELS, SERVED_PIXELS

if TYPE_CHECKING:
    from tfcap.runs import Run

_PORTABLE = ("litert", "onnx", "web")


@arguments
class Export(cli.RunArguments, cli.DecodingArguments):
    """The arguments of the function `export`, which are also the flags of the command."""

    model_dir: str | Sequence[str] = argument(cli.MODEL_DIR, many="repeated", kw_only=False)
    export_dir: str = argument(
        "Base path of the model in TF Serving; with another `format` the directory to write.",
        kw_only=False,
    )
    format: str = argument(
        "What to write. saved_model: for TF Serving; litert, onnx: a directory whose captioner "
        "needs LiteRT or ONNX Runtime in place of TensorFlow; web: a page that captions pictures "
        "in a browser; run: a small run directory for the commands and tfcap.load. Training cannot "
        "continue in it with `weights=float16`.",
        default="saved_model",
        choices=["saved_model", *_PORTABLE, "run"],
    )
    last: int = argument(
        "For `format=run`: average the weights of so many last checkpoints of each run; 0 takes "
        "`checkpoint`.",
        default=0,
        least=0,
    )
    weights: str = argument(
        "How the weights are stored, except in a SavedModel. int8 is for litert and web, and "
        "changes many captions.",
        default="float16",
        choices=["float16", "float32", "int8"],
    )
    pictures: Sequence[str] = argument(
        "Pictures, or directories of pictures, on which litert, onnx and web compare the captions "
        "of the file with those of the run. The card tells the result.",
        default=(),
        many="repeated",
    )
    max_pixels: int = argument(
        "Largest number of pixels of a picture that a SavedModel reads. Of a GIF the screen "
        "counts, however many frames it has.",
        default=SERVED_PIXELS,
        least=1,
        most=MOST_PIXELS,
    )
    bundle: bool = argument(
        "Write warm-up requests, batch sizes, a compose file, a client and a model card, too.",
        default=False,
    )


def _define_flags() -> None:
    cli.define(Export)


def _run() -> None:
    export(**cli.values(Export, model_dir=[pretrained.DEFAULT]))


@takes(Export)
def export(args: Export) -> str:
    """Exports a run, or an ensemble of runs.

    Returns:
      The path of the directory that was written: for `format=saved_model` a new subdirectory, such
      as `export_dir/1`, otherwise `export_dir` itself.
    """
    if args.last and args.format != "run":
        raise errors.UsageError("`last` needs `format=run`. Give both, or leave out `last`.")
    if args.last and args.checkpoint != "best":
        raise errors.UsageError(
            "`last` and `checkpoint` both choose the weights. Leave one of them out."
        )
    if os.path.exists(args.export_dir) and not os.path.isdir(args.export_dir):
        raise errors.UsageError(f"`export_dir={args.export_dir}` is a file. Name a directory.")
    if args.bundle and args.format != "saved_model":
        raise errors.UsageError(
            f"`bundle` is for a SavedModel and cannot be used with `format={args.format}`. Leave "
            "one out."
        )
    if args.pictures and args.format not in _PORTABLE:
        raise errors.UsageError(
            f"`pictures` needs `format` {', '.join(_PORTABLE)}. Give both, or leave out `pictures`."
        )
    if args.weights == "int8" and args.format not in ("litert", "web"):
        raise errors.UsageError(
            f"`weights=int8` cannot be used with `format={args.format}`. Use float16 or float32."
        )
    if args.format == "run":
        return _export_run(args)
    return _export_portable(args) if args.format in _PORTABLE else _export_saved_model(args)


def _export_run(args: Export) -> str:
    """Writes a small run directory; returns its path."""
    names = [args.model_dir] if isinstance(args.model_dir, str) else args.model_dir
    if len(names) > 1 and args.checkpoint != "best":
        raise errors.UsageError(
            "`format=run` with several `model_dir` averages the best checkpoints. Leave out "
            "`checkpoint`."
        )
    from tfcap import runs
    from tfcap.runs import compact
    from tfcap.serving import card

    if args.last or len(names) > 1:
        run = compact.load_mean(names, args.last)
        many = f"{args.last} checkpoints of " if args.last else ""
        described = f"the mean of {many}{' and '.join(map(str, names))}"
    else:
        run = runs.load(names[0], args.checkpoint)
        described = run.described
    run = run.with_decoding(args.decoding, args.beam or 0)
    out = args.export_dir
    compact.write(run, out, args.weights)
    pathlib.Path(out, "README.md").write_text(card.hub_text(run, out), encoding="utf-8")
    print(f"{described} is exported to {out}: {sum(sizes(out)) / 1e6:.1f} MB")
    print(f"caption: python -m tfcap.caption --model_dir {out} photo.jpg")
    return out


def _export_saved_model(args: Export) -> str:
    """Writes the next version of a SavedModel; returns its path."""
    if args.bundle and importlib.util.find_spec("tensorflow_serving") is None:
        raise errors.UsageError(
            "`bundle` needs the package tensorflow-serving-api. Run: pip install 'tfcap[serve]'"
        )
    from tfcap.serving import saved_model

    run = _load(args)
    served = saved_model.server(run, max_pixels=args.max_pixels)
    if args.bundle:
        from tfcap.serving.bundle import write_bundle

        path = write_bundle(served, run, args.export_dir)
    else:
        path = saved_model.export(served, args.export_dir)
    print(f"{run.described} is exported to {path}")
    print(f"show:  saved_model_cli show --dir {path} --all")
    base = os.path.abspath(args.export_dir)
    serve = "tensorflow_model_server --model_name=captions --rest_api_port=8501 "
    serve += f"--model_base_path={base}"
    if args.bundle:
        serve = f"docker compose --project-directory {base} up"
    print(f"serve: {serve}")
    return path


def _export_portable(args: Export) -> str:
    """Writes a directory whose captioner runs without TensorFlow; returns its path."""
    from tfcap.captioning import inputs
    from tfcap.serving import portable, saved_model

    packages = ("tf2onnx", "onnx", "onnxruntime") if args.format == "onnx" else ()
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise errors.UsageError(
            f"`format=onnx` needs the package {missing[0]}. Run: pip install 'tfcap[onnx]'"
        )
    out = args.export_dir
    portable.check_directory(out)
    pictures = inputs.expand(args.pictures)
    if missing := [path for path in pictures if not os.path.isfile(path)]:
        raise errors.UsageError(
            f"`pictures` names {missing[0]}, which is neither a picture nor a directory with "
            "pictures. Check the path."
        )
    run = _load(args)
    served = saved_model.server(run)
    difference = portable.write(run, served, out, args.format, args.weights, pictures)
    print(f"{run.described} is exported to {out}: {sum(sizes(out)) / 1e6:.1f} MB")
    if difference is not None:
        print(
            f"captions of {difference.equal} of {difference.pictures} pictures are those of the "
            f"run; scores of equal captions differ by at most {difference.score:.2g}"
            + ("" if (most := difference.confidence) is None else f", confidences by {most:.2g}")
        )
        if difference.unread:
            print(f"{difference.unread} pictures could not be read")
    elif args.weights == "int8":
        print("note: int8 changes many captions; `pictures` counts them")
    if args.format == "web":
        print(f"show: python -m http.server --directory {out}")
    else:
        picture = "photo.jpg" if served.backbone is not None else "features.npy"
        print(f"caption: python {os.path.join(out, 'caption.py')} {picture}")
    return out


def _load(args: Export) -> "Run":
    from tfcap import runs

    run = runs.load_together(args.model_dir, args.checkpoint, args.dtype)
    return run.with_decoding(args.decoding, args.beam or 0)


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
