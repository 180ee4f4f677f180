"""An ensemble: several captioners whose probabilities are averaged word by word.

Letters: B images, R regions, F feature width of a member, M members, N rows of words, T' length of
the captions, V vocabulary.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfcap.models.captioner import Captioner


@keras.saving.register_keras_serializable("tfcap", "ensemble")
class Ensemble(Captioner):
    """Several captioners whose probabilities of the next word are averaged.

    p(w) = (1 / M) sum_m softmax(logits_m)(w)

    p(w) is the probability that the next word is w, and logits_m are the logits of member m of M
    members. The mean is computed at every step of a search, as in the papers (docs/systems.md 5.7
    and 8.6). The ensemble returns log p as its logits. The softmax of log p is p, so decoding
    treats an ensemble like a single model.

    `encode` returns a list with the context of each member, and the cache of `step` is a list with
    the cache of each member.

    Args:
      members: captioners of any systems. They must have the same `vocab_size`, `max_length` and
        `feature_dim`, F.
      side_by_side: True: each of the M members reads features of its own. For B images with R
        regions, the input `features` must be [B, R, M * F]: the features [B, R, F] of all members,
        joined along the last axis in the order of `members`. False: all members read the same
        `features` [B, R, F].
      **kwargs: arguments of `keras.Model`, such as `name`.

    Raises:
      ValueError: the members differ in `max_length`.

    Example:
      >>> members = [models.build(name, 20, 5, 6, width=8) for name in ("updown", "show_tell")]
      >>> inputs = {"features": tf.ones((2, 4, 6)), "mask": tf.ones((2, 4), tf.bool)}
      >>> ensemble = Ensemble(members)
      >>> ensemble.decode(ensemble.encode(inputs), tokens=tf.ones((2, 3), tf.int32)).shape
      TensorShape([2, 3, 20])
    """

    def __init__(self, members: Sequence[Captioner], *, side_by_side: bool = False, **kwargs):
        first = members[0]
        if any(member.max_length != first.max_length for member in members):
            raise ValueError(
                "The members of an ensemble must have the same max_length (longest caption). "
                f"The members have {', '.join(str(member.max_length) for member in members)}. "
                "Leave out the members that differ."
            )
        width = first.feature_dim * (len(members) if side_by_side else 1)
        super().__init__(first.vocab_size, first.max_length, width, **kwargs)
        self.members = list(members)
        self.reads_boxes = any(member.reads_boxes for member in members)
        self.side_by_side = side_by_side
        self.built = True

    def encode(self, inputs, training=False):
        parts = [inputs] * len(self.members)
        if self.side_by_side:
            features = tf.split(inputs["features"], len(self.members), axis=-1)
            parts = [{**inputs, "features": part} for part in features]
        pairs = zip(self.members, parts, strict=True)
        return [member.encode(part, training) for member, part in pairs]

    def decode(self, context, tokens, training=False):
        pairs = zip(self.members, context, strict=True)
        return _mean([member.decode(part, tokens, training) for member, part in pairs])

    def init_cache(self, context, max_length):
        pairs = zip(self.members, context, strict=True)
        return [member.init_cache(part, max_length) for member, part in pairs]

    def step(self, context, cache, tokens, index, training=False):
        logits = []
        caches = []
        for member, part, old in zip(self.members, context, cache, strict=True):
            out, new = member.step(part, old, tokens, index, training)
            logits.append(out)
            caches.append(new)
        return _mean(logits), caches

    def get_config(self):
        config = super().get_config()
        sizes = ("vocab_size", "max_length", "feature_dim")  # those of the members
        members = [keras.saving.serialize_keras_object(member) for member in self.members]
        return {k: v for k, v in config.items() if k not in sizes} | {"members": members}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        members = [keras.saving.deserialize_keras_object(member) for member in config["members"]]
        return super().from_config({**config, "members": members}, custom_objects)

    @property
    def vocabulary_axes(self):
        return {
            f"members/{index}/{name}": axis
            for index, member in enumerate(self.members)
            for name, axis in member.vocabulary_axes.items()
        }


def _mean(logits: list[tf.Tensor]) -> tf.Tensor:
    """Returns the logarithm of the mean probability, from the logits [..., V] of each member."""
    logps = tf.stack([tf.nn.log_softmax(member) for member in logits])
    return tf.reduce_logsumexp(logps, 0) - tf.math.log(float(len(logits)))
