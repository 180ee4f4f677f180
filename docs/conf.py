"""Settings of the documentation site: python -m sphinx -W docs build/site."""

import concurrent.futures
import importlib
import inspect
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import tempfile

import jupytext
import nbclient
from sphinx.util.inspect import stringify_signature

sys.path.insert(0, os.path.dirname(__file__))
import tables  # noqa: E402

_PAGES = pathlib.Path(__file__).parent

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

project = "tfcap"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["images"]

html_theme = "furo"
html_title = "tfcap"
html_show_copyright = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False

myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # a heading that skips a level
    "ref.python",  # a type of a docstring whose name two modules have
]

default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
# No type stands in a comment; looking for them took a tenth of the build.
autodoc_use_type_comments = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Extras that the site does not need; the reference documents the modules that import them.
autodoc_mock_imports = ["apache_beam", "tensorflow_serving"]
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# Docstrings are plain text with `code`. What else reStructuredText would read as markup is text.
_MARKUP = re.compile(r"(`+)(.+?)\1(?=(\w?))|[*|\\]|_(?!\w)", re.S)


def _escape(match: re.Match) -> str:
    if not match[2]:
        return f"\\{match[0]}"
    return f"``{match[2].strip()}``" + ("\\ " if match[3] else "")


def _paragraph(lines: list[str]) -> list[str]:
    """A paragraph of a docstring: equations keep their columns, other text is escaped."""
    if any(re.search(r"\S {3,}\S", line) for line in lines):
        return ["::", "", *("    " + line for line in lines)]
    bullets = [re.match(r"\s*(\* )?", line).end() for line in lines]
    return [
        line[:end] + _MARKUP.sub(_escape, line[end:])
        for line, end in zip(lines, bullets, strict=True)
    ]


def plain(app, what, name, obj, options, lines: list[str]) -> None:
    """Makes a docstring harmless: code and equations are literal, and nothing else is markup."""
    text, paragraph = [], []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line)
        else:
            text += [*_paragraph(paragraph), line]
            paragraph = []
    lines[:] = text


def modules(app, page: str, source: list[str]) -> None:
    """Replaces `<!-- modules NAME -->` by the docstrings of a module; `NAME.*` by a package's."""

    def section(name: str) -> str:
        # The title of the page is the heading of its package.
        heading = "" if name == f"tfcap.{page.removeprefix('api/')}" else f"## {name}\n\n"
        return f"{heading}```{{eval-rst}}\n.. automodule:: {name}\n   :ignore-module-all:\n```\n"

    def documented(match: re.Match) -> str:
        if not match[2]:
            return section(match[1])
        package = importlib.import_module(match[1])
        names = [match[1]] if package.__doc__ else []
        for module in pkgutil.walk_packages(package.__path__, f"{match[1]}."):
            names.append(module.name)
        return "\n".join(map(section, names))

    source[0] = re.sub(r"<!-- modules ([\w.]+?)(\.\*)? -->", documented, source[0])


def package_pages(app) -> None:
    """Writes a page of the reference for every package; its docstring introduces it."""
    for path in sorted((_PAGES.parent / "tfcap").glob("*/__init__.py")):
        name = path.parent.name
        if name != "captioning":  # python.md has it
            text = f"# tfcap.{name}\n\n<!-- modules tfcap.{name}.* -->\n"
            (_PAGES / "api" / f"{name}.md").write_text(text, encoding="utf-8")


def constructor(app, what, name, obj, options, signature, annotation):
    """Shows the arguments of `__init__` for layers, whose `__new__` takes any."""
    if what != "class" or not (signature or "").startswith("(*args"):
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    return stringify_signature(inspect.Signature(parameters), show_annotation=False), None


_WORK = tempfile.TemporaryDirectory()  # where the notebooks run


def notebook(page: str) -> str:
    """Runs a page that is a notebook; returns it with what its cells print and draw."""
    content = jupytext.reads((_PAGES / f"{page}.md").read_text(encoding="utf-8"), "md")
    place = {"metadata": {"path": _WORK.name}}
    client = nbclient.NotebookClient(content, kernel_name="python3", resources=place)
    client.execute(stderr=subprocess.DEVNULL)  # ipykernel warns of its own default
    parts = []
    for cell in content.cells:
        parts.append(f"```python\n{cell.source}\n```" if "outputs" in cell else cell.source)
        printed = ""
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                parts.append(f"![What the cell draws](data:image/png;base64,{picture.strip()})")
            elif output.get("name") == "stdout":
                printed += output.text
        if printed:
            parts.append(f"```text\n{printed}```")
    return "\n\n".join(parts)


# Notebooks run one after the other, beside the reading of other pages: the second one captions with
# the model that the first one trains.
_THREAD = concurrent.futures.ThreadPoolExecutor(1)
_NOTEBOOKS: dict[str, concurrent.futures.Future[str]] = {}


def start_notebooks(app, env, names: list[str]) -> None:
    """Starts the notebooks if one of the pages to read is a notebook."""
    if any(name.startswith("notebook_") for name in names):
        for page in ("notebook_train", "notebook_caption"):
            _NOTEBOOKS[page] = _THREAD.submit(notebook, page)


def notebooks(app, page: str, source: list[str]) -> None:
    """Adds the outputs to the notebooks."""
    if page.startswith("notebook_"):
        source[0] = _NOTEBOOKS[page].result()


def fill_tables(app, page: str, source: list[str]) -> None:
    """Writes the tables of keys into their page; the tables of other pages are stored there."""
    if page == "configuration":
        source[0] = tables.fill(source[0])


def setup(app) -> None:
    """Connects what reads pages, and docstrings before napoleon does."""
    app.connect("builder-inited", package_pages)
    app.connect("env-before-read-docs", start_notebooks)
    app.connect("source-read", fill_tables)
    app.connect("source-read", modules)
    app.connect("source-read", notebooks)
    app.connect("autodoc-process-docstring", plain, priority=400)
    app.connect("autodoc-process-signature", constructor)
