"""Captions to score, and one scorer with a METEOR process for all tests."""

import os
import pathlib

import pytest
from pycocoevalcap.tokenizer import ptbtokenizer

from tfcap.metrics import coco

REFERENCES = {
    11: [
        "A small red circle is above the large blue square.",
        "There's a red circle over a blue square, isn't there?",
        "The tiny, round red shape; below it: a big square!",
    ],
    5: [
        "Two dogs run through the wet grass.",
        "A black dog and a white dog are running in a field",
        'Two dogs "play" together outside (in the rain).',
    ],
    8: [
        "A man's T-shirt hangs on a two-door wardrobe in the U.S.",
        "A shirt is hanging on the wardrobe's left door.",
        "The man's shirt is on a hanger.",
    ],
    301: [
        "A woman in a café drinks a cup of tea for $3.50",
        "The woman doesn't look up from her tea, e.g. to wave.",
        "A lady is sitting at a table with tea and a book - alone.",
    ],
    42: [
        "Three children are sliding down a snowy hill on sleds...",
        "Kids sledding on a hill near St. Peter's church",
        "Children going down a slope in the snow at 10:30 a.m.",
    ],
    77: [
        "A surfer rides a wave",
        "the surfer is riding a big wave in the ocean",
        "A person on a surfboard in the water .",
    ],
    78: [
        "A train, green and yellow, stands at the platform etc.",
        "A green train at a station.",
        "People are waiting for the green/yellow train",
    ],
    9: [
        "Four green triangles in a row",
        "There are 4 triangles; all of them are green.",
        "A row of triangles",
    ],
}
PREDICTIONS = {
    5: "two dogs are running in the grass",
    8: "a man's shirt hangs on a door",
    9: "four triangles in a row",
    11: "A red circle is above a blue square.",
    42: "children sledding down a snowy hill",
    77: "a man riding a wave on a surfboard",
    78: "a green train at a platform",
    301: "a woman drinks tea in a café, isn't she?",
}


@pytest.fixture(scope="session")
def scorer(java):
    """A scorer whose METEOR was started under a German locale."""
    with coco.CocoScorer(("BLEU", "METEOR", "ROUGE-L", "CIDEr")) as shared:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LC_ALL", "de_DE.UTF-8")
            patch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.country=DE")
            shared._meteor.start()
        yield shared


@pytest.fixture(scope="session")
def references():
    return REFERENCES


@pytest.fixture(scope="session")
def predictions():
    return PREDICTIONS


@pytest.fixture(scope="session")
def scores(scorer, references, predictions):
    """Scores of the captions above by the shared scorer; its METEOR process runs afterwards."""
    return scorer.score(references, predictions)


@pytest.fixture(scope="session")
def official_tokenize(java):
    """Tokenizes image id -> captions with pycocoevalcap's own tokenizer."""
    if not os.access(pathlib.Path(ptbtokenizer.__file__).parent, os.W_OK):
        pytest.skip("pycocoevalcap's tokenizer writes into site-packages, which is read-only")

    def tokenize(captions):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", os.path.dirname(java.path), prepend=os.pathsep)
            return ptbtokenizer.PTBTokenizer().tokenize(
                {image: [{"caption": text} for text in texts] for image, texts in captions.items()}
            )

    return tokenize


@pytest.fixture
def fake_java(tmp_path, java):
    """Makes an executable that calls the real Java, except to start METEOR."""
    if os.name != "posix":
        pytest.skip("the stand-in is a shell script")

    def make(meteor: str) -> str:
        path = tmp_path / "java"
        path.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *meteor-1.5.jar*) {meteor};; *) exec {java.path} "$@";; esac\n'
        )
        path.chmod(0o755)
        return str(path)

    return make
