"""The figures of tests/code_lines.py on texts that can be counted by hand."""

import ast
import textwrap
from pathlib import Path

import pytest

import code_lines
import guerdon
from tables import cases

TEXT = '''"""A module
of two lines."""

import os  # a comment


def _first(x):
    """A docstring."""
    return (
        x if x
        else os
    )


def second():
    return _first("""a
b""")
'''


def function(body):
    return ast.parse(f"def f(x):\n{textwrap.indent(body, '    ')}").body[0]


def files(root, **texts):
    """A package of modules, written as `folder__module="text"`."""
    for name, text in texts.items():
        path = root / "src" / "guerdon" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text, encoding="utf-8")
    return root / "src" / "guerdon"


def test_lines_tokens_and_conditional_expressions():
    # lines: import, def, return over 4, def, return over 2; tokens: 2 + 6 + 8 + 5 + 5
    assert code_lines.code_lines(TEXT) == 9
    assert code_lines.size(TEXT) == code_lines.Size(lines=9, tokens=26, conditionals=1)


def test_sizes_of_folders_add_up(tmp_path):
    root = files(tmp_path, a__one="x = 1\n", a__two="y = 2 if x else 3\n", top="z = 1\nz = 2\n")
    found = code_lines.sizes_of_folders(root)
    assert found == {"(top)": code_lines.Size(2, 6, 0), "a": code_lines.Size(2, 3 + 7, 1)}
    assert str(found["a"]).split() == ["2", "5.00", "500.0"]


def test_private_functions_used_once():
    assert code_lines.used_once(TEXT) == ["_first"]
    assert not code_lines.used_once(TEXT + "\n_first(1)\n")
    assert not code_lines.used_once("class A:\n    def __len__(self): ...\nA.__len__\n")


@cases(
    ("body", "expected"),
    [
        ("return x", (1, 0, 0, 0)),
        ("if x:\n    return 1\nelif x > 1 and x < 2 or x:\n    return 2", (5, 0, 0, 0)),
        ("for y in x:\n    assert y", (3, 0, 0, 0)),
        ("while x:\n    try:\n        x()\n    except ValueError:\n        x", (3, 0, 0, 0)),
        ("return 1 if x else 2", (2, 1, 0, 0)),
        ("return 1 if x else (2 if x else 3)", (3, 2, 1, 0)),
        ("return [y for y in x if y if y > 1]", (4, 0, 0, 0)),
        ("return {y: [z for z in y] for y in x}", (3, 0, 0, 1)),
        ("match x:\n    case 1: ...\n    case _: ...", (3, 0, 0, 0)),
        ("def g(y):\n    return 1 if y else 2\nreturn g", (1, 0, 0, 0)),
    ],
)
def test_density(body, expected):
    one = code_lines.density(function(body))
    assert (one.complexity, one.conditionals, one.nested_conditionals, one.nested_comprehensions) == expected


def test_functions_that_are_kept_as_they_are_exist_and_need_their_reason():
    root = Path(guerdon.__file__).parent
    for place in code_lines.KEPT:
        path = root / place.split(" ")[0]
        found = {code_lines.without_line(name): one for one, name in code_lines.densities(root, path)}
        assert found[place].complexity > code_lines.MOST, place


def test_the_densest_function_comes_first(tmp_path):
    nested = "def b(x):\n    return 1 if x else (2 if x else 3)\n"
    root = files(tmp_path, a__one=f"def a(x):\n    return x\n{nested}")
    assert [(one.score, place) for one, place in code_lines.densest(root, 1)] == [(3 + 4 + 5, "a/one.py:3 b")]


def test_a_kept_function_has_its_reason_beside_it():
    reason = code_lines.KEPT["serve/middleware.py _pass"]
    assert code_lines.why_kept("serve/middleware.py:85 _pass") == f" (kept: {reason})"
    assert not code_lines.why_kept("serve/middleware.py:85 _pass_on")


def test_kept_functions_are_there_and_still_dense():
    root = Path(guerdon.__file__).parent
    files = {root / place.partition(" ")[0] for place in code_lines.KEPT}
    rows = [row for file in files for row in code_lines.densities(root, file)]
    found = {code_lines.without_line(place): one for one, place in rows}
    assert all(found[place].complexity > code_lines.MOST for place in code_lines.KEPT)


def test_modules_that_one_file_imports(tmp_path):
    root = files(
        tmp_path,
        a__shared="X = 1\n",
        a__own="Y = 1\n",
        a__data="Z = 1\n",
        a__user="from guerdon.a.shared import X\nfrom guerdon.a import own\nTABLE = 'guerdon.a.data:Z'\n",
        b__lazy="def f():\n    import guerdon.a.shared\n    from . import other\n",
        b__other="",
    )
    assert code_lines.imported_by_one(root) == {
        "guerdon.a.own": "guerdon.a.user",
        "guerdon.b.other": "guerdon.b.lazy",
    }


def test_arrows_and_those_that_go_upward(tmp_path):
    root = files(
        tmp_path, a__one="import guerdon.b.two\n", b__two="from guerdon import top\n", top="import guerdon.a.one\n"
    )
    found = code_lines.arrows(root)
    assert found == {("a", "b"), ("b", "top"), ("top", "a")}
    assert sorted(code_lines.upward(found, ["top", "a", "b"])) == [("a", "b"), ("top", "a")]


@cases(
    ("text", "expected"),
    [
        ('"""Doc."""\nfrom guerdon.a import X\n', True),
        ('from guerdon.a import X\n__all__ = ["X"]\nY = X\n', True),
        ("from guerdon.a import X\nY = X + 1\n", False),
        ("from guerdon.a import X\ndef f(): ...\n", False),
        ('"""Doc."""\n', False),
    ],
)
def test_modules_that_only_pass_on_names(text, expected):
    assert code_lines.only_passes_on(ast.parse(text)) is expected


def test_import_beginnings_of_pages(tmp_path):
    pages = {
        "README.md": "import guerdon\nfrom guerdon import run\nfrom guerdon.rl.loop import Loop\n",
        "docs/deep/a.md": "from guerdon.rl.loop import Loop, x\nfrom guerdon.integrations.trl import y\n",
        "docs/extend.md": "from guerdon.settings import z\n",
        "docs/api/a.md": "from guerdon.settings import z\n",
        "examples/a.py": "import guerdon.types as t\n",
    }
    for name, text in pages.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert code_lines.import_beginnings(tmp_path) == {"guerdon.rl.loop", "guerdon.types"}


@pytest.mark.parametrize("name", ["ORDER", "FOLDERS"])
def test_a_written_list(tmp_path, name):
    path = tmp_path / "house.py"
    path.write_text(f'import re\nX = (1,)\n{name} = ("a", "b")\n', encoding="utf-8")
    assert code_lines.written_list(path, "ORDER", "FOLDERS") == ["a", "b"]
    assert not code_lines.written_list(path, "__all__")
