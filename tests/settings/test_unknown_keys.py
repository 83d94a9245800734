"""A misspelled key is what a user hears of first, with the key that was meant."""

import itertools
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guerdon.config.loading import Tree, apply_overrides, read_yaml, resolve_refs, validate
from guerdon.config.schema import child, field_of, keys_of, leaves, members, models_in
from guerdon.errors import ConfigError
from guerdon.settings.remote import RemoteSettings
from guerdon.settings.study import Study
from tables import refuses, sample

ROOT = Path(__file__).parents[2]
SHIPPED = [*sorted((ROOT / "studies").glob("*.yaml")), *sorted((ROOT / "configs").glob("*.yaml"))]
SHIPPED += sorted((ROOT / "src/guerdon/comparison").glob("*.yaml"))
LETTERS = string.ascii_lowercase + "_"


def typos(key: str, rng: random.Random) -> list[str]:
    """One of each kind: a character lost, added, replaced, and two neighbours swapped."""
    i = rng.randrange(len(key))
    found = [key[:i] + key[i + 1 :], key[:i] + rng.choice(LETTERS) + key[i:]]
    found.append(key[:i] + rng.choice(LETTERS.replace(key[i], "")) + key[i + 1 :])
    if len(key) > 1:
        j = rng.randrange(len(key) - 1)
        found.append(key[:j] + key[j + 1] + key[j] + key[j + 2 :])
    return [typo for typo in found if typo and typo != key]


def message(data: dict[str, Any]) -> str:
    tree = Tree(data, dict.fromkeys(paths(data), "study.yaml"))
    with pytest.raises(ConfigError) as caught:
        validate(Study, resolve_refs(tree, Study), origin="study.yaml")
    return str(caught.value)


def paths(value: Any, path: str = "") -> Iterator[str]:
    """Every dotted path of a tree, as reading a file notes them."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield f"{path}{key}"
        yield from paths(inner, f"{path}{key}.")


def misspelled(tree: Any, path: tuple[Any, ...], typo: str) -> Any:
    """The same values with the last key of a path written as `typo`, in its place."""
    head, *rest = path
    if isinstance(tree, list):
        return [misspelled(value, tuple(rest), typo) if i == head else value for i, value in enumerate(tree)]
    if not rest:
        return {typo if key == head else key: value for key, value in tree.items()}
    return {k: misspelled(v, tuple(rest), typo) if k == head else v for k, v in tree.items()}


def keys_in(tree: Any, spot: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], list[str]]]:
    """Every key of a tree that the schema knows, with its path and the other keys of all forms of its section."""
    forms = models_in(spot)
    known = [key for form in forms for key in keys_of(form)]
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        if key in known:
            yield (*path, key), known
        yield from keys_in(value, child(spot, key, tree), (*path, key))


def sections(spot: Any, path: tuple[Any, ...] = (), above: tuple[type, ...] = ()) -> Iterator[Any]:
    """Every section that there can be: its path, its model, and all keys of all of its forms."""
    known = [key for form in models_in(spot) for key in keys_of(form)]
    for form in models_in(spot):
        if form in above:
            continue
        yield path, form, known
        for key in keys_of(form):
            yield from sections(members(field_of(form, key).annotation), (*path, key), (*above, form))
    for annotation in spot:
        if getattr(annotation, "__origin__", None) is dict:
            yield from sections(members(annotation.__args__[-1]), (*path, "name"), above)
        elif getattr(annotation, "__origin__", None) is tuple:
            yield from sections(members(annotation.__args__[0]), (*path, 0), above)


def around(path: tuple[Any, ...], inside: dict[str, Any]) -> Any:
    """Nested sections with nothing in them but the way to the innermost."""
    value: Any = inside
    for key in reversed(path):
        value = [value] if key == 0 else {key: value}
    return value


class Count:
    """How often the right key was the first suggestion."""

    def __init__(self) -> None:
        self.right = self.all = 0
        self.wrong: list[str] = []

    def add(self, told: str, path: tuple[Any, ...], typo: str) -> None:
        *section, key = map(str, path)
        written, meant = ".".join([*section, typo]), ".".join([*section, key])
        assert f"{written} = " in told.splitlines()[0], told
        assert len(told.splitlines()) == 1, told
        self.all += 1
        if f"did you mean {meant}?" in told or f"did you mean {meant} or " in told:
            self.right += 1
        else:
            self.wrong.append(told)


@pytest.mark.slow
def test_typos_in_the_shipped_studies():
    rng, count, tried = random.Random(1), Count(), set()
    for path in SHIPPED:
        tree = read_yaml(path)
        resolved = resolve_refs(tree, Study)
        validate(Study, resolved, origin=str(path))
        for key_path, known in keys_in(tree.data, (Study,)):
            if key_path in tried:  # in another study
                continue
            tried.add(key_path)
            typo = rng.choice(typos(key_path[-1], rng))
            if typo not in known:
                count.add(message(misspelled(tree.data, key_path, typo)), key_path, typo)
    assert count.all > 300
    assert count.right >= 0.95 * count.all, "\n".join(count.wrong)


@pytest.mark.parametrize("every", sample([1, 4], 4))
def test_typos_of_every_key_of_every_section(every):
    """Of every key, or of every fourth: reading a study takes 8 ms."""
    rng, count, tried, number = random.Random(2), Count(), set(), itertools.count()
    for path, form, known in sections((Study,)):
        marks = {
            name: field.default for name, field in form.model_fields.items() if name in ("type", "family", "model_type")
        }
        marks = {name: default for name, default in marks.items() if isinstance(default, str)}
        for key in keys_of(form):
            tried.add((form, key))
            typo = rng.choice(typos(key, rng))
            inside = {**{name: mark for name, mark in marks.items() if name != key}, typo: marks.get(key, 1)}
            if typo not in known and next(number) % every == 0:
                count.add(message(around(path, inside)), (*path, key), typo)
    assert {path.rpartition(".")[2] for path in leaves((Study,))} <= {key for _, key in tried}
    assert count.all > 500 / every
    assert count.right >= 0.95 * count.all, "\n".join(count.wrong)


ONE_MODEL = {"use_reward_model": True, "model": {"model_type": "constant"}}


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (
            {"reward": {**ONE_MODEL, "reward_mod": "terminal"}},
            "reward.reward_mod = 'terminal': unknown key; did you mean reward.reward_mode?",
        ),
        (
            {"reward": {**ONE_MODEL, "reward_treshold": 0.5}},
            "reward.reward_treshold = 0.5: unknown key; did you mean reward.reward_threshold?",
        ),
        (
            {"reward": {"use_reward_modle": True, "model": {"model_type": "constant"}, "reward_mode": "terminal"}},
            "reward.use_reward_modle = True: unknown key; did you mean reward.use_reward_model?",
        ),
        (
            {"policy": {"tpye": "text", "tiny": {}}, "data": {}, "algorithm": {"kl_coef": 0.1}},
            "policy.tpye = 'text': unknown key; did you mean policy.type?",
        ),
        (
            {"reward": {**ONE_MODEL, "model": {"model_type": "remote", "endpont": "http://x:1"}}},
            "reward.model.endpont = 'http://x:1': unknown key; did you mean reward.model.endpoint?",
        ),
        (
            {"collect": {"save_dri": "d"}, "train": {"a": {"data_path": "${collect.save_dir}"}}},
            "collect.save_dri = 'd': unknown key; did you mean collect.save_dir?",
        ),
        (
            {"env": {"seed": 3, "task": 5}, "runner": {"seed": -1.5}},
            "env.seed = 3: unknown key; did you mean",
        ),
    ],
)
def test_the_unknown_key_alone_is_reported(data, line):
    assert line in message(data)
    assert len(message(data).splitlines()) == 1


def test_several_unknown_keys_have_a_line_each():
    first, *lines = message({"runer": {}, "reward": {"use_reward_modle": True, "reward_mode": "perstep"}}).splitlines()
    assert first == "study.yaml: 2 problems"
    assert [line.partition(": ")[2].partition(" = ")[0] for line in lines] == ["runer", "reward.use_reward_modle"]


def test_a_key_of_another_form_follows_misspelled_ones():
    inside = {"type": "mlp", "lora": {}, "hiden_sizes": [8]}
    assert "policy.hiden_sizes" in message({"policy": inside})
    assert "policy.lora" not in message({"policy": inside})
    assert "policy.lora = a map: unknown key; it belongs to type: text" in message(
        {"policy": {"type": "mlp", "lora": {}}}
    )


@pytest.mark.parametrize(
    ("section", "inside", "line"),
    [
        ("data", {"path": "x"}, "data.path = 'x': unknown key; it belongs to type: gsm8k or type: datasets"),
        ("data", {"type": "files", "train_files": "x", "train_size": 3}, "train_size = 3: unknown key; it belongs to"),
        ("generation", {"engine": "vllm", "batch_size": 3}, "batch_size = 3: unknown key; it belongs to engine: local"),
        ("generation", {"engine": "vllm", "batchsize": 3}, "did you mean"),
        (
            "label",
            {"judge": {"api": "json:loads", "timeout": 3}},
            "label.judge.timeout = 3: unknown key; it belongs to api: anthropic or api: openai",
        ),
        (
            "label",
            {"judge": {"params": {}}},
            "label.judge.params = a map: unknown key; it belongs to api: package.module:factory",
        ),
    ],
)
def test_a_key_of_another_form_says_where_it_belongs(section, inside, line):
    given = {"policy": {"type": "text", "tiny": {}}, "data": {}, section: inside}
    assert line in message(given)
    assert len(message(given).splitlines()) == 1


@pytest.mark.hostile("secrets")
def test_the_value_of_a_misspelled_secret_is_not_shown():
    told = message({"reward": {**ONE_MODEL, "model": {"model_type": "remote", "token_envv": "s3cret"}}})
    assert "s3cret" not in told
    assert "did you mean reward.model.token_env?" in told


def test_in_python_too():
    with refuses("tiemout", r"tiemout = 3: unknown key; did you mean timeout\?"):
        RemoteSettings(endpoint="nowhere", tiemout=3)


@pytest.mark.parametrize("section", ["arms", "tasks"])
def test_in_what_an_arm_or_a_task_changes_the_line_is_its_own(tmp_path, section):
    from guerdon.comparison.study import plan_study

    path = tmp_path / "study.yaml"
    tasks = {"arms": "{t: {}}", "tasks": "\n    t:\n      reward: {max_failure_rat: 0.5}"}[section]
    config = {"arms": "\n      config:\n        reward: {max_failure_rat: 0.5}", "tasks": ""}[section]
    path.write_text(f"compare:\n  baseline: a\n  tasks: {tasks}\n  arms:\n    a:\n      label: A{config}\n")
    line = path.read_text()[: path.read_text().index("max_failure_rat")].count("\n") + 1
    with refuses("reward.max_failure_rat") as caught:
        plan_study(path, [])
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n", "---\n", "null\n"])
@pytest.mark.parametrize("verb", ["collect", "label", "train", "evaluate", "run", "compare", "serve"])
def test_an_empty_file_is_refused_by_every_verb(tmp_path, verb, text):
    from typer.testing import CliRunner

    from guerdon.cli import app

    (tmp_path / "study.yaml").write_text(text)
    result = CliRunner().invoke(app, [verb, str(tmp_path / "study.yaml")])
    assert isinstance(result.exception, ConfigError)
    assert "study.yaml: the file is empty" in str(result.exception)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("reward_mode", "did you mean reward_model or reward.reward_mode?"),
        ("combine_mode", "did you mean reward.combine_mode?"),
        ("reward.threshold", "did you mean reward.reward_threshold or evaluate.threshold?"),
        ("runner.total_episodes", "did you mean runner.eval_episodes?"),
        ("runner.zzz", "known keys here: logger, seed, total_steps"),
    ],
)
def test_the_same_section_comes_first_then_the_same_key_elsewhere(key, hint):
    *section, last = key.split(".")
    assert hint in message(around(tuple(section), {last: 1}))


def test_overrides_are_checked_in_the_same_way():
    tree = apply_overrides(Tree({"runner": {"seed": 1}}), ["runner.sede=2"])
    with refuses("runner.sede", "override runner.sede=2: "):
        validate(Study, tree, origin="study.yaml")
