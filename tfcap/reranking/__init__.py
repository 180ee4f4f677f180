"""Consensus reranking: choosing the caption that agrees with those of similar images.

The flags are here because two commands have them, `tfcap.evaluate` and `tfcap.caption`.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from tfcap import console
from tfcap.flags import refined

if TYPE_CHECKING:
    from tfcap import runs
    from tfcap.data.prepared import PreparedData
    from tfcap.reranking.consensus import Consensus

# Of the paper of `consensus`: m for each measure of similarity, and k.
BEST = {"cider": 125, "bleu": 175}
NEIGHBOURS = 60


@dataclasses.dataclass(frozen=True)
class Reranking:
    """How captions are reranked; the flags `--rerank` and `--rerank_...` have the same values.

    Attributes:
      kind: `consensus`, by the captions of similar reference images; `oracle`, by the image's own
        references.
      similarity: of two captions, `cider` or `bleu`.
      neighbours: k, the number of similar images.
      best: m, the number of their captions that count; 0 takes that of the paper.
      refined: run directory of an m-RNN whose refined features decide which images are similar.
      references: splits that the similar images are taken from.
      frequencies: splits whose captions give the document frequencies of cider.
      index: directory that keeps the vectors; empty for the one beside the prepared data.
      approximate: whether a graph finds the neighbours.
      sweep_neighbours, sweep_best: further values of k and m to score, every pair.
    """

    kind: str = "consensus"
    similarity: str = "cider"
    neighbours: int = NEIGHBOURS
    best: int = 0
    refined: str | None = None
    references: Sequence[str] = ("train",)
    frequencies: Sequence[str] = ("train",)
    index: str = ""
    approximate: bool = False
    sweep_neighbours: Sequence[int] = ()
    sweep_best: Sequence[int] = ()

    @property
    def sweep(self) -> list[tuple[int, int]]:
        """The pairs (k, m) to score, too."""
        if not (self.sweep_neighbours or self.sweep_best):
            return []
        best = self.sweep_best or [self.best or BEST[self.similarity]]
        return [(k, m) for k in self.sweep_neighbours or [self.neighbours] for m in best]

    def make(self, run: "runs.Run | None", data: "PreparedData") -> "Consensus":
        """Makes the reranker with reference images of `data`.

        Args:
          run: the run whose captions are reranked; None for captions from a file.
          data: the prepared data.

        Raises:
          UsageError: the data lacks a split.
          ValueError: as `Consensus` and `runs.load`.
        """
        from tfcap.reranking.consensus import Consensus

        splits = list(data.fingerprint["splits"])
        wanted = {"references": self.references} if self.kind == "consensus" else {}
        if self.similarity == "cider":
            wanted["frequencies"] = self.frequencies
        for name, names in wanted.items():
            if missing := [split for split in names if split not in splits]:
                raise console.UsageError(
                    f"--rerank_{name}: {data.folder} has no split {missing[0]}, only "
                    f"{', '.join(splits)}."
                )
        # The oracle reads no reference images; any split will do.
        references = wanted.get("references") or wanted.get("frequencies") or splits
        refine, refined_by = None, None
        if self.refined:
            refine, refined_by = refined(run, data, self.refined, "--rerank_refined")
        reranker = Consensus(
            data,
            space="refined" if refine is not None else "original",
            neighbours=self.neighbours,
            best=self.best or None,
            similarity=self.similarity,
            reference_splits=references,
            frequency_splits=self.frequencies,
            index_dir=self.index,
            refine=refine,
            refined_by=refined_by,
            max_regions=run.max_regions if run else None,
            approximate=self.approximate,
        )
        if self.kind == "consensus":
            reranker.index  # noqa: B018  (an error in it must come before the captions are decoded)
        return reranker


def define_flags() -> None:
    """Defines the flags of reranking."""
    flags.DEFINE_enum(
        "rerank",
        None,
        ["consensus", "oracle"],
        "Reorder the captions of each image: consensus ranks them by the captions of similar "
        "reference images; oracle by the image's own references, an upper bound (evaluate only).",
    )
    flags.DEFINE_enum(
        "rerank_similarity", "cider", list(BEST), "Similarity of two captions: cider or bleu."
    )
    flags.DEFINE_integer(
        "rerank_neighbours", NEIGHBOURS, "Number of similar images.", lower_bound=1
    )
    flags.DEFINE_integer(
        "rerank_best",
        0,
        "Number of captions of the similar images that count for a caption, the most similar ones; "
        "0 means 125 with cider, 175 with bleu.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "rerank_refined",
        None,
        "Run directory of an m-RNN whose refined features decide which images are similar; "
        "by default the mean of an image's features decides.",
    )
    flags.DEFINE_list(
        "rerank_references",
        ["train"],
        "Splits that the similar images are taken from, separated by commas, such as "
        "train,val. An image is never its own neighbour.",
    )
    flags.DEFINE_list(
        "rerank_frequencies",
        ["train"],
        "Splits whose captions give the document frequencies of cider, separated by commas (the "
        "m-RNN code uses val).",
    )
    flags.DEFINE_string(
        "rerank_index",
        "",
        "Directory that keeps the vectors of the reference images between runs; by default one in "
        "the directory `vectors` of the prepared data.",
    )
    flags.DEFINE_bool(
        "rerank_approximate",
        False,
        "Find the similar images through a graph (needs the extra tfcap[search]): faster with "
        "hundreds of thousands of images, but it may miss some.",
    )


def define_sweep_flags() -> None:
    """Defines the flags of a sweep over k and m."""
    for name, text in (
        ("neighbours", "numbers of similar images"),
        ("best", "numbers of captions that count"),
    ):
        flags.DEFINE_list(
            f"rerank_sweep_{name}",
            [],
            f"Also score consensus reranking with these {text}, separated by commas; with both "
            "flags of the sweep every pair is scored.",
        )


def from_flags() -> Reranking | None:
    """Returns what the flags describe; None without --rerank.

    Raises:
      UsageError: a value of a sweep is not a whole number of at least 1.
    """
    given = flags.FLAGS.flag_values_dict()
    if not given["rerank"]:
        return None
    values = {n.removeprefix("rerank_"): v for n, v in given.items() if n.startswith("rerank_")}
    fields = [field.name for field in dataclasses.fields(Reranking) if field.name != "kind"]
    options = {name: values[name] for name in fields if f"rerank_{name}" in given}
    for name in ("sweep_neighbours", "sweep_best"):
        texts = options.get(name, [])
        if wrong := [text for text in texts if not text.isdecimal() or int(text) < 1]:
            raise console.UsageError(
                f"--rerank_{name} must be whole numbers of at least 1. Received: {wrong[0]!r}."
            )
        options[name] = [int(text) for text in texts]
    return Reranking(given["rerank"], **options)
