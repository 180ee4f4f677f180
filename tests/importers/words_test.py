"""Released vocabulary tables: the order of our words and their released ids."""

import json
import os
import pickle

import pytest

from tfcap.importers import words


def read(tmp_path, family, content):
    path = tmp_path / "words.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return words.read_words(family, path)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_file_with_one_word_per_line_is_read(tmp_path, end):
    vocab, ids = read(tmp_path, "xlan", "a\ncat's\nna\u00efve\nUNK".replace("\n", "\r\n") + end)
    assert vocab.words == ["<pad>", "<bos>", "<eos>", "<unk>", "a", "cat's", "na\u00efve"]
    assert ids.tolist() == [0, 0, 0, 4, 1, 2, 3]
    vocab, ids = read(tmp_path, "xmodaler", "a\n<unk>\nb\n")  # anywhere
    assert vocab.words[4:] == ["a", "b"] and ids.tolist() == [0, 0, 0, 2, 1, 3]


def test_a_json_list_of_expansionnet_is_read(tmp_path):
    words = ["\n", "EOS", "PAD", "SOS", "UNK", "a b", "cat", "\u2028"]
    vocab, ids = read(tmp_path, "expansionnet", json.dumps(words))
    assert vocab.words[4:] == ["\\n", "PAD", "SOS", "a\\x20b", "cat", "\\u2028"]
    assert ids.tolist() == [2, 3, 1, 4, 0, 2, 3, 5, 6, 7]
    vocab.save(tmp_path / "vocab.txt")
    assert type(vocab).load(tmp_path / "vocab.txt").words == vocab.words
    vocab, ids = read(tmp_path, "expansionnet", "EOS\nPAD\nSOS\nUNK\ncat\n")
    assert ids.tolist() == [1, 2, 0, 3, 1, 2, 4]


@pytest.mark.parametrize(
    "content",
    [
        {"ix_to_word": {"3": "c", "1": "a", "2": "UNK"}, "images": [{"split": "train"}]},
        {"3": "c", "1": "a", "2": "UNK"},
        {"word_to_ix": {"c": 3, "a": 1, "UNK": 2}},
        {"a": 1, "UNK": 2, "c": 3},
    ],
)
def test_a_json_object_is_read(tmp_path, content):
    vocab, ids = read(tmp_path, "self_critical", json.dumps(content))
    assert vocab.words[4:] == ["a", "c"] and ids.tolist() == [0, 0, 0, 2, 1, 3]


@pytest.mark.parametrize(
    ("family", "content", "reason"),
    [
        ("xlan", "a\nb\n", "must have exactly one word for unknown words"),
        ("xlan", "a\nb\na\nUNK\n", "has the word 'a' twice"),
        ("xlan", b"\x80\x03}q\x00.", "is not UTF-8. If it is text or JSON, save it"),
        ("expansionnet_v2", b"\x80\x03}q", "the pickle is damaged"),
        ("xlan", "", "one word per line, a JSON list"),
        ("expansionnet", '["PAD", "SOS", "cat"]', "lacks EOS, UNK"),
        ("xlan", '{"ix_to_word": {"0": "a", "1": "UNK"}}', "a word for each id from 1 on"),
        ("xlan", '[\n"a",\n"b"\n', "is damaged JSON"),
    ],
)
def test_wrong_word_files_are_refused(tmp_path, family, content, reason):
    with pytest.raises(ValueError, match=reason):
        read(tmp_path, family, content)


def test_a_pickle_of_words_is_read_and_runs_nothing(tmp_path):
    words = ["\n", "EOS", "PAD", "SOS", "UNK", "cat"]
    table = {"word2idx_dict": {}, "idx2word_list": words, "sos_str": "SOS"}
    vocab, _ = read(tmp_path, "expansionnet_v2", pickle.dumps(table, 3))
    assert vocab.words[4:] == ["\\n", "PAD", "SOS", "cat"]

    class Harm:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    with pytest.raises(ValueError, match="one word per line, a JSON list"):
        read(tmp_path, "expansionnet_v2", pickle.dumps(Harm(), 3))
    assert not (tmp_path / "harm").exists()
