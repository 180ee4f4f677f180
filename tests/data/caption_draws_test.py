"""The draw of captions: fair, and without replacement where there are enough."""

import numpy as np
import tensorflow as tf

from tfcap.data.caption_draws import draw_captions


def test_drawing_is_fair():
    """Each of six captions is in a draw of three half of the time."""
    lengths = tf.fill([4000], tf.constant(6, tf.int64))
    drawn = draw_captions(lengths, 3, tf.range(4000, dtype=tf.int64), 5, tf.constant(0, tf.int64))
    counts = np.bincount(drawn.numpy().ravel(), minlength=6)
    assert abs(counts - 2000).max() < 5 * np.sqrt(4000 / 4)
    firsts = np.bincount(drawn.numpy()[:, 0], minlength=6)
    assert abs(firsts - 4000 / 6).max() < 5 * np.sqrt(4000 * 5 / 36)


def test_an_image_has_the_same_draw_in_another_batch():
    ids, lengths = tf.range(5, dtype=tf.int64), tf.constant([1, 2, 5, 9, 3], tf.int64)
    together = draw_captions(lengths, 4, ids, 5, tf.constant(2, tf.int64)).numpy()
    alone = draw_captions(lengths[2:3], 4, ids[2:3], 5, tf.constant(2, tf.int64)).numpy()
    assert (together[2] == alone[0]).all()
    assert sorted(together[1][:2]) == [0, 1]
    assert (together < lengths.numpy()[:, None]).all()
