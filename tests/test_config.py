"""Configuration: reading, overriding, referring, checking, writing back."""

from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, model_validator

from guerdon.config.loading import (
    Tree,
    apply_overrides,
    dot_env,
    holds,
    load,
    merge,
    read_yaml,
    resolve_refs,
    to_plain,
    to_yaml,
    validate,
)
from guerdon.errors import ConfigError
from tables import refuses


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Square(Frozen):
    type: Literal["square"] = "square"
    side: float = Field(1.0, gt=0)


class Circle(Frozen):
    type: Literal["circle"] = "circle"
    radius: float = 1.0
    label: str = "round"


class Reward(Frozen):
    reward_mode: Literal["per_step", "terminal"] = "terminal"
    every: int = 1
    weights: tuple[float, ...] = Field((1.0, 0.5), min_length=1)

    @model_validator(mode="after")
    def _nothing_idle(self) -> "Reward":
        if self.reward_mode == "terminal" and "every" in self.model_fields_set:
            raise ValueError("every would do nothing with reward_mode terminal; remove it")
        return self


class Root(Frozen):
    name: str = "study"
    seed: int = Field(0, ge=0, description="where randomness starts")
    rate: float = 1e-3
    flag: bool = False
    paths: str | tuple[str, ...] = ()
    reward: Reward = Reward()
    shape: Annotated[Square | Circle, Field(discriminator="type")] = Square()
    shapes: dict[str, Annotated[Square | Circle, Field(discriminator="type")]] = Field(default_factory=dict)
    optional: Circle | None = None
    lambda_: float = Field(0.9, alias="lambda")
    free: dict[str, Any] = Field(default_factory=dict)


class Open(Root):
    """The same with room for other keys, for tests of references alone."""

    model_config = ConfigDict(frozen=True, extra="allow")


def read(tmp_path, text):
    path = tmp_path / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path)


def problem(text="", overrides=(), tmp_path=None):
    path = None if tmp_path is None else tmp_path / "study.yaml"
    if path is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(Root, path, overrides)
    return str(caught.value)


class TestRead:
    def test_values_and_places(self, tmp_path):
        tree = read(tmp_path, "a: 1\nb:\n  c: [x, {d: 2}]\n")
        assert tree.data == {"a": 1, "b": {"c": ["x", {"d": 2}]}}
        assert tree.places["b.c.1.d"].endswith("study.yaml:3")
        assert tree.place("b.c.7.nowhere").endswith("study.yaml:3")
        assert tree.place("zzz") is None

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("1e-4", 1e-4), ("1E5", 1e5), ("1.5e3", 1500.0), (".5", 0.5), ("-3.", -3.0), ("1_000", 1000),
            ("0x1f", 31), ("-0", 0), ("+7", 7), (".inf", float("inf")), ("on", "on"), ("off", "off"),
            ("yes", "yes"),
            ("No", "No"), ("true", True), ("False", False), ("null", None), ("~", None), ("", None),
            ("010", "010"),
            ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("'1e-4'", "1e-4"), ("=", "="),
            ("1.2.3", "1.2.3"),
            ("y", "y"), ("e5", "e5"), ("-", None),
        ],
    )  # fmt: skip
    def test_scalars(self, tmp_path, text, value):
        if text == "-":
            assert read(tmp_path, "a:\n  -\n").data == {"a": [None]}
            return
        found = read(tmp_path, f"a: {text}\n").data["a"]
        assert found == value
        assert type(found) is type(value)

    def test_keys_are_words_as_written(self, tmp_path):
        assert read(tmp_path, "on: 1\n1: 2\ntrue: 3\n").data == {"on": 1, "1": 2, "true": 3}

    def test_merge_keys_and_aliases_are_copies(self, tmp_path):
        tree = read(tmp_path, "base: &b {x: [1], y: 2}\nmore:\n  <<: *b\n  y: 3\nlist: [*b, *b]\n")
        assert tree.data["more"] == {"x": [1], "y": 3}
        tree.data["more"]["x"].append(9)
        tree.data["list"][0]["y"] = 0
        assert tree.data["base"] == {"x": [1], "y": 2}
        assert tree.data["list"][1]["y"] == 2

    def test_an_empty_file_is_refused(self, tmp_path):
        for text in ("", "# nothing\n", "{}", "null"):
            with pytest.raises(ConfigError, match=r"study.yaml: the file is empty: write at least one section"):
                read(tmp_path, text)

    @pytest.mark.hostile("configuration")
    @pytest.mark.parametrize(
        ("text", "key", "words"),
        [
            ("a: 1\nb: 2\na: 3\n", "a", ["study.yaml:3", "a is given twice", "line 1"]),
            ("x:\n  a: 1\n  a: 1\n", "x.a", ["study.yaml:3", "x.a is given twice"]),
            ("a: [1\nb: 2\n", None, ["study.yaml:2", "not valid YAML"]),
            ("a:\n\t- 1\n", None, ["study.yaml:2", "not valid YAML"]),
            ("- 1\n", None, ["a map of sections", "a list of 1"]),
            ("a: !!python/object/apply:os.system [ls]\n", "a", ["study.yaml:1", "not allowed"]),
            ("a: !!python/name:os.system\n", None, ["study.yaml:1", "not valid YAML"]),
            ("a: 1\n---\nb: 2\n", None, ["not valid YAML"]),
            ("? [1, 2]\n: 3\n", None, ["a key must be a word"]),
            ("a: &a [*a]\n", "a.0", ["an alias refers to the section"]),
            ("a: {<<: 3}\n", "a", ["<< needs a map"]),
            ("a:\n  {b:c}\n", None, ["study.yaml:2", "a space is missing: {b: c}"]),
            ("a: \x00", None, ["not valid YAML"]),
            ("a: " + "[" * 3000, None, ["study.yaml"]),
        ],
    )
    def test_refusals_name_the_line(self, tmp_path, text, key, words):
        with refuses(key) as caught:
            read(tmp_path, text)
        assert all(word in str(caught.value) for word in words), str(caught.value)

    @pytest.mark.hostile("configuration")
    def test_billion_laughs(self, tmp_path):
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
        with pytest.raises(ConfigError, match="aliases expand"):
            read(tmp_path, "\n".join(lines))

    @pytest.mark.hostile("configuration")
    def test_a_text_that_aliases_repeat(self, tmp_path):
        text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 200)}]\n"
        with pytest.raises(ConfigError, match="more than 10000000 characters"):
            read(tmp_path, text)
        assert len(read(tmp_path, text.replace(", *a" * 150, "")).data["b"]) == 50

    @pytest.mark.hostile("configuration")
    @pytest.mark.parametrize(
        ("text", "key"),
        [("seed: 0xDIGITS", "seed"), ("seed: 1\nname: 'x${seed}'", "name"), ("seed: [0xDIGITS]", "seed.0")],
    )
    def test_numbers_that_are_too_long_to_write(self, tmp_path, text, key):
        text = text.replace("DIGITS", "f" * 5000).replace("seed: 1", f"seed: 0x{'f' * 5000}")
        (tmp_path / "study.yaml").write_text(text)
        with refuses(key, "a whole number of 20,000 bits"):
            load(Root, tmp_path / "study.yaml")

    @pytest.mark.hostile("configuration")
    def test_missing_and_binary_files(self, tmp_path):
        with pytest.raises(ConfigError, match="no such file"):
            read_yaml(tmp_path / "absent.yaml")
        (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00\x80")
        with pytest.raises(ConfigError, match="UTF-8"):
            read_yaml(tmp_path / "b.yaml")
        with pytest.raises(ConfigError, match="cannot be read"):
            read_yaml(tmp_path)


class TestOverrides:
    def test_values_paths_and_places(self):
        tree = Tree({"a": {"b": [{"c": 1}, 2]}, "empty": None}, {"a": "f:1", "a.b": "f:2", "a.b.0.c": "f:2"})
        new = apply_overrides(tree, ["a.b.0.c=1e-4", "x.y.z=[1, two]", "empty.k={p: true}", "t=a=b"])
        assert new.data == {
            "a": {"b": [{"c": 1e-4}, 2]}, "empty": {"k": {"p": True}}, "x": {"y": {"z": [1, "two"]}},
            "t": "a=b",
        }  # fmt: skip
        assert tree.data["a"]["b"][0]["c"] == 1
        assert new.place("a.b.0.c") == "override a.b.0.c=1e-4"
        assert apply_overrides(tree, ["a=3"]).place("a.b.0.c") == "override a=3"

    def test_the_last_one_wins(self):
        assert apply_overrides(Tree(), ["a=1", "a=2"]).data == {"a": 2}

    @pytest.mark.hostile("configuration")
    @pytest.mark.parametrize(
        ("text", "key", "words"),
        [
            ("a", None, "write section.key=value"),
            ("=3", None, "write section.key=value"),
            ("a..b=3", None, "write section.key=value"),
            (".a=3", None, "write section.key=value"),
            ("a.=3", None, "write section.key=value"),
            ("a. b=3", None, "write section.key=value"),
            ("s.x=3", "s.x", "s is 5, so it has no 'x' inside"),
            ("l.2=3", "l.2", "l is a list of 2"),
            ("l.x.y=3", "l.x.y", "l is a list of 2"),
            ("l.-1=3", "l.-1", "l is a list of 2"),
            ("a=[1", "a", "not valid YAML"),
            ("a=", "a", "no value; write a=null"),
            ("a=#fff", "a", "no value"),
            ("a={x: 1, x: 2}", "a.x", "given twice"),
        ],
    )
    def test_malformed(self, text, key, words):
        with refuses(key) as caught:
            apply_overrides(Tree({"s": 5, "l": [1, 2]}), [text])
        assert words in str(caught.value)
        assert repr(text) in str(caught.value)

    keys = st.text("abcdef_", min_size=1, max_size=4)
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    )

    @given(st.lists(keys, min_size=1, max_size=4), scalars)
    def test_a_value_set_is_the_value_read(self, parts, value):
        text = (
            yaml.safe_dump(value, default_style='"' if isinstance(value, str) else None).removesuffix("...\n").strip()
        )
        node = apply_overrides(Tree(), [f"{'.'.join(parts)}={text}"]).data
        for part in parts:
            node = node[part]
        assert node == value
        assert type(node) is type(value)


class TestNull:
    """`key: null` removes a key, wherever it is said, unless the key's field may be null."""

    FILE = (
        "seed: 3\nreward: {reward_mode: per_step, every: 4}\nshapes: {a: {type: square, side: 2}, b: {type: circle}}\n"
    )

    def load(self, tmp_path, text, *overrides):
        (tmp_path / "study.yaml").write_text(text)
        return load(Root, tmp_path / "study.yaml", overrides)

    def test_a_default_is_back_and_a_free_name_is_gone(self, tmp_path):
        found = self.load(tmp_path, self.FILE, "seed=null", "reward.every=null", "shapes.b=null")
        assert (found.seed, found.reward.every, list(found.shapes)) == (0, 1, ["a"])
        assert "every" not in found.reward.model_fields_set
        assert self.load(tmp_path, self.FILE, "reward=null").reward == Reward()
        assert self.load(tmp_path, "seed:\nreward:\nshape: {side: null}\n") == Root()

    def test_the_key_that_made_a_choice_impossible_can_be_removed(self, tmp_path):
        assert "every" in problem(self.FILE, ["reward.reward_mode=terminal"], tmp_path)
        found = self.load(tmp_path, self.FILE, "reward.reward_mode=terminal", "reward.every=null")
        assert found.reward == Reward(reward_mode="terminal")
        found = self.load(tmp_path, "shape: {type: square, side: 2}\n", "shape.type=circle", "shape.side=null")
        assert found.shape == Circle()

    def test_null_stays_where_the_field_may_be_null(self, tmp_path):
        found = self.load(
            tmp_path, "optional: {radius: 2}\nfree: {a: 1, b: {c: 2}}\n", "optional=null", "free.b.c=null"
        )
        assert found.optional is None
        assert found.free == {"a": 1, "b": {"c": None}}

    def test_a_reference_to_a_removed_key_finds_the_default(self, tmp_path):
        assert self.load(tmp_path, "seed: 3\nname: s-${seed}\n", "seed=null").name == "s-0"

    def test_an_unknown_key_is_refused_with_null_too(self, tmp_path):
        assert "sede = null: unknown key; did you mean seed?" in problem(self.FILE, ["sede=null"], tmp_path)
        assert "shapes.b.radios = null: unknown key" in problem(self.FILE, ["shapes.b.radios=null"], tmp_path)

    def test_a_list_keeps_its_length(self, tmp_path):
        assert "reward.weights.1 is null" in problem("reward: {weights: [1, null]}\n", tmp_path=tmp_path)


def text(max_size):
    """Texts that stand for no folder and can stand in a file."""
    return st.text(st.characters(exclude_characters="\0~$%", exclude_categories=["Cs"]), max_size=max_size)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
maps = st.dictionaries(st.text("abc", min_size=1, max_size=3), plain, max_size=4)


class TestMerge:
    def test_maps_merge_and_lists_are_replaced(self):
        base = {"a": {"x": 1, "y": [1, 2]}, "b": 3}
        assert merge(base, {"a": {"y": [9]}, "c": {"z": 1}}) == {
            "a": {"x": 1, "y": [9]},
            "b": 3,
            "c": {"z": 1},
        }
        assert merge({"a": {"x": 1}}, {"a": None}) == {"a": None}

    @given(maps, maps, maps)
    def test_laws(self, a, b, c):
        assert merge(a, {}) == a
        assert merge({}, a) == a
        assert merge(a, a) == a
        assert merge(merge(a, b), b) == merge(a, b)
        assert set(merge(a, b)) == set(a) | set(b)

    def test_nothing_is_shared(self):
        base, over = {"a": {"x": [1]}}, {"b": {"y": [2]}}
        merged = merge(base, over)
        merged["a"]["x"].append(0)
        merged["b"]["y"].append(0)
        assert base == {"a": {"x": [1]}}
        assert over == {"b": {"y": [2]}}


class TestRefs:
    def resolve(self, data, model=None):
        return resolve_refs(Tree(data, {k: f"f:{i}" for i, k in enumerate(data, 1)}), model).data

    def test_types_chains_and_text(self):
        data = {"n": 3, "f": 1e-4, "t": True, "l": [1, "${n}"], "m": {"k": "${n}"}, "a": "${b}", "b": "${n}"}
        data |= {"s": "x-${n}-${f}-${t}", "m2": "${m}", "l2": "${l}", "deep": "${m2.k}", "first": "${l.1}"}
        assert self.resolve(data) == {
            "n": 3, "f": 1e-4, "t": True, "l": [1, 3], "m": {"k": 3}, "a": 3, "b": 3, "s": "x-3-0.0001-true",
            "m2": {"k": 3}, "l2": [1, 3], "deep": 3, "first": 3,
        }  # fmt: skip

    def test_escape(self):
        assert self.resolve({"a": "$${b}", "c": "cost $5 $$ ${d}", "d": 1}) == {
            "a": "${b}",
            "c": "cost $5 $$ 1",
            "d": 1,
        }

    def test_defaults_of_the_model(self):
        data = {"a": "${seed}", "b": "${reward.weights}", "c": "${shape.side}", "d": "${shapes.big.label}-x"}
        data |= {"e": "${lambda}", "shapes": {"big": {"type": "circle"}}}
        found = self.resolve(data, Open)
        assert [found[k] for k in "abcde"] == [0, [1.0, 0.5], 1.0, "round-x", 0.9]

    def test_the_branch_of_a_union_follows_the_tree(self):
        assert self.resolve({"a": "${shape.label}", "shape": {"type": "circle"}}, Open)["a"] == "round"
        with refuses("a"):
            self.resolve({"a": "${shape.label}", "shape": {"type": "square"}}, Open)

    @pytest.mark.hostile("configuration")
    @pytest.mark.parametrize(
        ("data", "words"),
        [
            ({"a": "${b}", "b": "${c}", "c": "${a}"}, "a -> b -> c -> a"),
            ({"a": "x${a}"}, "a -> a"),
            ({"a": {"b": "${a}"}}, "a -> a.b -> a"),
            ({"a": "${b}"}, "f:1: a: ${b} names nothing"),
            ({"a": "${sed}", "seed": 1}, "did you mean ${seed}?"),
            ({"a": "${reward.reward_mod}"}, "did you mean ${reward.reward_mode}?"),
            ({"a": "x${m}", "m": {}}, "a map, which cannot stand inside a string"),
            ({"a": "x${m}", "m": None}, "null, which cannot stand inside a string"),
            ({"a": "${m"}, "is not a reference"),
            ({"a": "${}"}, "is not a reference"),
            ({"a": "${x..y}"}, "is not a reference"),
        ],
    )
    def test_refusals(self, data, words):
        with refuses("a") as caught:
            self.resolve(data, Open)
        assert words in str(caught.value)

    @pytest.mark.hostile("configuration")
    @pytest.mark.parametrize(
        ("made_of", "key"),
        [
            (lambda ref: [ref] * 10, "v5.3"),
            (lambda ref: {f"k{i}": ref for i in range(10)}, "v5.k3"),
            (lambda ref: ref * 10, "v5"),
        ],
        ids=["list", "map", "text"],
    )
    def test_references_that_multiply(self, made_of, key):
        """Each value is made of ten times the one before: a tenth of a million fits, ten thousand million does not."""
        data = {"v0": made_of("x"), **{f"v{k}": made_of(f"${{v{k - 1}}}") for k in range(1, 10)}}
        with refuses(key, "f:6: .* the references stand for more than 1,000,000 values"):
            self.resolve(data)
        small = {key: value for key, value in data.items() if key < "v4"}
        assert len(str(self.resolve(small)["v3"])) >= 10_000

    @pytest.mark.hostile("configuration")
    def test_references_that_nest(self):
        data = {"v0": 1, **{f"v{k}": {"x": f"${{v{k - 1}}}"} for k in range(1, 2000)}}
        with refuses("v52.x", "more than 50 maps and lists inside each other"):
            self.resolve(data)
        chain = {f"v{k}": f"${{v{k + 1}}}" for k in range(2000)}
        with refuses("v101", "more than 100 references, maps and lists lead to it"):
            self.resolve(chain)
        assert self.resolve({**{f"v{k}": f"${{v{k + 1}}}" for k in range(90)}, "v90": 7})["v0"] == 7

    def test_copies_are_apart(self):
        found = self.resolve({"a": {"x": [1]}, "b": "${a}", "c": ["${a.x}", "${a.x}"], "d": "${c}"})
        found["a"]["x"].append(2)
        found["c"][0].append(3)
        assert found == {"a": {"x": [1, 2]}, "b": {"x": [1]}, "c": [[1, 3], [1]], "d": [[1], [1]]}

    @given(plain)
    def test_a_whole_reference_is_the_value(self, value):
        tree = Tree({"v": value, "r": "${v}", "chain": "${r}"})
        text = repr(value)
        if "${" in text:
            return
        assert resolve_refs(tree).data == {"v": value, "r": value, "chain": value}


class TestValidate:
    @pytest.mark.hostile("configuration")
    def test_many_problems_are_counted(self, tmp_path):
        keys = "".join(f"key{i}: 1\n" for i in range(500))
        assert problem(keys, tmp_path=tmp_path).splitlines()[-1] == "  ... and 450 more unknown keys"
        weights = f"reward: {{weights: [{', '.join(['x'] * 500)}]}}\n"
        found = problem(weights, tmp_path=tmp_path).splitlines()
        assert found[0].endswith("many problems")
        assert len(found) == 52
        assert found[-1].startswith("  ... and 45")

    @pytest.mark.hostile("configuration")
    def test_bad_values_say_where_what_and_what_is_allowed(self, tmp_path):
        text = "seed: -1\nreward:\n  reward_mode: perstep\n  weights: [1, x]\n"
        assert problem(text, tmp_path=tmp_path).splitlines()[1:] == [
            f"  {tmp_path}/study.yaml:1: seed is -1; allowed: greater than or equal to 0",
            f"  {tmp_path}/study.yaml:3: reward.reward_mode is 'perstep'; allowed: 'per_step' or 'terminal'; "
            "did you mean 'per_step'?",
            f"  {tmp_path}/study.yaml:4: reward.weights.1 is 'x'; allowed: number",
        ]

    @pytest.mark.parametrize(
        ("override", "words"),
        [
            ("sede=3", ["sede = 3: unknown key", "did you mean seed?"]),
            ("reward_mode=terminal", ["unknown key", "did you mean reward.reward_mode?"]),
            ("rewardmode=terminal", ["did you mean reward or reward.reward_mode?"]),
            ("reward.rewardmode=terminal", ["did you mean reward.reward_mode?"]),
            ("shape={type: square, sides: 2}", ["shape.sides", "did you mean shape.side?"]),
            ("shape={type: square, radius: 2}", ["shape.radius = 2: unknown key", "it belongs to type: circle"]),
            (
                "shapes.big={type: circle, radios: 2}",
                ["shapes.big.radios = 2", "did you mean shapes.big.radius?"],
            ),
            ("lambd=0.5", ["did you mean lambda?"]),
            ("qqqq=1", ["known keys here: name, seed"]),
            (
                "shape.type=circel",
                ["shape.type is 'circel'", "'square' or 'circle'", "did you mean 'circle'?"],
            ),
            ("shape={side: 2}", ["shape.type is missing", "'square' or 'circle'"]),
            ("shape={type: square, side: 0}", ["shape.side is 0", "greater than 0"]),
            ("optional=3", ["optional is 3"]),
            ("paths={a: 1}", ["paths is a map; allowed: string or a list in square brackets"]),
            ("flag=maybe", ["flag is 'maybe'; allowed: boolean"]),
            ("reward.every=2", ["reward does not fit together", "every would do nothing"]),
            ("seed=1.5", ["seed is 1.5; allowed: integer"]),
            ("name=[1]", ["name is a list of 1; allowed: string"]),
            ("reward=3", ["reward is 3; allowed: a section"]),
            ("reward.weights=3", ["reward.weights is 3; allowed: a list in square brackets"]),
            ("reward.weights=[]", ["reward.weights is a list of 0; allowed: a list of at least 1"]),
        ],
    )
    def test_one_line_per_problem(self, override, words):
        text = problem(overrides=[override])
        assert text.startswith(f"override {override}: ")
        assert len(text.splitlines()) == 1
        assert all(word in text for word in words), text

    def test_missing_key_says_what_it_means(self):
        class Needy(Frozen):
            path: str = Field(description="a folder of episodes")

        with refuses("path", r"^cli: path is missing and has no default: a folder of episodes$"):
            validate(Needy, {}, origin="cli")

    def test_a_word_like_a_number_stays_a_word_and_a_number_a_number(self):
        config = load(Root, None, ["name='1e-4'", "rate=1e-4", "free.x=1e-4", "free.y=on"])
        assert (config.name, config.rate, config.free) == ("1e-4", 1e-4, {"x": 1e-4, "y": "on"})


roots = st.builds(
    Root,
    name=text(max_size=12),
    seed=st.integers(0, 10**12),
    rate=st.floats(allow_nan=False),
    flag=st.booleans(),
    paths=text(max_size=6) | st.lists(text(max_size=6), max_size=3).map(tuple),
    reward=st.builds(Reward, reward_mode=st.just("per_step"), every=st.integers(1, 9)) | st.just(Reward()),
    shape=st.builds(Square, side=st.floats(1e-9, 1e9)) | st.builds(Circle, label=text(max_size=6)),
    shapes=st.dictionaries(text(max_size=5), st.builds(Circle), max_size=2),
    optional=st.none() | st.builds(Circle),
    free=st.dictionaries(text(max_size=5), plain, max_size=3),
    **{"lambda": st.floats(0, 1)},
)


class TestRoundTrip:
    @settings(max_examples=150, deadline=None)
    @given(roots)
    def test_written_and_read_back_is_the_same(self, tmp_path_factory, config):
        path = tmp_path_factory.mktemp("round") / "config.yaml"
        path.write_text(to_yaml(config), encoding="utf-8")
        assert load(Root, path, []) == config
        assert validate(Root, to_plain(config), origin="plain") == config

    def test_defaults_are_written_out_unless_they_would_be_refused(self):
        found = to_plain(Root())
        assert found["reward"] == {"reward_mode": "terminal", "weights": [1.0, 0.5]}
        assert found["lambda"] == 0.9
        assert found["shape"] == {"type": "square", "side": 1.0}
        assert to_plain(load(Root, None, ["reward.reward_mode=per_step"]))["reward"]["every"] == 1

    def test_a_parent_may_look_at_what_its_sections_were_given(self):
        class Parent(Frozen):
            child: Circle = Circle()
            plain: bool = True

            @model_validator(mode="after")
            def _idle(self) -> "Parent":
                if "label" in self.child.model_fields_set:
                    raise ValueError("label would do nothing")
                return self

        config = load(Parent, None, ["child.radius=2"])
        assert to_plain(config) == {"child": {"radius": 2.0}, "plain": True}

    @pytest.mark.hostile("configuration")
    def test_strings_that_yaml_would_misread(self, tmp_path):
        words = [
            "1e-4",
            "on",
            "yes",
            "010",
            "1:30",
            "null",
            "",
            "2024-01-01",
            "${x}",
            "$${x}",
            "a: b",
            "#c",
            "=",
            "<<",
        ]
        config = Root(free={"words": words})
        path = tmp_path / "c.yaml"
        path.write_text(to_yaml(config), encoding="utf-8")
        assert load(Root, path, []).free == {"words": words}
        assert yaml.safe_load(to_yaml(config))["free"]["words"][:8] == words[:8]  # YAML 1.1 readers agree too


@pytest.mark.parametrize(
    "line",
    ["K=v", "K='v'", 'export K="v"', "K = v  # a comment", "K='v' # a comment", "\ufeffK=v", "K=v\r"],
)
def test_values_of_a_file_of_secrets(line, tmp_path):
    (tmp_path / ".env").write_text(line + "\nA=b#c\nEMPTY=\n", encoding="utf-8", newline="")
    assert dot_env(tmp_path / ".env") == {"K": "v", "A": "b#c", "EMPTY": ""}


def test_a_value_that_begins_with_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "study.yaml"
    file.write_text('name: ~/runs\npaths: ["~/a", b~/c, "${name}/d", "~"]\n')
    study = load(Root, file)
    assert study.name == f"{tmp_path}/runs"
    assert study.paths == (f"{tmp_path}/a", "b~/c", f"{tmp_path}/runs/d", str(tmp_path))
    assert load(Root, file, ["name=~/x"]).name == f"{tmp_path}/x"
    assert "~/" not in to_yaml(study).replace("b~/c", "")


def test_a_written_configuration_is_compared_by_keys_and_values(tmp_path):
    file = tmp_path / "config.yaml"
    config = Root(name="x", paths=("a", "b"))
    file.write_text(to_yaml(config))
    assert holds(file, config)
    assert not holds(file, Root(name="x", paths=("a", "c")))
    lines = yaml.safe_load(to_yaml(config))
    file.write_text(yaml.safe_dump(dict(reversed(lines.items())), sort_keys=False))  # another order
    assert holds(file, config)
    del lines["name"]
    file.write_text(yaml.safe_dump(lines))
    assert not holds(file, config)


def test_a_folder_from_before_the_keys_that_are_left_out_is_that_of_the_study(tmp_path):
    """What an earlier guerdon wrote has policy.type where none was given, and no keys that came later."""
    from guerdon.config.loading import holds, to_yaml
    from guerdon.settings.study import Study

    env = {"type": "gymnasium", "task": "Pendulum-v1", "native_reward": "dense"}
    study = Study.model_validate({"env": env, "algorithm": {"type": "sac", "goal_relabelling": "future"}})
    text = to_yaml(study)
    assert not any(key in text for key in ("buffer_size", "keep_info", "show_as", "type: mlp"))
    before = tmp_path / "config.yaml"
    before.write_text(text.replace("policy:\n", "policy:\n  type: mlp\n"))
    assert holds(before, study)
    before.write_text(text.replace("policy:\n", "policy:\n  type: cnn\n"))
    assert not holds(before, study)
    given = Study.model_validate({"env": env, "algorithm": {"type": "sac", "buffer_size": 5000}})
    assert "buffer_size: 5000" in to_yaml(given)
