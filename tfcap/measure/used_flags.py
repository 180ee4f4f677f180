"""Which flags of `tfcap.benchmark` each measurement reads; a flag that none reads is refused."""

from collections.abc import Sequence

from absl import flags

from tfcap import cli

# Each of these prints one line of JSON, which repeats the sizes of the inputs.
LINES = ("xe", "scst", "beam", "greedy", "retrieval", "reward", "input")
WHAT = (*LINES, "growth", "quality", "search", "plan")
# Flag -> the measurements that read it.
READ_BY = {
    **dict.fromkeys(
        ("experiment", "config_file", "params_override", "dtype", "paper_size", "regions")
        + ("vocab", "captions", "beam", "length", "threads"),
        (*LINES, "growth"),
    ),
    **dict.fromkeys(("images", "features", "repeats"), (*LINES, "growth", "search")),
    "samples": LINES,
    # Those of the model; the time of `reward` and `input` has no parts.
    **dict.fromkeys(
        ("peak_size", "operations", "stages"), ("xe", "scst", "beam", "greedy", "retrieval")
    ),
    "corpus": ("scst", "reward"),
    "sentences": ("retrieval", "growth"),
    "data_dir": ("input",),
    **dict.fromkeys(("grow", "systems", "limit"), ("growth",)),
    "points": ("growth", "plan"),
    "out": ("growth", "quality"),
    **dict.fromkeys(
        ("data", "rows", "seeds", "tune", "width", "steps", "examples", "scst_examples", "jobs"),
        ("quality",),
    ),
    **dict.fromkeys(("indexed", "vectors"), ("search",)),
    "assume": ("plan",),
}
# The two names of a prepared directory are easily mistaken for each other.
_MISTAKEN = {"data_dir": "data", "data": "data_dir"}


def check(what: Sequence[str], given: flags.FlagValues) -> None:
    """Checks the names in --what, and that each given flag is read by one of them.

    Args:
      what: the value of --what.
      given: the parsed flags.

    Raises:
      cli.UsageError: a measurement is unknown, a flag would have no effect, or a flag that a
        measurement needs is not given.
    """
    if not what or set(what) - set(WHAT):
        raise cli.UsageError(
            f"--what must be some of {', '.join(WHAT)}. Received: {','.join(what)!r}."
        )
    for name, readers in READ_BY.items():
        if not given[name].present or set(what) & set(readers):
            continue
        other = _MISTAKEN.get(name)
        remedy = f"Leave it out: it is for --what={','.join(readers)}."
        if other and set(what) & set(READ_BY[other]):
            remedy = f"Give the prepared directory as --{other}."
        raise cli.UsageError(
            f"--{name} is not used by --what={','.join(what)}. Received: "
            f"{given[name].serialize()}. {remedy}"
        )
    if "input" in what and not given.data_dir:
        raise cli.UsageError(
            "--what=input needs --data_dir, a prepared directory. Received: no --data_dir."
        )
    if given.steps and given["examples"].present:
        raise cli.UsageError(
            "--steps and --examples both set how long a run trains. Received: "
            f"--steps={given.steps} --examples={given.examples}. Leave one of them out."
        )
