"""The table of metrics: those of pycocoevalcap, and further ones, each a file with a decorator."""

from collections.abc import Callable, Sequence

# References of each image and one caption for each, as tokens in a text -> a score of each image.
Metric = Callable[[Sequence[Sequence[str]], Sequence[str]], Sequence[float]]

METRICS = ["BLEU", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]  # what --scores and task.metrics name
KEYS = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE"]  # of scores
FURTHER: dict[str, Metric] = {}  # in the order of registration


def register(name: str) -> Callable[[Metric], Metric]:
    """Returns a decorator that registers a metric, which is then computed with all others.

    The metric gets the references and the caption of every image, both tokenized, and returns a
    score from 0 to 1 for each image. The score of the whole set is the mean.

    Args:
      name: the name in tables, files and flags.

    Raises:
      ValueError: another metric has the name.
    """

    def decorate(metric: Metric) -> Metric:
        before = FURTHER.get(name)
        again = before is not None and before.__qualname__ == metric.__qualname__  # in a notebook
        if not again:
            if name in METRICS or name in KEYS:
                raise ValueError(f"The name of a metric must be new. Received: {name!r}.")
            METRICS.append(name)
            KEYS.append(name)
        FURTHER[name] = metric
        return metric

    return decorate
