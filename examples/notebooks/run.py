"""Run notebooks without Jupyter, and store what their cells print: `python examples/notebooks/run.py [NAME.ipynb ...]`.

Cells run in the folder of the notebook, lines that begin with `!` in a shell. With `--check` nothing is stored: a cell
that raises, or that prints nothing where something is stored, is an error.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FORMATS = {"_repr_html_": "text/html", "_repr_svg_": "image/svg+xml"}
WAITING = re.compile(r"^\w+, \d+ s: .*\n", re.M)  # of a command that takes long


def lines(text: str) -> list[str]:
    """A text as notebooks hold it."""
    return text.splitlines(keepends=True)


def shown(value: Any) -> dict[str, Any]:
    """The output of a cell that ends in a value."""
    data = {"text/plain": lines(repr(value))}
    for method, name in FORMATS.items():
        if hasattr(value, method):
            data[name] = lines(getattr(value, method)())
    return {"output_type": "execute_result", "metadata": {}, "data": data, "execution_count": None}


def in_shell(command: str) -> None:
    """Run a line that begins with `!`; `guerdon` is the one of this Python."""
    words = shlex.split(command)
    if words[0] == "guerdon":
        words = [sys.executable, "-m", "guerdon", *words[1:]]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}: status {done.returncode}\n{done.stdout}")
    print(WAITING.sub("", done.stdout), end="")


def run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints."""
    said, outputs = io.StringIO(), []
    code = re.sub(r"^!(.+)$", lambda found: f"_in_shell({found[1]!r})", source, flags=re.M)
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if said.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(said.getvalue())})
    if value is not None:
        outputs.append(shown(value))
    return outputs


def kinds(outputs: list[dict[str, Any]]) -> list[Any]:
    """What may not change from machine to machine: the formats of the outputs, in their order."""
    return [sorted(one["data"]) if "data" in one else one["name"] for one in outputs]


def run(path: Path, *, check: bool) -> None:
    """Run a notebook in its folder.

    Args:
        path: of the notebook.
        check: compare with the stored outputs and store nothing.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__", "_in_shell": in_shell}
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        for number, cell in enumerate(cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
            outputs = run_cell("".join(cell["source"]), names)
            if check and kinds(outputs) != kinds(cell["outputs"]):
                raise SystemExit(f"{path.name}, code cell {number}: {kinds(outputs)}, stored {kinds(cell['outputs'])}")
            cell["outputs"], cell["execution_count"] = outputs, number + 1
            for one in outputs:
                if "execution_count" in one:
                    one["execution_count"] = number + 1
    finally:
        os.chdir(before)
    if not check:
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run notebooks.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of this folder")
    parser.add_argument("--check", action="store_true", help="store nothing")
    given = parser.parse_args()
    for one in given.notebooks or sorted(HERE.glob("*.ipynb")):
        run(one.resolve(), check=given.check)
