"""Shows a model in the browser: `python -m tfcap.demo --model_dir runs/xtransformer`.

The page captions pictures that are dropped, pasted, chosen or taken with the camera. It shows how
probable each word is and what the model looked at. `--model_dir` can also be the directory of an
export; without it the page shows the pretrained model flickr8k. The page is for this machine only:
its server listens on 127.0.0.1.
"""

import os
import signal
import threading

from absl import flags

from tfcap import captioning, cli, pretrained


def _define_flags() -> None:
    cli.define_run_flags()
    cli.define_decoding_flags()
    flags.DEFINE_string(
        "beside",
        None,
        "Second model that captions the same pictures: the directory of a run or of an export, or "
        "NAME=DIRECTORY.",
    )
    flags.DEFINE_integer(
        "port",
        8000,
        "Port of the page on 127.0.0.1; 0 takes a free one.",
        lower_bound=0,
        upper_bound=65535,
    )


def _run() -> None:
    cli.say_loading(
        [*(flags.FLAGS.model_dir or [pretrained.DEFAULT]), *filter(None, [flags.FLAGS.beside])]
    )
    from tfcap.captioning.demo_page import Application, make_server

    models = _models(flags.FLAGS)
    application = Application(models, flags.FLAGS.debug)
    server = make_server(application, flags.FLAGS.port)
    for model in models.values():
        print(f"{model.name}: {model.captioner.engine}")
    print(f"The page: http://{server.host}:{server.port} (Ctrl-C ends it)", flush=True)
    # The first caption waits for the graphs; they are made while the page is opened.
    threading.Thread(target=application.warm_up, daemon=True).start()
    _stop_on_signals(server)
    server.serve_forever()


def _stop_on_signals(server) -> None:
    """Makes Ctrl-C and SIGTERM end the server; a second one ends the process at once.

    A `KeyboardInterrupt` can be lost: Python ignores it where an object is being freed.
    """

    def stop(number, frame):
        del frame
        signal.signal(number, signal.SIG_DFL)
        threading.Thread(target=server.shutdown).start()  # it waits for the loop to end

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _models(given):
    """Loads the models of --model_dir and --beside, by their name in the URLs of the page."""
    from tfcap.captioning.demo_page import Model

    directories = given.model_dir or [pretrained.packaged_directory(pretrained.DEFAULT)]
    decoding = {"decoding": given.decoding, "beam": given.beam or 0, "dtype": given.dtype}
    first = captioning.load(directories, given.checkpoint, **decoding)
    models = {"captions": Model(" + ".join(map(_name, directories)), first)}
    if given.beside:
        name, _, directory = given.beside.partition("=")
        if not directory or os.path.isdir(given.beside):  # a directory may have "=" in its name
            name, directory = _name(given.beside), given.beside
        if captioning.exported_model(directory):
            beside = captioning.load(directory)
        else:
            # The path of a checkpoint belongs to one run.
            checkpoint = given.checkpoint if given.checkpoint == "latest" else "best"
            beside = captioning.load(directory, checkpoint, **decoding)
        models["beside"] = Model(name, beside)
    return models


def _name(directory: str) -> str:
    return os.path.basename(os.path.abspath(directory))


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
