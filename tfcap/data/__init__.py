"""Reads a prepared directory: vocabulary, records, references and tf.data pipelines."""
