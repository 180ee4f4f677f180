"""Lists the packages and makes the description for a package index; the rest is in setup.cfg.

`packages = find:` of setup.cfg cannot name a package whose directory has another name:
experiments/ of the checkout is tfcap/experiments/ of a wheel.
"""

import pathlib
import re

import setuptools

_RELATIVE = r"(?![a-z]+:)[^)\s]+"  # the target of a link inside the checkout


def description(readme: str) -> str:
    """Returns README.md without what a package index cannot follow.

    The page on an index has no files beside it: relative links become their text, and relative
    pictures are left out.
    """
    text = re.sub(rf"!\[[^\]]*\]\({_RELATIVE}\)\n?", "", readme)
    text = re.sub(r"<picture>.*?</picture>\n?", "", text, flags=re.S)
    text = re.sub(r'<img [^>]*src="(?![a-z]+:)[^>]*>\n?', "", text)
    text = re.sub(rf"(?<!!)\[([^\]]*)\]\({_RELATIVE}\)", r"\1", text)
    text = re.sub(r'<a href="(?![a-z]+:)[^"]*">(.*?)</a>', r"\1", text, flags=re.S)
    return text + "\nThe files that this page names are in the source distribution.\n"


if __name__ == "__main__":
    recipes = ["experiments", *setuptools.find_namespace_packages(include=["experiments.*"])]
    setuptools.setup(
        packages=[
            *setuptools.find_packages(include=["tfcap", "tfcap.*"]),
            *(f"tfcap.{name}" for name in recipes),
        ],
        long_description=description(pathlib.Path("README.md").read_text(encoding="utf-8")),
    )
