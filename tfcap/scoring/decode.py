"""Decodes the captions of a whole split.

Letters: B images, K captions of an image, R regions, F feature width, T `max_length`, P words of
the longest prefix.
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfcap import cli, decoding
from tfcap.data import pipeline
from tfcap.data.prepared import PreparedData
from tfcap.data.record import inputs_of
from tfcap.data.tokens import Vocab
from tfcap.metrics.results import Hypotheses
from tfcap.models.captioner import Captioner
from tfcap.scoring import begun


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
    prefixes: Mapping[int, Sequence[int]] | None = None,
    find: Callable | None = None,
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
      prefixes: the ids of the words that the captions of each image begin with, by image id; None
        for none.
      find: what `finder` made for the same model, vocabulary, search and seed, for the inputs of
        the data and the longest prefix, so that several splits share one trace; None makes one.

    Raises:
      ValueError: a prefix leaves no room for other words, or a record is damaged.
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
    prefixes = prefixes or {}
    length = max(map(len, prefixes.values()), default=0)
    if length >= search.max_length:
        raise ValueError(
            f"A prefix must be shorter than task.max_length ({search.max_length}). Received: "
            f"{length} words. Give fewer."
        )
    find = find or finder(model, vocab, search, data.input_specs, seed, length)
    captions_of: dict[int, list[str]] = {}
    scores_of: dict[int, list[float]] = {}
    total = -(-min(data.split(split)["images"], limit or 1 << 60) // batch_size)
    with data.readable_errors():
        for batch in cli.progress(batches, total, f"decoding {split}"):
            ids = batch["id"].numpy()
            inputs = inputs_of(data.with_features(batch))
            texts, scores = find(inputs, ids, begun.rows(prefixes, ids, length))
            rows = zip(ids, texts.numpy(), scores.numpy(), strict=True)
            for image, captions, values in rows:
                captions_of[int(image)] = [caption.decode() for caption in captions]
                scores_of[int(image)] = values.tolist()
    return Hypotheses(captions_of, scores_of)


def finder(
    model: Captioner,
    vocab: Vocab,
    search: decoding.Search,
    specs: Mapping[str, tf.TensorSpec],
    seed: int = 1,
    length: int = 0,
) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Makes the graph function that finds the captions of a batch.

    Args:
      model, vocab, search, seed: as for `decode_split`.
      specs: the inputs of the model, as `PreparedData.input_specs`.
      length: P; 0 for captions without a given beginning.

    Returns:
      A function of the inputs, ids int64 [B] and words int32 [B, P]. It returns captions, string
      [B, K], and scores float32 [B, K].
    """
    given = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, length], tf.int32)]

    @tf.function(input_signature=[dict(specs), *given], autograph=False)
    def find(inputs, ids, words):
        context = model.encode(inputs)
        seeds = decoding.image_seeds(seed, ids)
        tokens, scores = search(model, context, seeds, words if length else None)
        return vocab.detokenize(tokens), scores

    return find
