"""Labels of relations that do not count. `parity_test` has the numbers of the graph."""

import numpy as np

from tfcap.layers.relations import relations_in


def test_relations_are_whole_numbers_between_visible_regions():
    """Four regions, one hidden, three columns; labels are cut to those that there are."""
    columns = np.array([[[1.0, 2.0, 3.0], [9.0, 0.0, 1.2], [-4.0, 1e9, 1.0], [3.0, 3.0, 3.0]]])
    mask = np.array([[True, True, False, True]])
    result = relations_in(columns.astype("float32"), mask, labels=4)
    expected = [[1, 2, 0, 0], [3, 0, 0, 0], [0, 0, 0, 0], [3, 3, 0, 0]]
    np.testing.assert_array_equal(result[0], expected)
