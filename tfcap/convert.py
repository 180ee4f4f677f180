"""Makes a run directory of the authors' released PyTorch weights; needs no PyTorch.

python -m tfcap.convert --from xlan caption_model_37.pth --vocab coco_vocabulary.txt \
    --model_dir runs/xlan_released

What it writes is taken by caption, evaluate and export like a run of `tfcap.train`, and
`python -m tfcap.train --model_dir OUT` goes on training from the weights.
"""

import time

from absl import flags

from tfcap import console
from tfcap.released import systems
from tfcap.released.convert import convert


def _define_flags() -> None:
    # Here and not on import: the commands share names, and a program may import several.
    flags.DEFINE_enum("from", None, systems.FAMILIES, "Whose checkpoint it is.")
    flags.DEFINE_string("vocab", None, "The words of its ids, as released with it.")
    flags.DEFINE_string("model_dir", None, "Directory to write.")
    flags.DEFINE_integer(
        "max_length", None, "Words of the longest caption; by default as released.", lower_bound=2
    )
    flags.DEFINE_string(
        "params_override", "", "YAML text, a.b=1,c=2, or a YAML file; applied last."
    )


def _run(argv: list[str]) -> None:
    given, family, start = flags.FLAGS, flags.FLAGS["from"].value, time.monotonic()
    if len(argv) != 2 or not (family and given.vocab and given.model_dir):
        raise console.UsageError("give --from, --vocab, --model_dir, and one checkpoint")
    found = convert(
        family, argv[1], given.vocab, given.model_dir, given.max_length, given.params_override
    )
    print(f"{given.model_dir}: {found}; {console.duration(time.monotonic() - start)}")


def main() -> None:
    """The command."""
    _define_flags()
    console.run(_run)


if __name__ == "__main__":
    main()
