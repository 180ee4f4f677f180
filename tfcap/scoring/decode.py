"""Decodes the captions of a whole split.

Letters: B images, K captions of an image, R regions, F feature width, T `max_length`.
"""

import tensorflow as tf

from tfcap import console, decoding, exhausted
from tfcap.data import pipeline
from tfcap.data.picture_data import with_features
from tfcap.data.prepared import PreparedData
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab
from tfcap.metrics.hypotheses import Hypotheses
from tfcap.models.captioner import Captioner


def decode_split(
    model: Captioner,
    vocab: Vocab,
    search: decoding.Search,
    data: PreparedData,
    split: str,
    batch_size: int,
    max_regions: int | None = None,
    limit: int = 0,
    seed: int = 1,
) -> Hypotheses:
    """Decodes the captions of every image of a split, best first.

    Args:
      model: the captioner.
      vocab: its vocabulary.
      search: the configured beam search or sampling.
      data: the prepared data.
      split: name of the split.
      batch_size: images decoded together; the captions do not depend on it.
      max_regions: regions of an image beyond this number are cut off; None keeps all.
      limit: number of images from the start of the split; 0 takes all.
      seed: random seed for sampling; each image derives its own seed from it and its id.
    """
    batches = pipeline.decoding_batches(
        data,
        split=split,
        batch_size=batch_size,
        captions_per_image=1,
        max_length=search.max_length,
        max_regions=max_regions,
        limit=limit or None,
    )
    specs = [data.input_specs, tf.TensorSpec([None], tf.int64)]

    @tf.function(input_signature=specs, autograph=False)
    def find_captions(inputs, ids):
        context = model.encode(inputs)
        tokens, scores = search(model, context, decoding.image_seeds(seed, ids))
        return vocab.detokenize(tokens), scores

    captions_of: dict[int, list[str]] = {}
    scores_of: dict[int, list[float]] = {}
    total = -(-min(data.split(split)["images"], limit or 1 << 60) // batch_size)
    with data.readable_errors(), exhausted.readable_errors("decoding", exhausted.DECODING):
        for batch in console.progress(batches, total, f"decoding {split}, batches"):
            texts, scores = find_captions(inputs_of(with_features(data, batch)), batch["id"])
            rows = zip(batch["id"].numpy(), texts.numpy(), scores.numpy(), strict=True)
            for image, captions, values in rows:
                captions_of[int(image)] = [caption.decode() for caption in captions]
                scores_of[int(image)] = values.tolist()
    return Hypotheses(captions_of, scores_of)
