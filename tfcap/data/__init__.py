"""Data: captions to token ids, images to region features, records on disk, tf.data pipelines."""
