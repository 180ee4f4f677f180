"""Serves captions to applications: `python -m tfcap.serve --model_dir runs/xtransformer`.

Applications that ask Ollama or OpenAI about pictures get captions from it, and so do clients of TF
Serving. `--model_dir` can also be the directory of an export. Without it the pretrained model
flickr8k is served. The server answers this machine only; another `--host` needs a token.
"""

import os
import re
from typing import TYPE_CHECKING

from absl import flags

from tfcap import captioning, cli, errors, pretrained
from tfcap.arguments import argument, arguments

if TYPE_CHECKING:
    from tfcap.captioning.server.service import Settings

_TOKEN = "TFCAP_TOKEN"  # the variable of the environment
_LEAST = 16  # characters of a token


@arguments
class Serve(cli.DecodingArguments, cli.WordingArguments, cli.RunArguments):
    """The arguments of the command `serve`, which are its flags."""

    name: str = argument(
        "Name of the model in requests; by default that of its directory.", default=""
    )
    host: str = argument(
        "Address on which the server listens. Another one than that of this machine needs a token.",
        default="127.0.0.1",
    )
    port: int = argument(
        "Port of the server, by default that of Ollama; 0 takes a free one.",
        default=11434,
        least=0,
        most=65535,
    )
    token: str = argument(
        "Secret that requests must have in their header `Authorization: Bearer TOKEN`. Other "
        f"users of the machine can see a flag; `token_file` and the variable {_TOKEN} hide it.",
        default="",
    )
    token_file: str | None = argument("File whose first line is the token.", default=None)
    batch_size: int = argument(
        "Largest number of pictures captioned together. LiteRT captions one on each core.",
        default=8,
        least=1,
    )
    queue: int = argument(
        "Number of requests that may wait; others are told to come again.", default=32, least=1
    )
    timeout: int = argument(
        "Seconds that a request may wait for its captions.", default=60, least=1
    )


def _define_flags() -> None:
    cli.define(Serve)


def _run() -> None:
    args = Serve(**cli.values(Serve))
    args.check_unsure()
    token = _token(args)
    from tfcap.captioning.server import web

    if not token and not web.is_loopback(args.host):
        raise errors.UsageError(
            f"`host={args.host}` lets other machines ask, so a token is needed. Give `token_file`, "
            f"or the token in the variable {_TOKEN}."
        )
    directories = list(args.model_dir) or [pretrained.packaged_directory(pretrained.DEFAULT)]
    cli.say_loading(args.model_dir or [pretrained.DEFAULT])
    captioner = captioning.load(
        args.model_dir or None, args.checkpoint, args.decoding, args.beam or 0, dtype=args.dtype
    )
    if args.min_confidence is not None:
        captioner.require_confidence()
    from tfcap.captioning.server.application import application
    from tfcap.captioning.server.service import Service

    settings = _settings(args, cli.model_name(*directories))
    service = Service(captioner, settings)
    service.warm_up()
    check = web.token_check(token) if token else web.check_sender
    server = web.Server(application(service, check), args.host, args.port, args.timeout)
    print(f"{settings.name}: {captioner.runtime}")
    print(f"Serving on {server.url} (SIGTERM or Ctrl-C ends it)", flush=True)
    server.stop_quietly_on_signals()
    server.run()


def _settings(args: Serve, name: str) -> "Settings":
    from tfcap.captioning.caption_files import Wording
    from tfcap.captioning.server.service import Settings

    wording = Wording(
        sentence=args.sentence, min_confidence=args.min_confidence, unsure=args.unsure
    )
    return Settings(
        (args.name or name).removesuffix(":latest"),
        args.batch_size,
        args.queue,
        args.timeout,
        wording,
        flags.FLAGS.debug,
    )


def _token(args: Serve) -> str:
    """Returns the token of the flag, the file or the environment; "" if there is none."""
    token = args.token or os.environ.get(_TOKEN, "")
    if args.token_file:
        if args.token:
            raise errors.UsageError("`token` and `token_file` are both given. Give one of them.")
        with open(args.token_file, encoding="utf-8") as file:
            token = file.readline().strip()
    elif not token:
        return ""
    if len(token) < _LEAST or not re.fullmatch("[!-~]+", token):
        raise errors.UsageError(
            f"The token must have at least {_LEAST} printable ASCII characters and no space. To "
            'make one: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return token


def main() -> None:
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
