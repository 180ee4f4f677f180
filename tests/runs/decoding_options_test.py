"""From the configuration of a run to its search: words, ids and document frequencies."""

import pytest
from helpers.prepared import with_other_vocabulary

from tfcap import configs, runs
from tfcap.data.tokens import FUNCTION_WORDS


@pytest.fixture(scope="module")
def run(trained):
    return runs.load(trained)


def options(run, text):
    params = configs.decoding(run.params.task, text)
    return runs.decoding_options(params, 12, run.vocab)


def test_words_become_ids(run):
    words = run.vocab.words
    found = options(run, "suppress=red blue,prefix=A Red,bad_endings=of")
    assert [words[i] for i in found.suppress] == ["red", "blue"]
    assert [words[i] for i in found.prefix] == ["a", "red"]
    assert [words[i] for i in found.bad_endings] == ["of"]
    endings = [words[i] for i in options(run, "bad_endings=default").bad_endings]
    assert endings == [word for word in FUNCTION_WORDS if word in words] and len(endings) > 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prefix=a zebra", "prefix must hold words of the vocabulary only. Received: zebra"),
        ("suppress=quux red quuz", "of the vocabulary only. Received: quux, quuz"),
        ("max_length=2,prefix=a red", r"shorter than task.decoding.max_length \(2\)"),
        (f"prefix={'a ' * 12}", r"prefix must be shorter than task.max_length \(12\)"),
    ],
)
def test_words_that_cannot_work_are_refused(run, text, message):
    with pytest.raises(ValueError, match=message):
        options(run, text)


def test_consensus_without_its_document_frequencies_is_refused(run, shapes, tmp_path):
    """A missing table and a table of another vocabulary are refused."""
    params = run.params.as_dict()
    params["task"]["data_dir"] = str(tmp_path)
    lost = runs.Run(
        type(run.params)(**params), run.model, run.vocab, run.fingerprint, str(tmp_path), "", ""
    )
    given = "search=sample,order=consensus"
    message = "needs a document_frequency.npz of the run's vocabulary"
    with pytest.raises(ValueError, match=message):
        runs.search(lost, given)
    other = with_other_vocabulary(shapes, tmp_path / "other")
    with pytest.raises(ValueError, match=message):
        runs.search(lost, given, data_dir=other)
    assert runs.search(lost, given, data_dir=shapes).consensus is not None
