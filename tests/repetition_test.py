"""No six equal lines of statements stand in two files of the package."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1]


def statements(path):
    """The lines of a module without imports, docstrings and parameters: (number, text)."""
    text = path.read_text(encoding="utf-8")
    left = set(range(1, len(text.splitlines()) + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            left -= set(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            left -= set(range(node.lineno, node.body[0].lineno))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            left -= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return [(number, line) for number, line in lines if line and number in left]


def repeated(paths, length=6):
    """Pairs of places in two files that have `length` equal lines of statements."""
    first, found = {}, []
    for path in paths:
        lines = statements(path)
        for start in range(len(lines) - length + 1):
            block = tuple(line for _, line in lines[start : start + length])
            place = (path.name, lines[start][0])
            other = first.setdefault(block, place)
            if other[0] != place[0]:
                found.append((other, place))
    return found


def test_no_six_equal_lines_stand_in_two_files(tmp_path):
    assert repeated(sorted((ROOT / "tfcap").rglob("*.py"))) == []
    lines = [f"x{n} = {n}\n" for n in range(6)]
    (tmp_path / "a.py").write_text("".join(lines))
    (tmp_path / "b.py").write_text("def f():\n    " + "\n    ".join(lines))
    assert repeated([tmp_path / "a.py", tmp_path / "b.py"]) == [(("a.py", 1), ("b.py", 2))]
