"""The rules of the house: who may import whom, how long a file may be, what must never appear."""

import ast
import functools
import gc
import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import guerdon
from guerdon.reading.roles import ALL_ROLES, ROLES
from tables import cases

SOURCE = Path(guerdon.__file__).parent
ORDER = (  # a module imports only from its own place in this list and from those before it
    "secrets", "errors", "types",
    "config", "files", "processes", "network", "compute", "statistics", "pages",
    "settings", "plan", "reading", "episodes", "tasks", "worlds", "policies", "endpoints", "collect", "labels",
    "models", "train", "evaluation", "serve", "engines", "rewards", "rl", "comparison", "auditing", "annotate",
    "integrations",
    "doctor", "cli", "__main__",
)  # fmt: skip
ROOMS = {  # the folders of a folder: the same rule inside
    "tasks": ("code",),
    "policies": ("pretrained", "batches", "language", "robots", "vla"),
    "models": ("text", "judges", "images", "vlm"),
    "evaluation": ("scoring", "benchmarks", "gate", "searching", "suites"),
    "serve": ("wires",),
}
FRONT_DOORS = {"cli", "doctor", "__main__"}  # top files that nothing imports
TOP_FILES = 8
FORBIDDEN = re.compile(
    r"\b(?:import|from) (?:pickle|cPickle|dill|cloudpickle|joblib|shelve|marshal)\b|\bpickle ?\.|"
    r"\btorch \. load\b|\ballow_pickle = True|\btrust_remote_code\b(?! = False\b)|\bshell = True|\bos \. system\b|"
    r"\byaml \. (?:unsafe_|full_)?load\b|(?<!\. )\b(?:eval|exec) \("
)  # over tokens joined by spaces, without comments and strings
SUSPECT = re.compile(FORBIDDEN.pattern.replace(r"(?<!\. )", r"(?<!\.)").replace(" ", r"\s*"))  # over the text as it is
WORDS_OF_GUIDES = re.compile(
    r"\b(?:QwenProcessRM|DummyRM|binary_reward|use_rel_reward|process_reward_model|prm_model_name_or_path|"
    r"prm_checkpoint_path|prm_reward_weight|use_vllm_prm|model_output)\b"
)
PLACES_OF_GUIDES = ("settings/aliases.py", "models/vlm/vlm_prm.py", "serve/score_answer.py")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
LIMIT = 900  # an alarm: a file ends where its subject ends

modules = sorted(SOURCE.rglob("*.py"))


@functools.cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def nodes(path):
    """All syntax nodes of a file; several rules look at them, and finding them takes longer than parsing."""
    return tuple(ast.walk(parsed(path)))


def problems(rule, paths=modules):
    """What a rule finds, by file; a test over all files rather than one for each, which would be thousands."""
    found = {str(path.relative_to(SOURCE)): rule(path) for path in paths}
    return {name: wrong for name, wrong in found.items() if wrong}


@pytest.fixture(scope="module", autouse=True)
def _trees_are_dropped():
    gc.disable()  # it would look for garbage among a million syntax nodes again and again
    yield
    nodes.cache_clear()
    parsed.cache_clear()
    gc.enable()


def place(path):
    """The names of a module below guerdon: `("models", "text", "verdict")`, or `("types",)` of a top file."""
    return path.relative_to(SOURCE).with_suffix("").parts


def imported_places(path):
    """The modules and folders of guerdon that a module imports, also inside functions, with the line."""
    package = ["guerdon", *path.relative_to(SOURCE).parts[:-1]]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "guerdon" and len(parts) > 1:
                yield tuple(parts[1:]), node.lineno


def violation(own, target):
    """Why the module `own` may not import `target`, both as `place` writes them; or None."""
    if own[0] != target[0]:
        if target[0] in FRONT_DOORS:
            return f"{target[0]} is a front door: nothing imports it" if own[0] != "__main__" else None
        known = own[0] in ORDER and target[0] in ORDER
        return f"{own[0]} stands below {target[0]}" if known and later(ORDER, target[0], own[0]) else None
    rooms = ROOMS.get(own[0], ())
    if len(own) > 1 and len(target) > 1 and own[1] in rooms and target[1] in rooms:
        return f"{own[1]} stands below {target[1]} in {own[0]}" if later(rooms, target[1], own[1]) else None
    return None


def later(order, one, other):
    """Whether `one` has a later place than `other`."""
    return order.index(one) > order.index(other)


def test_imports_go_one_way():
    def rule(path):
        found = [(line, violation(place(path), target)) for target, line in imported_places(path)]
        return [(line, why) for line, why in found if why and place(path)[0] != "cli"]

    assert not problems(rule)


def imported_modules(path):
    """The modules of guerdon that a module imports, also inside functions and for types only."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("guerdon"):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def module_name(path):
    return ".".join(["guerdon", *path.relative_to(SOURCE).with_suffix("").parts])


def test_no_module_imports_itself_through_others():
    known = {module_name(path) for path in modules}
    waiting = {module_name(path): known.intersection(imported_modules(path)) - {module_name(path)} for path in modules}
    while free := {name for name, needs in waiting.items() if not needs}:
        waiting = {name: needs - free for name, needs in waiting.items() if name not in free}
    assert not waiting, "these modules are part of an import circle, or import one"


def test_a_public_class_has_a_name_of_its_own():
    places = {}
    for path in modules:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module_name(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_test_files_have_names_of_their_own():
    """Folders of tests are not packages, so pytest imports them by their file names."""
    names = sorted(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def test_the_import_rule_catches_what_it_should():
    assert violation(("models", "x"), ("rl", "loop"))
    assert violation(("config", "loading"), ("settings", "study"))
    assert violation(("rl", "x"), ("cli",))
    assert violation(("models", "text", "x"), ("models", "vlm", "vlm"))
    assert not violation(("models", "vlm", "x"), ("models", "text", "text_model"))
    assert not violation(("models", "load"), ("models", "vlm", "vlm"))
    assert not violation(("rl", "x"), ("models", "load"))
    assert not violation(("rl", "x"), ("types",))
    assert not violation(("__main__",), ("cli",))


def test_every_folder_has_a_place():
    inside = [path for path in SOURCE.rglob("*") if path.is_dir() and any(path.glob("*.py"))]
    assert {path.name for path in inside if path.parent == SOURCE} <= set(ORDER)
    assert all(path.name in ROOMS.get(path.parent.name, ()) for path in inside if path.parent.parent == SOURCE)


def test_few_files_lie_at_the_top():
    assert len(list(SOURCE.glob("*.py"))) <= TOP_FILES


def test_files_stay_short_and_say_what_they_are():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert not [path for path, lines in lengths.items() if lines > LIMIT], f"more than {LIMIT} lines: two subjects?"
    assert not [path for path in modules if not ast.get_docstring(parsed(path))], "no module docstring"


def names_without_docstrings(path):
    silent = []

    def visit(body, prefix, inherited):
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            if not ast.get_docstring(node) and not inherited:
                silent.append(f"{prefix}{node.name} (line {node.lineno})")
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.", bool(node.bases))  # an override may lean on its base

    visit(parsed(path).body, "", False)
    return silent


def test_public_names_have_docstrings():
    assert not problems(names_without_docstrings)


def code_lines(text):
    """Line number to its tokens joined by spaces, without comments and strings."""
    lines = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER):
            lines.setdefault(token.start[0], []).append(token.string)
    return {number: " ".join(tokens) for number, tokens in lines.items()}


def test_nothing_forbidden():
    def rule(path):
        text = path.read_text(encoding="utf-8")
        lines = code_lines(text) if SUSPECT.search(text) else {}  # cutting all files into tokens takes seconds
        return [*(line for line in lines.items() if FORBIDDEN.search(line[1])), *UNFINISHED.findall(text)]

    assert not problems(rule)


@cases(
    "code",
    [
        "import pickle", "from pickle import loads", "torch.load(path)", "eval(text)", "x = eval (text)",
        "run(cmd, shell=True)", "np.load(p, allow_pickle=True)", "load(p, trust_remote_code=True)",
        "load(p, trust_remote_code=trust)", "trust_remote_code = 1", "load(p, trust_remote_code=None)",
        "yaml.load(text)", "os.system(cmd)",
    ],
)  # fmt: skip
def test_the_forbidden_list_catches_what_it_should(code):
    assert any(FORBIDDEN.search(line) for line in code_lines(code + "\n").values())
    assert SUSPECT.search(code)


def test_the_forbidden_list_lets_the_rest_pass():
    code = "model.eval()\ny = safetensors.torch.load_file(p)  # not torch.load(p)\nyaml.safe_load(t)\n"
    code += "load(p, trust_remote_code=False)\n"
    assert not any(FORBIDDEN.search(line) for line in code_lines(code).values())


LOADERS = {"from_pretrained", "from_config", "load_dataset", "load_dataset_builder", "LLM", "pipeline"}
WITHOUT_CODE = {
    "PeftModel",
    "PeftConfig",
    "EfficientNet",
}  # their from_pretrained has no trust_remote_code: they run no code of a folder
NO_WEIGHTS = re.compile("config|tokenizer|processor", re.I)


def trusting_calls(calls):
    """Lines of nodes that load a model or data without `trust_remote_code=False`, or weights that may be pickles."""
    for node in calls:
        if isinstance(node, ast.ImportFrom):  # a loader by another name would not be found
            yield from (node.lineno for alias in node.names if alias.name in LOADERS and alias.asname)
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        owner = getattr(owner, "attr", getattr(owner, "id", ""))
        if name not in LOADERS or owner in WITHOUT_CODE:
            continue
        given = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        weights = name == "from_pretrained" and not NO_WEIGHTS.search(owner) and "gguf_file" not in given
        if given.get("trust_remote_code") is not False or (weights and given.get("use_safetensors") is not True):
            yield node.lineno


def test_no_call_trusts_the_code_or_the_pickles_of_a_folder():
    assert not problems(lambda path: list(trusting_calls(nodes(path))))


@cases(
    "code",
    [
        "AutoModel.from_pretrained(p)", "AutoModel.from_pretrained(p, trust_remote_code=False)",
        "kind.from_pretrained(p, use_safetensors=True)", "t.AutoTokenizer.from_pretrained(p)",
        "AutoConfig.from_pretrained(p, trust_remote_code=x)", "datasets.load_dataset(p)", "load_dataset(p)",
        "AutoModel.from_config(c)", "vllm.LLM(model=p)", "from datasets import load_dataset as read",
        "AutoModel.from_pretrained(p, trust_remote_code=False, use_safetensors=False)",
    ],
)  # fmt: skip
def test_a_trusting_call_is_caught(code):
    assert list(trusting_calls(ast.walk(ast.parse(code))))


def test_a_careful_call_passes():
    code = "AutoModel.from_pretrained(p, trust_remote_code=False, use_safetensors=True)\n"
    code += "AutoTokenizer.from_pretrained(p, trust_remote_code=False)\npeft.PeftModel.from_pretrained(m, p)\n"
    code += "AutoModel.from_pretrained(p, gguf_file=f, trust_remote_code=False)\n"
    assert not list(trusting_calls(ast.walk(ast.parse(code))))


def broad_handlers(path):
    """Lines of handlers that catch everything and raise nothing."""
    broad = []
    for node in nodes(path):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"everything"}
        reraises = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
        if names & {"everything", "Exception", "BaseException"} and not reraises:
            broad.append(node.lineno)
    return broad


def test_only_the_boundary_catches_everything():
    others = [path for path in modules if path.name != "errors.py"]
    assert not problems(broad_handlers, others), "catch what can happen, or use errors.boundary"


def functions_of(path):
    """Names of a module that stand for functions of guerdon: its own, and those that it imports."""
    names = set()
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("guerdon."):
            functions = defined(SOURCE.joinpath(*node.module.split(".")[1:]).with_suffix(".py"))
            names |= {alias.asname or alias.name for alias in node.names if alias.name in functions}
    return names


@functools.cache
def defined(source):
    """Names of the functions of a module; none where there is no such file."""
    inside = parsed(source).body if source.is_file() else []
    return {node.name for node in inside if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def written_functions(tree, functions):
    """Lines on which a function itself, not its result, becomes part of a text."""
    found = []

    def visit(node, known):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            own = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
            own |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            known = known - own
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.value.id in known:
            found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, known)

    visit(tree, functions)
    return found


def shown_names(path):
    """Names that stand alone in a replacement field of a text."""
    fields = [node.value for node in nodes(path) if isinstance(node, ast.FormattedValue)]
    return {value.id for value in fields if isinstance(value, ast.Name)}


def test_no_text_holds_a_function():
    def rule(path):
        functions = functions_of(path) & shown_names(path)
        return written_functions(parsed(path), functions) if functions else []

    assert not problems(rule)


def test_a_function_in_a_text_is_caught():
    code = 'def said(x): ...\ndef f(y):\n    return f"{said}: {y}"\ndef g(said):\n    return f"{said} {said(1)}"\n'
    assert written_functions(ast.parse(code), {"said", "f", "g"}) == [3]


def loaded_modules(code):
    """What sys.modules holds after running some code in a fresh interpreter."""
    script = f"{code}\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


HEAVY = {"torch", "transformers", "mujoco", "metaworld", "gymnasium", "scipy", "pyarrow", "av", "PIL"}


def test_help_loads_nothing_heavy():
    if not (SOURCE / "cli.py").exists():
        pytest.skip("no command line yet")
    code = "import sys\nsys.argv = ['guerdon', '--help']\ntry:\n    from guerdon.cli import main; main()\n"
    code += "except SystemExit as done:\n    assert not done.code, done.code"
    assert not loaded_modules(code) & HEAVY


@pytest.mark.parametrize("name", ["config.loading", "types", "errors", "settings.study", "doctor"])
def test_light_modules_stay_light(name):
    assert not loaded_modules(f"import guerdon.{name}") & HEAVY


def test_packages_are_light():
    imports = "\n".join(f"import guerdon.{name}" for name in ORDER if (SOURCE / name).is_dir())
    assert not loaded_modules(imports) & HEAVY


def test_a_study_is_read_where_a_run_is_assembled_and_nowhere_below():
    readers = {
        str(path.relative_to(SOURCE))
        for folder in ("collect", "engines", "rewards", "rl")
        for path in (SOURCE / folder).glob("*.py")
        if re.search(r"import .*\bStudy\b|settings\.study", path.read_text(encoding="utf-8"))
    }
    assembly = {f"rl/{name}.py" for name in ("build_control", "build_text", "loop", "reward_warnings", "run")}
    assembly |= {"collect/collect.py", "collect/stage.py"}
    assert readers == assembly, "a part takes the values that it needs, or one section"


VERIFIERS = (  # files in which "verdict" is the word of a verifier, or the type of reward model
    "tasks/*.py", "tasks/code/*.py", "processes/subprocess_worker.py", "evaluation/searching/search_study.py",
    "labels/candidates.py", "models/text/verdict.py", "models/text/text_card.py", "models/text/text_model.py",
    "models/text/adapters/families.py", "plan/gpu.py", "settings/train.py", "train/text.py",
)  # fmt: skip
OTHER_VERDICTS = {  # what stands in prompts with stored replies, and in replies of models
    "labels/labelers.py": ["verdicts, in order, as JSON"],
    "reading/roles.py": ['"verdict"'],
    "models/vlm/answer_parser.py": ["|verdict", '"verdict"'],
    "models/judges/judge.py": ["Give the reason before the verdict"],
}
NO_EPISODES = (  # files in which "outcome" had another meaning than of an episode: result, conclusion, measure, effect
    "comparison/jobs.py", "comparison/report_charts.py", "comparison/report_tables.py",
    "comparison/results.py", "pages/formats.py", "pages/charts.py", "evaluation/gate/forecast.py",
    "evaluation/gate/gate_card.py", "evaluation/gate/gate_table.py", "statistics/intervals.py",
    "statistics/learning_curves.py", "evaluation/searching/search.py", "network/retry.py",
)  # fmt: skip
FILMS = re.compile(
    r"\bfilm_(?:every|frames)\b|\"films\"|\bfilms/|`film_`|\bFiLM\b"
)  # keys and folder of runs; a network


def unclear_words(name, text):
    """Words of a source file that have another meaning than in the glossary of docs/reference.md."""
    text = FILMS.sub("", text)
    for words in OTHER_VERDICTS.get(name, ()):
        text = text.replace(words, "")
    words = ["film"] if any(Path(name).match(pattern) for pattern in VERIFIERS) else ["film", "verdict"]
    words += ["outcome"] if name in NO_EPISODES else []
    return [word for word in words if word in text.casefold()]


def test_a_word_has_one_meaning():
    def rule(path):
        return unclear_words(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))

    texts = sorted(p for p in SOURCE.rglob("*") if p.suffix in (".py", ".j2", ".js", ".css", ".yaml"))
    assert not problems(rule, texts), "see the glossary in docs/reference.md"


def test_a_word_with_another_meaning_is_found():
    assert unclear_words("rl/loop.py", "self._film(step)  # and runner.film_every") == ["film"]
    assert unclear_words("evaluation/gate/forecast.py", "class GateVerdict:") == ["verdict"]
    assert unclear_words("models/judges/judge.py", "Give the reason before the verdict. VERDICT = 1") == ["verdict"]
    assert unclear_words("comparison/jobs.py", "class Outcome:") == ["outcome"]
    assert not unclear_words("tasks/verifier.py", "verdict = runner.film_frames; outcome = 1")


def words_of_guides(path):
    """Words of the guides that guerdon comes from, in a module that is none of the places for them."""
    allowed = str(path.relative_to(SOURCE)) in PLACES_OF_GUIDES
    return [] if allowed else sorted(set(WORDS_OF_GUIDES.findall(path.read_text(encoding="utf-8"))))


def test_words_of_the_guides_stand_in_three_modules():
    assert not problems(words_of_guides)
    for place in PLACES_OF_GUIDES:
        assert WORDS_OF_GUIDES.search((SOURCE / place).read_text(encoding="utf-8")), f"{place} has none"


def test_a_word_of_a_guide_elsewhere_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    path = tmp_path / "source.py"
    path.write_text('LOGGED = ("QwenProcessRM", "DummyRM")  # not QwenProcessRMs\n', encoding="utf-8")
    assert words_of_guides(path) == ["DummyRM", "QwenProcessRM"]


READERS = ("auditing", "episodes", "evaluation", "labels", "serve", "tasks", "train")  # folders that read rows
NAMES_ELSEWHERE = {  # lists of names of columns outside reading/: what is written, sent, or an option of a question
    "episodes/index.py": ["image"], "episodes/layout.py": ["image"], "serve/routes.py": ["image"],
    "serve/wires/wire.py": ["text"], "serve/worker.py": ["frames"], "episodes/solutions.py": ["labels"],
    "episodes/preferences.py": ["helpfulness"],
    "episodes/solution_formats.py": ["step_rewards"],
    "evaluation/scoring/score_file.py": ["reward"],
    "labels/candidates.py": ["ratings"],
    "tasks/choices.py": ["correct", "choices", "label", "id"],
    "tasks/code/code_forms.py": ["output", "input_output"],
}  # fmt: skip


def test_names_of_columns_stand_in_one_table():
    """Outside of reading/ no list of two names of a role that are not the words of roles."""
    words = {name for names in ROLES.values() for name in names} - ALL_ROLES.keys()

    def rule(path):
        allowed = NAMES_ELSEWHERE.get(str(path.relative_to(SOURCE)), ())
        lists = [node for node in nodes(path) if isinstance(node, ast.Tuple | ast.List | ast.Set)]
        texts = [[one.value for one in node.elts if isinstance(one, ast.Constant)] for node in lists]
        found = [found for found in texts if sum(text in words for text in found) >= 2]
        return [one for one in found if one[0] not in allowed]

    assert not problems(rule, [path for path in modules if place(path)[0] in READERS])


@functools.cache
def keys_of_a_study():
    """Every dotted key of a study, with the sections that hold them."""
    from guerdon.config.schema import leaves
    from guerdon.settings.study import Study

    return {key[:end] for key in leaves((Study,)) for end in [*(dot.start() for dot in re.finditer(r"\.", key)), None]}


def refusals(path):
    """Line, key and beginning of the message of each error about a configuration; empty where it is not literal."""
    for node in nodes(path):
        if isinstance(node, ast.Call) and node.args and called_name(node) in ("ConfigError", "StudyError", "about"):
            about = called_name(node) == "about"
            key = node.args[0] if about else next((one.value for one in node.keywords if one.arg == "key"), None)
            yield node.lineno, key, "" if about else beginning(node.args[0])


def called_name(call):
    return getattr(call.func, "id", getattr(call.func, "attr", None))


def beginning(text):
    """The literal beginning of a text of code."""
    while isinstance(text, ast.BinOp):
        text = text.left
    if isinstance(text, ast.JoinedStr):
        text = text.values[0]
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else ""


def test_errors_about_keys_carry_keys_that_exist():
    known = keys_of_a_study()
    sections = {key.partition(".")[0] for key in known}

    def wrong(path):
        for line, key, words in refusals(path):
            named = getattr(key, "value", None)
            if isinstance(named, str) and "." in named and named.partition(".")[0] in sections and named not in known:
                yield line, f"there is no key {named}"
            first = re.match(r"[a-z_.]*", words)[0].rstrip(".")
            if key is None and "." in first and first in known:
                yield line, f"it is about {first}: give the error this key"

    of_guerdon = [path for path in modules if path.parent.name != "integrations"]  # those have keys of other libraries
    assert problems(lambda path: list(wrong(path)), of_guerdon) == {}
