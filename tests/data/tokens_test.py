"""Tokenizer and vocabulary."""

import unicodedata

import pytest
import tensorflow as tf

from tfcap import segmentation
from tfcap.data import tokens

CAPTIONS = [
    "man's T-shirt, two-door",
    "A dog runs .",
    "Caf\u00e9 cr\u00e8me",
    unicodedata.normalize("NFD", "Caf\u00e9 cr\u00e8me"),
    "Line one\nline\ttwo\u00a0three\r\n",
    "smile 😀 heart ❤️ family 👩‍👩‍👧 end",
    "❤️glued",
    "two\x00words",
    "5 dogs & 3,5 cats _ under_score __",
    "Привет, МИР!",
    "हिन्दी भाषा",
    "السلام عليكم",
    "中文 字",
    "...",
    "",
    " ",
]


def words_of(caption: str) -> list[str]:
    return tokens.tokenize_all([caption])[0]


@pytest.fixture(scope="module")
def vocab() -> tokens.Vocab:
    return tokens.Vocab.from_counts({"dog": 1, "a": 3, "runs": 2, "cat": 1}, min_count=1)


@pytest.mark.parametrize(
    "caption, words",
    [
        ("man's T-shirt, two-door", "man s t shirt two door"),
        ("Line one\nline\ttwo\u00a0three\u2028four\r\n", "line one line two three four"),
        ("smile 😀 heart ❤️ family 👩‍👩‍👧 end", "smile heart family end"),
        ("❤️glued", "glued"),
        ("two\x00words", "two words"),
        ("A  -- “dog” … ½? _ __ a_b", "a dog ½ a_b"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("?!. -", ""),
        ("", ""),
    ],
)
def test_words_of_a_caption(caption, words):
    assert words_of(caption) == words.split()


def test_python_graph_and_dataset_calls_agree():
    python = tokens.tokenize_all(CAPTIONS)
    assert python == [words_of(caption) for caption in CAPTIONS]
    graph = tf.function(tokens.tokenize, autograph=False)(tf.constant(CAPTIONS))
    dataset = tf.data.Dataset.from_tensor_slices(CAPTIONS).batch(1).map(tokens.tokenize)
    decode = [[word.decode() for word in words] for words in graph.to_list()]
    assert decode == python
    assert [[word.decode() for word in words[0].numpy()] for words in dataset] == python


def test_composed_and_decomposed_text_give_the_same_bytes():
    for text in ("Caf\u00e9 \u0130stanbul \u1e9b\u0323", "E\u0301A\u030a"):
        composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
        assert composed != decomposed
        words = words_of(composed)
        assert words == words_of(decomposed)
        assert words == [unicodedata.normalize("NFC", word) for word in words]


def test_vocabulary_order_and_threshold():
    counts = {"b": 2, "a": 2, "c": 1, "d": 3}
    assert tokens.Vocab.from_counts(counts, 1).words == [*tokens.SPECIALS, "d", "a", "b", "c"]
    assert tokens.Vocab.from_counts(counts, 2).words[4:] == ["d", "a", "b"]
    with pytest.raises(ValueError, match="No word occurs 9 times"):
        tokens.Vocab.from_counts(counts, 9)


def test_vocabulary_round_trip(tmp_path):
    saved = tokens.Vocab([*tokens.SPECIALS, *sorted(set(words_of(" ".join(CAPTIONS))))])
    saved.save(tmp_path / "vocab.txt")
    loaded = tokens.Vocab.load(tmp_path / "vocab.txt")
    assert loaded.words == saved.words and loaded.sha256 == saved.sha256
    assert [path.name for path in tmp_path.iterdir()] == ["vocab.txt"]
    assert len((tmp_path / "vocab.txt").read_bytes().decode().split("\n")) == len(saved) + 1


@pytest.mark.parametrize(
    "content",
    [
        b"<pad>\n<bos>\n<unk>\n<eos>\na\n",
        b"<pad>\n<bos>\n<eos>\n<unk>\na\nb\na\n",
        b"<pad>\n<bos>\n<eos>\n<unk>\na b\n",
        b"<pad>\n<bos>\n<eos>\n<unk>\ncaf\xe9\n",
    ],
)
def test_bad_vocabulary_files(tmp_path, content):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="vocab.txt that prepare wrote"):
        tokens.Vocab.load(path)


def test_encode(vocab):
    a, runs, cat, dog = 4, 5, 6, 7
    captions = tf.constant([["A dog runs.", "a bird"], ["a cat runs a dog", ""]])
    expected = [
        [[1, a, dog, runs, 2], [1, a, 3, 2, 0]],
        [[1, a, cat, runs, a], [1, 2, 0, 0, 0]],  # five words do not fit: no EOS
    ]
    assert vocab.encode(captions, 4).numpy().tolist() == expected
    encode = tf.function(lambda captions: vocab.encode(captions, 4), autograph=False)
    assert encode(captions).numpy().tolist() == expected
    dataset = tf.data.Dataset.from_tensors(captions).map(encode)
    assert next(iter(dataset)).numpy().tolist() == expected
    assert dataset.element_spec == tf.TensorSpec([2, 2, 5], tf.int32)
    assert vocab.encode(tf.constant("a dog"), 1).numpy().tolist() == [1, a]
    assert vocab.ids(["a", "bird", "dog"]) == [a, 3, dog]


def test_detokenize(vocab):
    ids = tf.constant([[[1, 4, 7, 5, 2, 6], [4, 3, 0, 6, 4, 4]], [[2, 4, 4, 4, 4, 4], [0] * 6]])
    expected = [[b"a dog runs", b"a <unk> cat a a"], [b"", b""]]
    assert vocab.detokenize(ids).numpy().tolist() == expected
    assert tf.function(vocab.detokenize, autograph=False)(ids).numpy().tolist() == expected
    words = ["a dog runs", "", "a cat runs a dog"]
    assert vocab.detokenize(vocab.encode(words, 4)).numpy().tolist() == [
        b"a dog runs",
        b"",
        b"a cat runs a",
    ]


def test_detokenize_needs_no_table_and_no_tensorflow_text(vocab):
    """It is exported: every operation must be one that stock TensorFlow has."""
    graph = tf.function(vocab.detokenize, autograph=False).get_concrete_function(
        tf.TensorSpec([None, 5], tf.int32)
    )
    kinds = {operation.type for operation in graph.graph.get_operations()}
    assert not {kind for kind in kinds if "Table" in kind or "Utf8" in kind or "Py" in kind}
    assert {"GatherV2", "ReduceJoin"} <= kinds


WITHOUT_SPACES = [
    "两 只 狗",
    "a red bus",
    "穿 t shirt 的 人",
    "有 2 3 只 <unk> 狗",
    "ไป ๒๕ ๓๐ ปี",
    "น้ำ ตก",
]


@pytest.mark.parametrize("tokenized", ["characters", "jieba", "given"])
def test_captions_of_languages_without_spaces_are_joined_in_the_graph(tokenized):
    words = sorted({word for text in WITHOUT_SPACES for word in text.split()} - {"<unk>"})
    vocab = tokens.Vocab([*tokens.SPECIALS, *words], tokens=tokenized)
    rows = [[*vocab.ids(text.split()), 2] for text in WITHOUT_SPACES]
    ids = tf.ragged.constant(rows).to_tensor()
    spaced = [text.decode() for text in vocab.detokenize(ids, joined=False).numpy()]
    assert spaced == WITHOUT_SPACES
    joined = [text.decode() for text in vocab.detokenize(ids).numpy()]
    assert joined == [segmentation.joined(text.split()) for text in WITHOUT_SPACES]
    assert joined == [vocab.shown(text) for text in WITHOUT_SPACES]
    raw = tokens.Vocab(vocab.words)
    assert [text.decode() for text in raw.detokenize(ids).numpy()] == WITHOUT_SPACES
    assert raw.shown("两 只 狗") == "两 只 狗"


def test_records_of_cut_captions_are_split_at_spaces_alone():
    words = ["狗", "a.b", ".", "\u0301"]
    cut = tokens.Vocab([*tokens.SPECIALS, *words], tokens="characters")
    assert cut.encode("狗 . a.b \u0301", 6).numpy().tolist() == [1, 4, 6, 5, 7, 2, 0]
    raw = tokens.Vocab([*tokens.SPECIALS, *words])
    assert raw.encode("狗 . a.b \u0301", 6).numpy().tolist() == [1, 4, 3, 3, 2, 0, 0]
    assert cut.split(["狗狗, Ab"]) == [["狗", "狗", "ab"]]
    assert raw.split(["狗狗, Ab"]) == [["狗狗", "ab"]]
