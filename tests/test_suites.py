"""`.ci/run` runs the suites that reach a changed file, and all of them where it is not known what changed."""

import subprocess

import pytest

import suites

ALL = [*suites.SUITES, suites.SITE]


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path):
    """A project whose suites reach one module each: by an import in a function, a text, a helper of the tests."""
    files = {
        "src/guerdon/__init__.py": "",
        "src/guerdon/worlds/__init__.py": "",
        "src/guerdon/worlds/build.py": 'KINDS = {"boxes": "guerdon.worlds.boxes:build"}\n',
        "src/guerdon/worlds/boxes.py": "def build():\n    from guerdon import lids\n",
        "src/guerdon/lids.py": "",
        "src/guerdon/shown.py": "from guerdon import colours\n\ndef show():\n    import guerdon.lids\n",
        "src/guerdon/colours.py": "",
        "src/guerdon/page/__init__.py": "",
        "src/guerdon/page/main.j2": "",
        "src/guerdon/alone.py": "",
        "docs/conf.py": "",
        "docs/api.md": "`guerdon.shown`",
        "studies/small.yaml": "",
        "tests/worlds/test_libero.py": "import guerdon.worlds.build\n",
        "tests/worlds/test_maniskill.py": "import guerdon.page\n",
        "tests/policies/test_vla.py": "from helper import x\n\nSTUDIES = 'studies'\n",
        "tests/policies/helper.py": "import guerdon.colours\n",
        "tests/engines/test_ray_jobs.py": "",
        "tests/test_other.py": "import guerdon.alone\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


CHANGES = {  # a changed file: the suites that it selects
    "src/guerdon/worlds/build.py": ["libero"],
    "src/guerdon/worlds/boxes.py": ["libero"],  # through a text
    "src/guerdon/lids.py": ["libero"],  # through an import inside a function; the site does not run functions
    "src/guerdon/colours.py": ["vla", "site"],
    "src/guerdon/alone.py": [],
    "src/guerdon/page/main.j2": ["maniskill"],
    "tests/worlds/test_libero.py": ["libero"],
    "tests/engines/test_ray_jobs.py": ["ray"],
    "tests/policies/helper.py": ["vla"],
    "tests/policies/answers.jsonl": ["vla"],
    "tests/test_other.py": [],
    "docs/api.md": ["site"],
    "README.md": ["site"],
    "studies/small.yaml": ["vla"],
    "pyproject.toml": ALL,
    "constraints.txt": ALL,
    "Makefile": ALL,
    ".ci/run": ALL,
    "tests/conftest.py": ALL,
    "tests/corridor.py": ALL,
    "src/guerdon/gone.py": ["libero", "maniskill", "vla", "ray"],
}


def test_a_change_selects_the_suites_that_reach_it(project):
    found = {name: list(suites.selected(project, [name])) for name in CHANGES}
    assert found == CHANGES


def test_a_break_on_a_branch_selects_its_suite_and_says_why(project):
    git(project, "checkout", "-qb", "branch")
    git(project, "commit", "-qm", "nothing", "--allow-empty")
    (project / "src/guerdon/worlds/boxes.py").write_text("raise RuntimeError\n")
    wanted = {"libero": "src/guerdon/worlds/boxes.py"}
    assert suites.selected(project, suites.changed_files(project)) == wanted  # before it is committed
    git(project, "commit", "-qam", "broken")
    assert suites.selected(project, suites.changed_files(project)) == wanted
    (project / "tests/policies/new.json").write_text("{}")
    assert list(suites.selected(project, suites.changed_files(project))) == ["libero", "vla"]


def test_a_moved_module_counts_under_both_names(project):
    git(project, "checkout", "-qb", "branch")
    git(project, "mv", "src/guerdon/alone.py", "src/guerdon/together.py")
    git(project, "commit", "-qm", "moved")
    assert suites.changed_files(project) == ["src/guerdon/alone.py", "src/guerdon/together.py"]


def test_without_a_base_every_suite_runs(project, tmp_path_factory):
    assert suites.changed_files(project) is None  # main itself
    assert list(suites.selected(project, None)) == ALL
    clone = tmp_path_factory.mktemp("clone") / "clone"
    git(project, "clone", "-q", str(project), str(clone))
    assert suites.changed_files(clone) is None  # a fresh clone of main
    git(project, "branch", "-m", "main", "other")
    assert suites.changed_files(project) is None  # no main
    assert suites.changed_files(tmp_path_factory.mktemp("folder")) is None  # no repository


@pytest.mark.slow
def test_every_suite_of_this_project_has_tests_and_reaches_what_it_is_about():
    about = {
        "libero": "src/guerdon/worlds/libero.py", "maniskill": "src/guerdon/worlds/maniskill.py",
        "vla": "src/guerdon/policies/vla/build.py", "ray": "src/guerdon/engines/ray_jobs.py",
        "site": "src/guerdon/integrations/trl.py",
    }  # fmt: skip
    for suite, name in about.items():
        assert suites.ROOT / name in suites.suite_reaches(suites.ROOT, suite), suite
    assert list(about) == ALL
    assert suites.selected(suites.ROOT, ["tests/tasks/test_units.py"]) == {}
