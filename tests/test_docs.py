"""What the documents say is what the code does: keys, command lines, links, study files."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from guerdon.cli import app
from guerdon.config.loading import load, read_yaml
from guerdon.errors import MissingDependencyError
from guerdon.settings.serve import ServeSettings
from guerdon.settings.study import Study
from tables import cases

ROOT = Path(__file__).parent.parent
INTEGRATIONS = sorted((ROOT / "docs" / "integrations").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
STUDIES = sorted([*(ROOT / "studies").glob("*.yaml"), *(ROOT / "configs").glob("*.yaml")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.fixture(scope="module")
def knobs():
    spec = importlib.util.spec_from_file_location("make_knobs", ROOT / "docs" / "make_knobs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_keys_is_up_to_date(knobs):
    written = (ROOT / "docs" / "knobs.md").read_text(encoding="utf-8")
    assert written == knobs.page(), "run: python docs/make_knobs.py"


def test_every_key_says_what_it_means(knobs):
    assert [key for key, _, _, meaning, _ in knobs.settings_rows() if not meaning] == []


def test_the_guides_name_keys_that_exist(knobs):
    keys = {key for key, *_ in knobs.settings_rows()}
    assert {key for key in knobs.NAMED if not any(k == key or k.startswith(f"{key}.") for k in keys)} == set()


@cases("page", PAGES, ids=names(PAGES))
def test_links_inside_the_project_resolve(page):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    targets = [link.split("#")[0] for link in LINK.findall(text) if not re.match(r"https?:|#", link)]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_table_of_verbs_is_complete():
    page = (ROOT / "docs/commands/index.md").read_text(encoding="utf-8")
    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"^\| \[`guerdon (\w+)", page, re.M)) == verbs


ONE_SEED = ("compare.seeds=[0]",)  # every arm at every task is read; further seeds differ in their number alone


@pytest.mark.parametrize("path", STUDIES, ids=names(STUDIES))
def test_studies_are_valid(path):
    study = load(Study, path)
    if study.compare is not None:
        from guerdon.comparison.study import plan_study

        try:
            assert plan_study(path, ONE_SEED).jobs
        except MissingDependencyError as error:
            pytest.skip(str(error))


def yaml_blocks():
    own = {ROOT / "docs" / "extend.md", *INTEGRATIONS}  # a package of its own (tests/extend); configurations of others
    for page in (page for page in PAGES if page not in own):
        for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "yaml":
                yield pytest.param(text, id=f"{page.name}: {text.splitlines()[0]}")


@pytest.mark.parametrize("text", yaml_blocks())
def test_examples_are_valid(text, tmp_path):
    """A block is a whole study, or one of its sections; a lone `model` belongs under `reward`. Or it is a server."""
    content = yaml.safe_load(text)
    if text.startswith("# serve.yaml"):
        assert ServeSettings.model_validate(content).models
        return
    if set(content) == {"model"}:
        content = {"reward": {"use_reward_model": True, "reward_mode": "per_step", "shaping": "raw", **content}}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert read_yaml(path)
    study = load(Study, path)
    if study.compare is not None:
        from guerdon.comparison.study import plan_study

        try:
            assert plan_study(path, ONE_SEED).jobs
        except MissingDependencyError as error:
            pytest.skip(str(error))


def python_blocks():
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "python" and "import" in text:
                yield pytest.param(text, id=f"{page.name}: {text.splitlines()[-1][:40]}")


@cases("text", python_blocks())
def test_python_examples_import_what_exists(text):
    """Where a package is not installed, the names of guerdon's module that needs it are read from its file."""
    tree = ast.parse(text)
    compile(tree, "example", "exec")
    for node in (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)):
        try:
            exec(compile(ast.Module([node], []), "example", "exec"), {})
        except ImportError as error:
            if not is_absent(error):
                raise
            if isinstance(node, ast.ImportFrom) and node.module.startswith("guerdon"):
                assert {one.name for one in node.names} <= names_defined_in(node.module)


def is_absent(error):
    """Whether an import failed since a package that is not guerdon's is not installed, or an older version of it."""
    missing = str(getattr(error.__cause__, "name", None) or error.name)
    package = missing.partition(".")[0]
    return package == "lerobot" or (package != "guerdon" and importlib.util.find_spec(package) is None)


def names_defined_in(module):
    """The names that a module of guerdon defines or imports, without importing it."""
    path = ROOT / "src" / Path(*module.split(".")).with_suffix(".py")
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(one.asname or one.name).partition(".")[0] for one in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def test_names_of_modules_are_read_from_their_files():
    assert {"TokenAdvantageTrainer", "TokenRLOOTrainer", "reward_function"} <= names_defined_in(
        "guerdon.integrations.trl"
    )
    assert is_absent(ModuleNotFoundError(name="no_such_package.inner"))
    assert not is_absent(ModuleNotFoundError(name="guerdon.no_such_module"))
    assert not is_absent(ModuleNotFoundError(name="yaml.no_such_module"))


NOT_ON_FIRST_PAGES = re.compile(
    r"\b(?:arms?|native|sources?|shaping|gates?|probes?|heads|worlds?|steps to match|seldom|by turns|in sum)\b", re.I
)  # words that a reader has not met yet, and odd turns


@cases("page", [ROOT / "README.md", ROOT / "docs" / "quickstart.md", ROOT / "docs" / "index.md"])
def test_the_first_pages_have_no_words_that_need_explaining(page):
    """Apart from code, paths and addresses, where keys keep their names."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|^ {4}.*$|Meta-World", "", text, flags=re.M)
    assert [found[0] for found in NOT_ON_FIRST_PAGES.finditer(text)] == []


OTHER_SENSE = {  # page: words that its first use means otherwise
    "benchmarks.md": {"arm", "head"},  # of a robot; of attention
    "evaluation.md": {"source"},  # of the rows of a published data set
    "gate.md": {"arm"},
    "language_models.md": {"head"},
    "libero.md": {"arm"},
    "maniskill.md": {"arm", "source"},
    "people.md": {"arm"},
    "releasing.md": {"source"},  # an archive of files
    "rewards.md": {"arm"},
    "security.md": {"head"},  # of a request
    "vla.md": {"arm"},
}
GENERATED = {"knobs.md", "changelog.md", "reference.md"}  # lists of keys, of changes, and the glossary itself
TRADE = re.compile(r"(?<![\w-])(?:arm|native 0/1|source|shaping|gate|probe|head|world|steps to match)s?(?![\w-])", re.I)
EXPLAINED = re.compile(
    r"\[[^\]]*\](?=\()|(?<![\w*])\*{1,2}[^*\n]+\*{1,2}|^#.*$", re.M
)  # a link, a term in italics, a heading


def blank(found):
    """As many spaces as there were characters."""
    return re.sub(r"[^\n]", " ", found[0])


def unexplained(text):
    """The words of the trade whose first use on a page is neither a link, nor set in italics, nor a heading."""
    for unseen in (r"^```.*?^```", r"<!--.*?-->", r"^(?: {4}|\t).*$", r"`[^`\n]*`", r"(?<=\]\()[^)]*"):
        text = re.sub(unseen, blank, text, flags=re.M if unseen.startswith("^(") else re.S | re.M)
    first = {}
    for found in TRADE.finditer(text):
        first.setdefault(found[0].lower().rstrip("s"), found.start())
    explained = [found.span() for found in EXPLAINED.finditer(text)]
    return {word for word, at in first.items() if not any(start <= at < end for start, end in explained)}


def test_words_of_the_trade_are_explained_where_a_page_uses_them_first():
    assert unexplained("a `head`, a *head* (the last layer), [sources](x.md), a head\n    arm\n# Probes\nworlds") == {
        "world"
    }
    found = {}
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = str(page.relative_to(ROOT / "docs"))
        if name not in GENERATED:
            found[name] = unexplained(page.read_text(encoding="utf-8"))
    assert {name: words for name, words in found.items() if words} == OTHER_SENSE


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
