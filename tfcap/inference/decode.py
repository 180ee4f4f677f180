"""Captions all images of a split.

Letters: B images of a batch, K captions of an image.
"""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfcap import progress
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.decoding.sampling import image_seeds
from tfcap.decoding.search import Found, Search
from tfcap.metrics.results import Hypotheses
from tfcap.runs import Run


def decode_split(
    run: Run,
    data: PreparedData,
    split: str,
    batch_size: int,
    *,
    search: Search | None = None,
    limit: int = 0,
    seed: int = 1,
    measure: Callable[[tf.Tensor, tf.Tensor, Found], tf.Tensor] | None = None,
) -> Hypotheses:
    """Captions the images of a split with a run.

    Args:
      run: the trained captioner. It reads at most as many regions of an image as in its training.
      data: prepared data with the vocabulary and the features of the run.
      split: name of the split.
      batch_size: number of images captioned together; the captions do not depend on it.
      search: the search that finds the captions; None makes it from the decoding options of the
        run.
      limit: number of images to caption, from the start of the split; 0 captions all.
      seed: random seed of sampling. The samples of an image depend on the seed and the image id.
      measure: a function that computes a confidence in the captions, or a vector in its place, from
        the features of images, their mask and the captions, as a `Confidence` does. None takes the
        confidence of the run, if it has one.

    Returns:
      The captions of each image, best first, with spaces between all words; their scores and
      log-probabilities, and the confidence in them.
    """
    model = run.model
    search = search or run.search()
    options = pipeline.BatchOptions(
        split=split,
        batch_size=batch_size,
        captions_per_image=1,
        max_length=search.max_length,
        max_regions=run.max_regions,
    )
    batches = pipeline.decoding_batches(data, options, limit=limit or None)

    measure = measure or run.confidence

    @tf.function(
        input_signature=[dict(data.input_specs), tf.TensorSpec([None], tf.int64)], autograph=False
    )
    def decode(inputs, ids):
        found = search(model, model.encode(inputs), image_seeds(seed, ids))
        results = {"scores": found.scores, "log_probs": found.log_probs}
        if measure is not None:
            results["confidences"] = measure(inputs["features"], inputs["mask"], found)
        return run.vocab.detokenize(found.tokens, joined=False), results

    captions: dict[int, list[str]] = {}
    numbers: dict[str, dict[int, list]] = collections.defaultdict(dict)
    images = data.split(split)["images"]
    total = int(np.ceil(min(images, limit or images) / batch_size))
    with data.readable_errors():
        for batch in progress.progress(batches, total, f"decoding {split}"):
            texts, results = decode(
                data.inputs_of(data.with_features(batch)), batch["id"]
            )  # [B, K]
            ids = batch["id"].numpy().tolist()
            for image, texts_of_image in zip(ids, texts.numpy(), strict=True):
                captions[image] = [text.decode() for text in texts_of_image]
            for name, values in results.items():
                numbers[name] |= zip(ids, values.numpy().tolist(), strict=True)
    return Hypotheses(captions, **numbers)
