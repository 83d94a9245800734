"""Measures the size and the shape of guerdon: `python tests/code_lines.py src/guerdon`.

It reads texts and imports nothing of guerdon, so it measures any state of the project: README, docs, examples and
`tests/test_house.py` are those next to `src`. It prints

- the names of `guerdon.__all__`, and the modules from which README, docs (without docs/extend.md and docs/api) and
  examples import, apart from `guerdon` and `guerdon.integrations.*`;
- modules at the top, folders, rooms (folders of a folder), and how many folders import how many others;
- guerdon modules that exactly one file of the package imports, and those that only pass on names; `__init__.py` is
  neither. An import inside a function or for types counts; a text `module:object` is data and does not;
- for each folder its code lines, tokens per code line, and conditional expressions per 1,000 code lines. Comments,
  layout and docstrings are neither tokens nor lines; a string over several lines counts with each. An f-string is one
  token for Python 3.11 and several for later ones: compare numbers of one version;
- uses of `# fmt: skip`, private functions whose name stands once in their file apart from the definition, and files of
  550 lines and more;
- the densest functions; for those of `KEPT` the reason. The score of a function is its complexity, plus 2 for each
  conditional expression, plus 5 for each that holds another, plus 5 for each comprehension that holds another. The
  complexity is 1, plus 1 for each `if`, loop, `except`, `assert`, conditional expression and case, for each further
  operand of `and` and `or`, and for each `for` and `if` of a comprehension. A function inside a function counts for
  itself;
- with `--frames`, the frames from the command to the loss, which `tests/call_depth.py` finds in two short runs.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
TOP = "(top)"  # the folder of the modules that lie at the top
LONG = 550
MOST = 15  # a function of a higher complexity is rewritten, or has its reason in `KEPT`
IMPORT = re.compile(r"\b(?:from|import) (guerdon(?:\.\w+)*)")
FRONT = re.compile(r"guerdon|guerdon\.integrations(\.\w+)*")
PAGES_FOR_WHO_EXTENDS = ("docs/extend.md", "docs/api/")

KEPT = {
    "rl/update.py update_policy": "the loop over mini-batches; a function more would stand before the loss",
    "files/parquet_bounds.py python_bytes": "a branch for each kind of type that Arrow has",
    "evaluation/scoring/responses.py scored_responses": "the forms of a file, in the order in which they are tried",
    "rewards/text_sources.py _check": "a list of refusals, each with its own message",
    "serve/middleware.py _pass": "what a request is refused for, in the order in which it is checked",
}
"""Functions of a complexity above `MOST` that are clearer as they are: path and name, and why."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Branch = ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.IfExp | ast.Assert


@cache
def read(path: Path) -> str:
    """The text of a file."""
    return path.read_text(encoding="utf-8")


@cache
def parsed(text: str) -> ast.Module:
    """The syntax tree of a text."""
    return ast.parse(text)


# Tokens and lines


def docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines that hold a docstring of a module, class or function."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Module | ast.ClassDef | Function)
        if documented and ast.get_docstring(node, clean=False) is not None:
            lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


@cache
def code_tokens(text: str) -> list[tokenize.TokenInfo]:
    """The tokens of a text without comments, layout and docstrings."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    documentation = docstring_lines(parsed(text))
    return [token for token in tokens if token.type not in LAYOUT and token.start[0] not in documentation]


def code_lines(text: str) -> int:
    """Number of lines that hold code; a string over several lines counts with each, a docstring with none."""
    lines: set[int] = set()
    for token in code_tokens(text):
        lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


@dataclass
class Size:
    """Code lines, their tokens and their conditional expressions; sizes are added up."""

    lines: int = 0
    tokens: int = 0
    conditionals: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.lines + other.lines, self.tokens + other.tokens, self.conditionals + other.conditionals)

    def __str__(self) -> str:
        tokens_per_line = self.tokens / max(self.lines, 1)
        conditionals_per_1000 = 1000 * self.conditionals / max(self.lines, 1)
        return f"{self.lines:6d} {tokens_per_line:6.2f} {conditionals_per_1000:6.1f}"


def size(text: str) -> Size:
    """The size of one file."""
    conditionals = sum(isinstance(node, ast.IfExp) for node in ast.walk(parsed(text)))
    return Size(code_lines(text), len(code_tokens(text)), conditionals)


def folder_of(path: Path, root: Path) -> str:
    """The folder of a module directly below the package, or `TOP`."""
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else TOP


def sizes_of_folders(root: Path) -> dict[str, Size]:
    """The size of each folder of the package, by name."""
    sizes: dict[str, Size] = defaultdict(Size)
    for path in root.rglob("*.py"):
        sizes[folder_of(path, root)] += size(read(path))
    return dict(sorted(sizes.items()))


def used_once(text: str) -> list[str]:
    """Names of the private functions and methods whose name stands once in a file, apart from the definition."""
    names = Counter(token.string for token in code_tokens(text) if token.type == tokenize.NAME)
    functions = [node.name for node in ast.walk(parsed(text)) if isinstance(node, Function)]
    private = [name for name in functions if name.startswith("_") and not name.endswith("__")]
    return [name for name in private if names[name] == 2]


# Imports


def module_name(path: Path, root: Path) -> str:
    """The dotted name of a module; that of its folder for `__init__.py`."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(path: Path, root: Path) -> Iterator[str]:
    """Dotted names that a module imports, also inside functions: `a.b` of `import a.b`, `a.b` of `from a import b`."""
    package = path.relative_to(root.parent).parts[:-1]
    for node in ast.walk(parsed(read(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


@cache
def imported_modules(root: Path) -> dict[str, set[str]]:
    """For each module of the package the other modules of it that it imports."""
    known = {module_name(path, root) for path in root.rglob("*.py")}
    found = {}
    for path in root.rglob("*.py"):
        names = set(imported_names(path, root))
        owners = {name.rpartition(".")[0] for name in names - known}
        found[module_name(path, root)] = known & (names | owners) - {module_name(path, root)}
    return found


def imported_by_one(root: Path) -> dict[str, str]:
    """Modules that exactly one module of the package imports, each with that one."""
    importers: dict[str, list[str]] = defaultdict(list)
    for importer, imported in imported_modules(root).items():
        for module in imported:
            importers[module].append(importer)
    folders = {module_name(path, root) for path in root.rglob("__init__.py")}
    lonely = {module: names[0] for module, names in importers.items() if len(names) == 1}
    return {module: importer for module, importer in sorted(lonely.items()) if module not in folders}


def only_passes_on(tree: ast.Module) -> bool:
    """Whether a module defines nothing: a docstring, imports, and names given to what it imports."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    from_guerdon = [node for node in imports if isinstance(node, ast.ImportFrom) and "guerdon" in (node.module or "")]
    defining = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    renaming = (ast.Name, ast.Attribute, ast.List, ast.Tuple, ast.Constant)
    rest = [
        node
        for node in defining
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.Assign) and isinstance(node.value, renaming))
    ]
    return bool(from_guerdon) and not rest


def arrows(root: Path) -> set[tuple[str, str]]:
    """Pairs of folders, or modules at the top, of which the first imports something of the second."""
    found = set()
    for importer, imported in imported_modules(root).items():
        for module in imported:
            one, other = (name.split(".")[1:2] for name in (importer, module))
            if one and other and one != other:
                found.add((one[0], other[0]))
    return found


def written_list(path: Path, *names: str) -> list[str]:
    """The first of the lists of texts that a module gives to one of these names; none where there is no such list."""
    for node in parsed(read(path)).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names:
            return list(ast.literal_eval(node.value))
    return []


def upward(pairs: Iterable[tuple[str, str]], order: list[str]) -> list[tuple[str, str]]:
    """The arrows that go from a lower folder to a higher one, the lowest first in `order`."""
    return [(a, b) for a, b in pairs if a in order and b in order and order.index(a) < order.index(b)]


def import_beginnings(project: Path) -> set[str]:
    """The modules of guerdon, apart from the door and the integrations, that README, docs and examples import from."""
    pages = [project / "README.md", *(project / "docs").rglob("*.md"), *(project / "examples").rglob("*.*")]
    found: set[str] = set()
    for page in pages:
        name = page.relative_to(project).as_posix()
        if page.suffix in (".md", ".py", ".ipynb") and not name.startswith(PAGES_FOR_WHO_EXTENDS):
            found.update(IMPORT.findall(read(page)))
    return {name for name in found if not FRONT.fullmatch(name)}


# Dense functions


@dataclass
class Density:
    """How much a reader of one function keeps in mind at once."""

    complexity: int
    conditionals: int
    nested_conditionals: int
    nested_comprehensions: int

    @property
    def score(self) -> int:
        """The number by which functions are sorted."""
        return self.complexity + 2 * self.conditionals + 5 * (self.nested_conditionals + self.nested_comprehensions)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The syntax nodes of a function without those of functions and classes inside it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def branches(node: ast.AST) -> int:
    """How many ways through the code a node adds."""
    if isinstance(node, Branch):
        return 1
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, Comprehension):
        return sum(1 + len(generator.ifs) for generator in node.generators)
    if isinstance(node, ast.Match):
        return len(node.cases)
    return 0


def holding(nodes: Iterable[ast.AST], kind: type) -> int:
    """How many of the nodes of a kind hold another one of it."""
    return sum(sum(isinstance(inner, kind) for inner in ast.walk(node)) > 1 for node in nodes if isinstance(node, kind))


def density(function: ast.AST) -> Density:
    """The density of one function."""
    nodes = list(own_nodes(function))
    return Density(
        complexity=1 + sum(branches(node) for node in nodes),
        conditionals=sum(isinstance(node, ast.IfExp) for node in nodes),
        nested_conditionals=holding(nodes, ast.IfExp),
        nested_comprehensions=holding(nodes, Comprehension),
    )


def densities(root: Path, path: Path) -> list[tuple[Density, str]]:
    """The densities of the functions of a file with their places."""
    return [
        (density(node), f"{path.relative_to(root)}:{node.lineno} {node.name}")
        for node in ast.walk(parsed(read(path)))
        if isinstance(node, Function)
    ]


def densest(root: Path, count: int) -> list[tuple[Density, str]]:
    """The densest functions of the package with their places, the densest first."""
    found = [row for path in sorted(root.rglob("*.py")) for row in densities(root, path)]
    return sorted(found, key=lambda row: row[0].score, reverse=True)[:count]


def without_line(place: str) -> str:
    """The place of a function without its line: path and name."""
    return re.sub(r":\d+", "", place)


def why_kept(place: str) -> str:
    """The reason for which a function stays as it is; empty where there is none."""
    reason = KEPT.get(without_line(place))
    return f" (kept: {reason})" if reason else ""


# What is printed


def doors(root: Path, project: Path) -> list[str]:
    """The front door, and the ways around it."""
    beginnings = sorted(import_beginnings(project))
    return [
        f"names at the door: {len(written_list(root / '__init__.py', '__all__'))}",
        f"other import beginnings in README, docs and examples: {len(beginnings)}",
        *(f"  {name}" for name in beginnings),
    ]


def layout(root: Path, project: Path) -> list[str]:
    """Modules, folders, rooms and arrows."""
    folders = {path.parent for path in root.rglob("*.py")} - {root}
    top = [folder for folder in folders if folder.parent == root]
    pairs = arrows(root)
    order = written_list(project / "tests" / "test_house.py", "ORDER", "FOLDERS")  # FOLDERS before there was ORDER
    wrong = upward(pairs, order)
    return [
        f"modules at the top: {len(list(root.glob('*.py')))}, folders: {len(top)}, rooms: {len(folders) - len(top)}",
        f"arrows between folders and modules at the top: {len(pairs)}, upward: {len(wrong)}",
        *(f"  {one} -> {other}" for one, other in wrong),
    ]


def lonely_modules(root: Path) -> list[str]:
    """Modules with one importer, and those that only pass on names."""
    lonely = imported_by_one(root)
    modules = sorted(path for path in root.rglob("*.py") if path.name != "__init__.py")
    passing = [module_name(path, root) for path in modules if only_passes_on(parsed(read(path)))]
    return [
        f"modules that one file imports: {len(lonely)}",
        *(f"  {module} <- {importer}" for module, importer in lonely.items()),
        f"modules that only pass on names: {len(passing)}",
        *(f"  {name}" for name in passing),
    ]


def sizes(root: Path) -> list[str]:
    """Lines, tokens per line and conditional expressions by folder, and the counts of the whole package."""
    texts = [read(path) for path in root.rglob("*.py")]
    by_folder = sizes_of_folders(root)
    return [
        " lines tokens conditional expressions per 1,000 lines",
        *(f"{one} {name}" for name, one in by_folder.items()),
        f"{sum(by_folder.values(), Size())} total",
        f"# fmt: skip: {sum(text.count('# fmt: skip') for text in texts)}",
        f"private functions used once: {sum(len(used_once(text)) for text in texts)}",
        f"files of {LONG} lines and more: {sum(len(text.splitlines()) >= LONG for text in texts)}",
    ]


def dense_functions(root: Path, count: int) -> list[str]:
    """The densest functions as a table."""
    rows = [
        f"{one.score:6d} {one.complexity:10d} {one.conditionals:12d} {one.nested_conditionals:6d} "
        f"{one.nested_comprehensions:21d} {place}{why_kept(place)}"
        for one, place in densest(root, count)
    ]
    return [f"the {count} densest functions", " score complexity conditionals nested nested_comprehensions", *rows]


def main() -> None:
    """Print everything about one package."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", type=Path, help="the package, src/guerdon")
    parser.add_argument("--densest", type=int, default=30, help="how many of the densest functions are listed")
    parser.add_argument("--frames", action="store_true", help="count the frames from the command to the loss, too")
    asked = parser.parse_args()
    root = asked.root.resolve()
    project = root.parent.parent
    parts = (
        doors(root, project),
        layout(root, project),
        lonely_modules(root),
        sizes(root),
        dense_functions(root, asked.densest),
    )
    print("\n\n".join("\n".join(lines) for lines in parts))
    if asked.frames:
        print("\nframes from the command to the loss", flush=True)
        subprocess.run([sys.executable, Path(__file__).with_name("call_depth.py")], check=True)


if __name__ == "__main__":
    main()
