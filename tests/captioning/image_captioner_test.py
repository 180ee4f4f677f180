"""The captioner of Python programs: captions, failures, scores, searches and exports."""

import dataclasses
import inspect
import itertools
import json
import pathlib
import pickle
import threading

import numpy as np
import pytest
import tensorflow as tf
from helpers import captions
from PIL import Image

import tfcap
from tfcap.ids import BOS, EOS


def test_captions_come_in_order_and_do_not_depend_on_the_batch_size(captioner, pictures):
    single = {path: rest for path, *rest in captions.every(captioner, pictures, 1)}
    assert len({result[0] for result, _ in single.values()}) > 1
    paths = [*pictures[::-1], pictures[2], pictures[0]]
    answers = list(captions.every(captioner, paths, 4))  # the second batch is not full
    assert [path for path, *_ in answers] == paths
    for path, result, scores in answers:
        assert result == single[path][0]
        assert scores == pytest.approx(single[path][1], abs=1e-5)
        assert len(result) == 2 and scores == sorted(scores, reverse=True)
    assert captioner([]) == []


def test_the_search_becomes_ready_beside_the_features_of_the_first_picture(captioner, pictures):
    for size in (2, 3):
        captioner(pictures[:size])  # the features are traced for any number of pictures
    first = captioner.with_decoding("beam=2")
    search, threads = first.runtime._search, []

    def noted(*inputs):
        threads.append(threading.current_thread())
        return search(*inputs)

    first.runtime._search = noted
    caption = first(pictures[0])
    other = captioner.with_decoding("beam=2")([pictures[0]] * 2)[0]
    assert (caption.text, caption.score) == (other.text, pytest.approx(other.score, abs=1e-5))
    assert len(set(threads)) == 2 and threads[1] is threading.current_thread()
    assert not threads[0].is_alive() and search.experimental_get_tracing_count() == 1
    first(pictures[0])
    assert len(threads) == 3


def test_a_bad_picture_does_not_stop_the_stream(captioner, pictures, bad):
    names, reasons = zip(*bad, strict=True)
    good = [str(caption) for caption in captioner(pictures[:3])]
    # Bad pictures: the first one, two in a row, and a whole batch.
    values = [names[0], pictures[0], *names[1:3], pictures[1], pictures[2], *names[3:]]
    results = list(captioner.stream(values, batch_size=3))
    assert [result.position for result in results] == list(range(len(values)))
    failures = [result for result in results if isinstance(result, tfcap.Failure)]
    assert [str(one) for one in results if isinstance(one, tfcap.Caption)] == good
    assert len(failures) == len(bad)
    for failure, name, reason in zip(failures, names, reasons, strict=True):
        assert reason in failure.reason and "\n" not in failure.reason
        assert failure.source == (name if isinstance(name, str) else None)
    with pytest.raises(ValueError, match=f"{names[3]}: there is no such file"):
        captioner([pictures[0], names[3]])


def test_a_call_shows_the_options_of_the_stream():
    """Editors and `help` read them from the signature."""
    call, stream = map(
        inspect.signature, (tfcap.ImageCaptioner.__call__, tfcap.ImageCaptioner.stream)
    )
    assert call.parameters == stream.parameters
    assert {"attention", "attention_captions", "batch_size", "seed"} < set(call.parameters)


def test_the_stream_reads_no_further_than_it_is_asked(captioner, pictures):
    asked = []
    results = captioner.stream(asked.append(n) or pictures[0] for n in itertools.count())
    next(results)
    assert len(asked) == 16


def test_all_kinds_of_pictures_give_the_same_caption(captioner, pictures, tmp_path):
    path = pictures[0]
    image = Image.open(path).convert("RGB")
    content, pixels = pathlib.Path(path).read_bytes(), np.asarray(image)
    wanted = captioner(path)
    assert isinstance(wanted, tfcap.Caption) and wanted.source == path
    image.save(tmp_path / "one.png")
    kinds = [pathlib.Path(path), content, image, pixels]
    kinds += [tf.constant(content), tf.constant(path), tf.constant(pixels)]
    for caption in [captioner(kind) for kind in kinds] + captioner(iter(kinds)):
        assert caption.text == wanted.text
        assert caption.score == pytest.approx(wanted.score, abs=1e-5)
    several = [str(tmp_path), tmp_path, np.stack([pixels]), [path], (path,)]
    for result in map(captioner, several):
        assert [one.text for one in result] == [wanted.text]


def test_a_caption_can_be_stored_and_changed(captioner, pictures):
    caption = captioner(pictures[2])
    kept = pickle.loads(pickle.dumps(caption))
    assert kept == caption and kept.log_probs == caption.log_probs
    changed = dataclasses.replace(kept, text="a dog")
    assert changed != caption and changed.log_probs == caption.log_probs
    content = json.loads(json.dumps(dataclasses.asdict(caption)))
    assert content["log_probs"] == list(caption.log_probs)


def test_log_probabilities_sum_to_the_score(captioner, pictures):
    for caption in captioner(pictures):
        for one in (caption, *caption.alternatives):
            assert len(one.log_probs) in (len(one.words), len(one.words) + 1)
            assert sum(one.log_probs) == pytest.approx(one.score, abs=1e-4)


def test_log_probabilities_belong_to_their_words(captioner, pictures):
    features, model = captioner.features(pictures[:2]), captioner.model
    vocab = captioner.runtime.run.vocab
    for image, best in enumerate(captioner(pictures[:2])):
        values = {"features": features[image : image + 1], "mask": tf.ones((1, 36), bool)}
        context = model.encode(values)
        for one in (best, *best.alternatives):
            ids = vocab.ids(list(one.words))
            logits = model.decode(context, tf.constant([[BOS, *ids]]))[0].numpy()
            shares = np.exp(logits.astype(np.float64))
            shares /= shares[:, EOS:].sum(-1, keepdims=True)  # PAD and BOS are never chosen
            wanted = np.log([row[word] for row, word in zip(shares, [*ids, EOS], strict=True)])
            np.testing.assert_allclose(one.log_probs, wanted[: len(one.log_probs)], atol=1e-4)


def test_attention_is_computed_and_drawn(captioner, pictures, tmp_path):
    plain = captioner(pictures[0])
    assert plain._repr_png_() is None
    with pytest.raises(ValueError, match='attention="attention" or attention="contribution"'):
        plain.draw(tmp_path / "x.png")
    for kind in ("attention", "contribution"):
        caption, _ = captioner(pictures[:2], attention=kind, attention_captions=2)
        (other,) = caption.alternatives
        assert other.weights.shape == (len(other.words), 36)
        assert other.words[0] == caption.words[0]
        np.testing.assert_allclose(other.weights[0], caption.weights[0], atol=1e-5)
        one = captioner(pictures[0], attention=kind)
        np.testing.assert_allclose(one.weights, caption.weights, atol=1e-5)
        assert one.alternatives[0].attended is None
        assert caption.text == plain.text
        assert caption.weights.shape == (len(caption.words), 36) == (len(plain.words), 36)
        assert caption.boxes.shape == (36, 4) and caption.boxes.max() == 1
        np.testing.assert_allclose(caption.weights.sum(-1), 1, atol=1e-5)
        caption.draw(tmp_path / f"{kind}.png")
        assert Image.open(tmp_path / f"{kind}.png").size[0] > 100
        assert caption._repr_png_()[:4] == b"\x89PNG"


def test_a_largest_length_cuts_captions(captioner, pictures):
    """A cut caption has no end; its words keep their probabilities."""
    whole = captioner(pictures[0])
    cut = captioner.with_decoding("max_length=3")(pictures[0])
    assert len(whole.words) > 3 and len(cut.words) == len(cut.log_probs) == 3
    assert sum(cut.log_probs) == pytest.approx(cut.score, abs=1e-4)


def test_texts_are_scored_for_every_picture(captioner, pictures):
    caption = captioner(pictures[0])
    texts = [caption.text, "a red circle"]
    scores = captioner.score(pictures[:3], texts)
    assert scores.shape == (3, 2) and scores.dtype == np.float64
    assert scores[0, 0] == pytest.approx(caption.score, abs=1e-4)
    assert captioner.score(pictures[1], "a red circle") == pytest.approx(scores[1:2, 1:], abs=1e-4)
    with pytest.warns(UserWarning, match="1 of 3 words are outside the vocabulary: zebra"):
        captioner.score(pictures[0], "a zebra")


def test_pictures_are_found_by_their_probability(captioner, pictures, bad):
    texts = ["a red circle", "a blue square"]
    scores = captioner.score(pictures, texts)
    with pytest.warns(UserWarning, match="left out: .*there is no such file"):
        result = captioner.search(texts, [bad[3][0], *pictures], top=3, batch_size=2)
    for column, matches in zip(scores.T, result, strict=True):
        order = np.argsort(-column)[:3]
        assert [match.position for match in matches] == (order + 1).tolist()
        assert [match.source for match in matches] == [pictures[place] for place in order]
        assert [m.score for m in matches] == pytest.approx(column[order].tolist(), abs=1e-4)
    assert captioner.search(texts[0], pictures, top=1)[0].source == result[0][0].source


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (
            lambda captioner, path: captioner.stream(path, attention="gaze"),
            "`attention` must be attention, contribution or None",
        ),
        (lambda captioner, path: captioner.stream(3), "`images` must be a path"),
        (lambda captioner, path: captioner.score(path, " "), "has no word"),
        (lambda captioner, path: captioner.with_decoding("prefix=zebra"), "does not have zebra"),
    ],
)
def test_bad_arguments_are_refused_at_once(captioner, pictures, call, part):
    with pytest.raises(ValueError, match=part):
        call(captioner, pictures[0])


@pytest.mark.slow
def test_samples_depend_on_the_seed_and_the_position(captioner, pictures):
    sampler = captioner.with_decoding("search=sample,samples=3")
    assert captioner.decoding["search"] == "beam" != sampler.decoding["search"]
    same = [pictures[0]] * 3
    first = list(captions.every(sampler, same, 2))
    assert (
        first
        == list(captions.every(sampler, same, 3))
        != list(captions.every(sampler, same, 3, seed=2))
    )
    assert first[0][1] != first[1][1]
    for caption in sampler(same):
        assert sum(caption.log_probs) == pytest.approx(caption.score, abs=1e-4)


def test_another_decoding_changes_that_of_the_captioner(captioner, pictures):
    changed = captioner.with_decoding("beam=4,temperature=0.5").with_decoding("beam=3")
    wanted = {**captioner.decoding, "beam": 3, "temperature": 0.5}
    assert changed.decoding == wanted and captioner.decoding["beam"] == 2
    caption = changed(pictures[0])
    assert len(caption.alternatives) == 2
    for one in (caption, *caption.alternatives):  # the score is that of the tempered distribution
        assert sum(one.log_probs) < one.score
