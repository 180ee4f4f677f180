"""Puts the recipes into the wheel and README.md on its page; the rest is in setup.cfg."""

import pathlib
import re

import setuptools
from setuptools.command import build_py

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


class BuildPackage(build_py.build_py):
    """Copies the recipes, which lie beside the package in a checkout, into the package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_tree("experiments", f"{self.build_lib}/tfcap/experiments")


if __name__ == "__main__":
    setuptools.setup(
        cmdclass={"build_py": BuildPackage},
        long_description=description(pathlib.Path("README.md").read_text(encoding="utf-8")),
    )
