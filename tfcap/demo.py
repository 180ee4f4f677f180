"""Shows a model in the browser: `python -m tfcap.demo --model_dir runs/xtransformer`.

The page captions pictures that are dropped, pasted, chosen or taken with the camera. It shows how
probable each word is and what the model looked at. `--model_dir` can also be the directory of an
export. Without `--model_dir` the page shows the pretrained model flickr8k. The page is for this
machine only: its server listens on 127.0.0.1.
"""

import os
import threading
from typing import TYPE_CHECKING

from absl import flags

from tfcap import captioning, cli, pretrained
from tfcap.arguments import argument, arguments

if TYPE_CHECKING:
    from tfcap.captioning.demo_page import Model


@arguments
class Demo(cli.DecodingArguments, cli.RunArguments):
    """The arguments of the command `demo`, which are its flags."""

    beside: str | None = argument(
        "Second model that captions the same pictures: the directory of a run or of an export, or "
        "NAME=DIRECTORY.",
        default=None,
    )
    port: int = argument(
        "Port of the page on 127.0.0.1; 0 takes a free one.", default=8000, least=0, most=65535
    )


def _define_flags() -> None:
    cli.define(Demo)


def _run() -> None:
    args = Demo(**cli.values(Demo))
    cli.say_loading([*(args.model_dir or [pretrained.DEFAULT]), *filter(None, [args.beside])])
    from tfcap.captioning.demo_page import Application
    from tfcap.captioning.server.web import Server

    models = _models(args)
    application = Application(models, flags.FLAGS.debug)
    server = Server(application.asgi, "127.0.0.1", args.port)
    for model in models.values():
        print(f"{model.name}: {model.captioner.runtime}")
    print(f"The page: {server.url} (Ctrl-C ends it)", flush=True)
    # The first caption waits for the graphs; they are made while the page is opened.
    threading.Thread(target=application.warm_up, daemon=True).start()
    server.stop_quietly_on_signals()
    server.run()


def _models(args: Demo) -> "dict[str, Model]":
    """Loads the models of `model_dir` and of `beside`, by their name in the URLs of the page."""
    from tfcap.captioning.demo_page import Model
    from tfcap.captioning.portable_model import has_run

    def load(path: str | list[str], checkpoint: str) -> captioning.ImageCaptioner:
        return captioning.load(path, checkpoint, args.decoding, args.beam or 0, dtype=args.dtype)

    directories = list(args.model_dir) or [pretrained.packaged_directory(pretrained.DEFAULT)]
    name = cli.model_name(*directories)
    models = {"captions": Model(name, load(directories, args.checkpoint))}
    if args.beside:
        name, _, directory = args.beside.partition("=")
        if not directory or os.path.isdir(args.beside):  # a directory may have "=" in its name
            name = cli.model_name(args.beside)
            directory = args.beside
        portable = captioning.portable_directory(directory)
        if captioning.exported_model(directory) or (portable and not has_run(portable)):
            captioner = captioning.load(directory)
        else:
            # The path of a checkpoint belongs to one run.
            captioner = load(directory, "latest" if args.checkpoint == "latest" else "best")
        models["beside"] = Model(name, captioner)
    return models


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
