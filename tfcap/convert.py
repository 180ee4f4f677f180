r"""Converts released PyTorch weights to a run directory, without PyTorch.

python -m tfcap.convert --from xlan caption_model_37.pth --vocab coco_vocabulary.txt \
    --model_dir runs/xlan_released

The commands caption, evaluate and export use the new directory like a run of `tfcap.train`, and
`python -m tfcap.train --model_dir OUT` continues training from the weights.
"""

import time

from absl import flags

from tfcap import cli
from tfcap.released import FAMILIES


def _define_flags() -> None:
    flags.DEFINE_enum("from", None, FAMILIES, "Released code that wrote the checkpoint.")
    flags.DEFINE_string(
        "vocab", None, "File with the words of the checkpoint, in the order of ids."
    )
    flags.DEFINE_string("model_dir", None, "Run directory to write.")
    flags.DEFINE_integer(
        "max_length",
        None,
        "Longest caption in words; default: as in the released code.",
        lower_bound=2,
    )
    flags.DEFINE_string(
        "params_override", "", "Changes of the configuration: YAML text, a.b=1,c=2 or a YAML file."
    )


def _run(argv: list[str]) -> None:
    values, family, start = flags.FLAGS, flags.FLAGS["from"].value, time.monotonic()
    cli.require("from", "vocab", "model_dir")
    if len(argv) != 2:
        raise cli.UsageError(f"Give one checkpoint to convert, not {len(argv) - 1}.")
    from tfcap.released.convert import convert

    line = convert(
        family, argv[1], values.vocab, values.model_dir, values.max_length, values.params_override
    )
    print(f"{values.model_dir}: {line}; {cli.duration(time.monotonic() - start)}")


def main() -> None:
    """Runs the command."""
    _define_flags()
    cli.run(_run)


if __name__ == "__main__":
    main()
