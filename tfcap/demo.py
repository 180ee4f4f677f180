"""Shows a model in the browser: `python -m tfcap.demo --model_dir runs/xtransformer`.

The page captions pictures that are dropped, pasted, chosen or taken with the camera. It shows how
probable each word is and what the model looked at. With `--data_dir` it also shows the nearest
training pictures. `--model_dir` can also be the directory of an export; without it the page shows
the pretrained model flickr8k. The page is for this machine only: its server listens on 127.0.0.1.
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
    flags.DEFINE_string(
        "data_dir",
        None,
        "Prepared data. The page finds its training pictures that are nearest to a picture or fit "
        "a text; by default none.",
    )
    flags.DEFINE_string(
        "images",
        None,
        "Folder of pictures that are searched by text. Pictures of --data_dir are also looked for "
        "here.",
    )
    flags.DEFINE_integer(
        "port",
        8000,
        "Port of the page on 127.0.0.1; 0 takes a free one.",
        lower_bound=0,
        upper_bound=65535,
    )


def _run() -> None:
    given = flags.FLAGS
    if not given.model_dir:
        given.model_dir = [pretrained.directory(pretrained.DEFAULT)]
    from tfcap import webpage

    models = _models(given)
    captioner = models["captions"].captioner
    training = folder = None
    if given.data_dir:
        training = webpage.Training(captioner, given.data_dir, given.images)
    if given.images:
        folder = webpage.Folder(captioner, given.images)
    application = webpage.Application(models, training, folder, given.debug)
    server = webpage.make_server(application, given.port)
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
    """Loads the models of --model_dir and --beside; the keys are parts of addresses of the page."""
    from tfcap import webpage

    options = (given.checkpoint, given.decoding, given.beam or 0, given.data_dir, given.dtype)
    if all(map(captioning.exported_model, given.model_dir)):
        # --data_dir is refused below: an export has no features to compare.
        options = (*options[:3], None, given.dtype)
    name = " + ".join(map(_name, given.model_dir))
    decoding = ",".join(filter(None, (given.decoding, f"beam={given.beam}" if given.beam else "")))
    shown = [
        f"--{flag}={given[flag].value}" for flag in ("checkpoint", "dtype") if given[flag].present
    ]
    models = {
        "captions": webpage.Model(
            name, captioning.load(given.model_dir, *options), given.model_dir, decoding, shown
        )
    }
    if given.beside:
        name, _, directory = given.beside.partition("=")
        if not directory or os.path.isdir(given.beside):  # a directory may have "=" in its name
            name, directory = _name(given.beside), given.beside
        if captioning.exported_model(directory):
            models["beside"] = webpage.Model(name, captioning.load(directory), [directory])
        else:
            # The path of a checkpoint belongs to one run.
            checkpoint = given.checkpoint if given.checkpoint == "latest" else "best"
            own = [flag for flag in shown if checkpoint == "latest" or "--dtype" in flag]
            beside = captioning.load(directory, checkpoint, *options[1:3], None, given.dtype)
            models["beside"] = webpage.Model(name, beside, [directory], decoding, own)
    return models


def _name(directory: str) -> str:
    return os.path.basename(os.path.abspath(directory))


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
