"""How the sentences of images are found, as a configuration says it, and those of a whole split.

Letters: B images, K sentences of an image, R regions, F feature width, T `max_length`.
"""

from collections.abc import Callable

import tensorflow as tf

from tfcap import configs, console, decoding
from tfcap.data import pipeline
from tfcap.data.document_frequency import DocumentFrequencies
from tfcap.data.prepared import PreparedData
from tfcap.data.tokens import UNK, Vocab, tokenize_all
from tfcap.metrics.endings import FUNCTION_WORDS
from tfcap.metrics.hypotheses import Hypotheses
from tfcap.models.captioner import Captioner
from tfcap.objectives import ngrams


def search(
    params: configs.Decoding,
    max_length: int,
    vocab: Vocab,
    frequencies: Callable[[], DocumentFrequencies],
) -> decoding.Search:
    """The search that `configs.Decoding` describes.

    Args:
      params: see there.
      max_length: T.
      vocab: the words.
      frequencies: gives the document frequencies for `order: consensus`, and is only called then.

    Raises:
      ValueError: as `decoding_options`, or if the vocabulary is too large for CIDEr-D.
    """
    value = None
    if params.order == "consensus":
        value = decoding.Consensus(ngrams.CiderD(frequencies(), len(vocab)))
    return decoding.Search(decoding_options(params, max_length, vocab), value)


def decoding_options(
    params: configs.Decoding, max_length: int, vocab: Vocab | None = None
) -> decoding.Options:
    """What `configs.Decoding` says, for `decoding.Search`, its words as ids.

    `vocab` is needed where it names words.

    Raises:
      ValueError: a word that is not in the vocabulary, or a prefix that leaves no place for others.
    """

    def ids(name, text):
        words = tokenize_all([text])[0]
        if strange := [word for word in words if vocab.ids([word]) == [UNK]]:
            raise ValueError(
                f"task.decoding.{name}: the vocabulary does not know {', '.join(strange)}"
            )
        return tuple(vocab.ids(words))

    endings = params.bad_endings
    if endings == "default":
        endings = " ".join(word for word in FUNCTION_WORDS if vocab.ids([word]) != [UNK])
    prefix = ids("prefix", params.prefix) if params.prefix else ()
    if len(prefix) >= max_length:
        raise ValueError(
            f"task.decoding.prefix must be shorter than task.max_length ({max_length}). "
            f"Received: {params.prefix!r}"
        )
    suppress = ids("suppress", params.suppress) if params.suppress else ()
    rules = decoding.Rules(
        suppress=((UNK,) if params.suppress_unk else ()) + suppress,
        bad_endings=ids("bad_endings", endings) if endings else (),
        prefix=prefix,
        min_length=params.min_length,
        no_repeat_ngram=params.no_repeat_ngram,
    )
    same = ("search", "beam", "groups", "diversity", "finished", "samples", "top_k", "top_p")
    same += ("temperature", "length_penalty", "length_power")
    values = {name: getattr(params, name) for name in same}
    return decoding.Options(max_length=max_length, rules=rules, **values)


def decode_split(
    model: Captioner,
    vocab: Vocab,
    search: decoding.Search,
    data: PreparedData,
    split: str,
    batch_size: int,
    max_regions: int = 0,
    limit: int = 0,
    seed: int = 1,
) -> Hypotheses:
    """The sentences of every image of a split, best first.

    Args:
      model: the captioner.
      vocab: its words.
      search: how they are found.
      data: the prepared data.
      split: of the data.
      batch_size: images at a time; sentences do not depend on it.
      max_regions: regions kept of each image; 0 keeps all.
      limit: images of the split; 0 takes all.
      seed: of samples; an image has its own by its id.
    """
    batches = pipeline.decoding_batches(
        data,
        split=split,
        batch_size=batch_size,
        captions_per_image=1,
        max_length=search.options.max_length,
        max_regions=max_regions or None,
        limit=limit or None,
    )
    shape = [None, None, data.feature_dim]
    specs = [
        tf.TensorSpec(shape),
        tf.TensorSpec(shape[:2], tf.bool),
        tf.TensorSpec([None], tf.int64),
    ]

    @tf.function(input_signature=specs)
    def describe(features, mask, ids):
        context = model.encode({"features": features, "mask": mask})
        tokens, scores = search(model, context, image_seeds(seed, ids))
        return vocab.detokenize(tokens), scores

    found = Hypotheses({}, {})
    total = -(-min(data.split(split)["images"], limit or 1 << 60) // batch_size)
    with data.readable_errors():
        for batch in console.progress(batches, total, f"decoding {split}, batches"):
            texts, scores = describe(batch["features"], batch["mask"], batch["id"])
            rows = zip(batch["id"].numpy(), texts.numpy(), scores.numpy(), strict=True)
            for image, captions, values in rows:
                found.captions[int(image)] = [caption.decode() for caption in captions]
                found.scores[int(image)] = values.tolist()
    return found


LARGEST_SEED = 2**22  # beside ids of up to 40 bits


def image_seeds(seed: int, ids: tf.Tensor) -> tf.Tensor:
    """A seed [B] int64 for each image id [B]; other for another `seed`."""
    return tf.cast(ids, tf.int64) + (seed << 40)
