"""Score files are checked before they are used."""

import numpy as np
import pytest

from tfcap.scoring import score_files


def test_damaged_and_foreign_score_files_are_refused(tmp_path):
    settings, about = {"model": "a"}, {"checkpoint": "b"}
    (tmp_path / "strange").mkdir()
    np.save(tmp_path / "strange" / "pairs.npy", np.zeros((2, 3)))
    with pytest.raises(
        ValueError, match="must hold no scores without pairs.json, .* Received: pairs.npy"
    ):
        score_files.ScoreFiles(str(tmp_path / "strange"), settings, about)
    files = score_files.ScoreFiles(str(tmp_path / "mine"), settings, about)
    matrix = files.rows("pairs", (4, 3))
    matrix[1] = 7
    assert score_files.missing(matrix).tolist() == [0, 2, 3]
    del matrix
    path = tmp_path / "mine" / "pairs.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="pairs.npy cannot be read"):
        files.rows("pairs", (4, 3))
    (tmp_path / "mine" / "pairs.json").write_text("[]")
    with pytest.raises(ValueError, match="must hold a JSON object. Received: list"):
        score_files.ScoreFiles(str(tmp_path / "mine"), settings, about)
