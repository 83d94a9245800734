"""Counts lines of code without blanks, comments and docstrings, by folder: `python tests/code_lines.py src/guerdon`."""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text):
    """Number of lines that hold code; a string over several lines counts with each, a docstring with none."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if documented and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    counts = Counter()
    for path in root.rglob("*.py"):
        counts[path.relative_to(root).parts[0]] += code_lines(path.read_text(encoding="utf-8"))
    for name, n in sorted(counts.items()):
        print(f"{n:6d} {name}")
    print(f"{counts.total():6d} total")
