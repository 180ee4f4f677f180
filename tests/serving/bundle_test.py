"""The bundle is complete, keeps its labels, and replaces its files whole."""

import os
import shutil
import threading

import pytest
import tensorflow as tf
from helpers import commands, picture_bytes

from tfcap import console
from tfcap import export as command

pytest.importorskip("tensorflow_serving")
from tfcap.serving import bundle as bundles  # noqa: E402  it imports tensorflow_serving

pytestmark = pytest.mark.slow  # it trains, and writes SavedModels


def test_the_bundle_has_every_file_and_leaves_no_other(bundle):
    expected = {"1", "MODEL_CARD.md", "batching.config", "compose.yaml", "kubernetes.yaml"}
    expected |= {"kserve.yaml", "models.config", "monitoring.config", "prometheus.yml"}
    expected |= {".bundle.json"}
    if bundles.CLIENT.is_dir():
        expected.add("client")
        copied, own = ({p.name for p in f.iterdir()} for f in (bundle / "client", bundles.CLIENT))
        assert copied == own - {"__pycache__"}
        assert os.access(bundle / "client" / "curl.sh", os.X_OK)
    assert set(os.listdir(bundle)) == expected
    assert {"saved_model.pb", "variables", "assets.extra"} <= set(os.listdir(bundle / "1"))


def test_the_limit_of_the_flag_is_in_the_graph(bundle):
    describe = tf.saved_model.load(str(bundle / "1")).signatures["serving_default"]
    files = [picture_bytes.file("JPEG"), picture_bytes.claiming("JPEG", 3001, 1000)]
    found = describe(image_bytes=tf.constant(files))["status"].numpy()
    assert found.tolist() == [b"ok", b"too many pixels: 3001000, at most 3000000"]


@pytest.fixture
def again(bundle, run_and_server, tmp_path):
    """Exports a second version into a copy of the bundle, and returns the copy."""

    def export(change=lambda folder: None):
        folder = shutil.copytree(bundle, tmp_path / "served")
        change(folder)
        run, served = run_and_server
        bundles.write_bundle(served, run, str(folder))
        return folder

    return export


def test_a_second_version_is_the_canary_and_the_files_are_always_whole(bundle, again):
    seen, ended = {}, threading.Event()

    def look(folder):
        while not ended.wait(0.001):
            for name in ("models.config", "MODEL_CARD.md", "compose.yaml"):
                seen.setdefault(name, set()).add((folder / name).read_text())

    threads = []

    def change(folder):
        for name in (".tmp-7-0123abcd-client", ".old-7-0123abcd-client", ".tmp-7-0123abcd-other"):
            (folder / name).mkdir()
        (folder / ".tmp-7-0123abcd-models.config").write_text("of a killed export")
        (folder / "client" / ".tmp-7-0123abcd-captions_client.py").write_text("of a killed export")
        (folder / "batching.config").write_text("# of a person")
        (folder / ".tmp-7-0123abcd-batching.config.new").write_text("of a killed export")
        threads.append(threading.Thread(target=look, args=(folder,), daemon=True))
        threads[0].start()

    folder = again(change)
    ended.set()
    threads[0].join()
    for name, contents in seen.items():
        assert contents <= {(bundle / name).read_text(), (folder / name).read_text()}
    added = {".tmp-7-0123abcd-other", "2"}  # the first one is no file of a bundle
    assert set(os.listdir(folder)) - set(os.listdir(bundle)) == added | {"batching.config.new"}
    assert (folder / "batching.config").read_text() == "# of a person"
    assert set(os.listdir(folder / "client")) == set(os.listdir(bundle / "client"))
    labels = bundles.server_files.labels(str(folder), 2)
    assert labels == {"stable": 1, "canary": 2}
    assert "versions: 1\n" in (folder / "models.config").read_text()
    assert "versions: 2\n" in (folder / "models.config").read_text()
    assert "The validation scores of these weights" in (folder / "MODEL_CARD.md").read_text()


def test_an_export_that_ends_after_a_later_one_keeps_its_label(bundle, run_and_server, tmp_path):
    """Version 2 was complete before version 1 wrote its files."""
    folder, (run, served) = shutil.copytree(bundle, tmp_path / "served"), run_and_server
    shutil.copytree(folder / "1", folder / "2")
    measured = {"how": bundles.timing.choose({1: 0.1}), "requests": 1}
    bundles._write_files(served, run, str(folder), str(folder / "1"), ({}, 0), measured)
    text = (folder / "models.config").read_text()
    assert "versions: 1\n" in text and "versions: 2\n" in text


def test_a_failed_bundle_changes_nothing(bundle, again, tmp_path):
    (tmp_path / "models.config").write_text("no config")

    def damage(folder):
        shutil.copy(tmp_path / "models.config", folder / "models.config")

    with pytest.raises(ValueError, match="models.config is not a ModelServerConfig"):
        again(damage)
    assert sorted(os.listdir(tmp_path / "served")) == sorted(os.listdir(bundle))


def test_pictures_that_cannot_be_captioned_end_the_export(bundle, run_and_server, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").write_text("no picture")
    (run, served), folder = run_and_server, tmp_path / "served"
    with pytest.raises(ValueError, match="must be captioned. Received from serving_default: not a"):
        bundles.write_bundle(served, run, str(folder), str(tmp_path / "bad"))
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--bundle", "--results=x"], "--results and --references must be given together"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, sentence):
    with pytest.raises(console.UsageError, match=sentence):
        commands.run_here(command, "--model_dir=x", "--export_dir=y", *flags)
