"""Labels of relations that do not count in GCN-LSTM. Its numbers are compared in `parity_test`."""

import numpy as np

from tfcap import models


def test_relations_are_whole_numbers_between_visible_regions():
    """Four regions, one hidden, three columns; labels are cut to those that there are."""
    sizes = dict(width=12, attention_width=7, regions=3, labels=4)
    model = models.MODELS["gcn_lstm"](13, 6, 6, name="gcn_lstm", **sizes)
    columns = np.array([[[1.0, 2.0, 3.0], [9.0, 0.0, 1.2], [-4.0, 1e9, 1.0], [3.0, 3.0, 3.0]]])
    result = model._relations(columns.astype("float32"), np.array([[True, True, False, True]]))
    expected = [[1, 2, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0], [3, 3, 0, 0]]
    np.testing.assert_array_equal(result[0], expected)
