"""Rubric files, rubrics in columns, and the value of judgements."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.errors import ConfigError, DataError
from guerdon.models.judges.rubric import Criterion, Rubric, read_rubric, rubric_of
from tables import refuses

TOML = """
[[criteria]]
name = "answers"
text = "It answers the question."
weight = 2
choices = ["no", "partly", "yes"]

[[criteria]]
name = "polite"
text = "It is polite."
"""


def test_three_kinds_of_files_say_the_same(tmp_path):
    (tmp_path / "rubric.toml").write_text(TOML)
    found = read_rubric(tmp_path / "rubric.toml")
    plain = found.model_dump(mode="json")
    (tmp_path / "rubric.json").write_text(json.dumps(plain))
    (tmp_path / "rubric.yaml").write_text(
        "criteria:\n- {name: answers, text: It answers the question., weight: 2, choices: ['no', partly, 'yes']}\n"
        "- {name: polite, text: It is polite.}\n"
    )
    assert read_rubric(tmp_path / "rubric.json") == read_rubric(tmp_path / "rubric.yaml") == found
    assert [c.name for c in found.criteria] == ["answers", "polite"]
    assert found.criteria[1].choices == ("no", "yes")


@pytest.mark.hostile("files")
@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[[criteria]]\nname = 'a'\n", "criteria.0.text", ""),
        ("[[criteria]]\nname = 'a'\ntext = 'b'\nwieght = 2\n", "criteria.0.wieght", ""),
        ("[[criteria]]\nname = 'a'\ntext = 'b'\nweight = 0\n", "criteria.0.weight", "remove the criterion"),
        ("[[criteria]]\nname = 'a'\ntext = 'b'\nchoices = ['Yes', 'yes']\n", "criteria.0.choices", "must differ"),
        ("[[criteria]]\nname = 'a'\ntext = 'b'\nchoices = ['yes']\n", "criteria.0.choices", ""),
        ("criteria = []\n", "criteria", ""),
        ("criteria = [\n", "rubric", "cannot be read"),
        (TOML.replace('polite"', 'answers"', 1), "criteria", "names of criteria must differ"),
        (TOML.replace('polite"', 'ANSWERS"', 1), "criteria", ""),
    ],
)
def test_a_file_that_is_not_a_rubric_is_one_clear_error(tmp_path, text, key, said):
    (tmp_path / "r.toml").write_text(text)
    with refuses(key) as caught:
        read_rubric(tmp_path / "r.toml")
    assert "r.toml" in str(caught.value)
    assert said in str(caught.value)


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"ends in \.toml") as refused:
        read_rubric(tmp_path / "rubric.txt")
    assert refused.value.key == "rubric"


def test_values_by_hand():
    rubric = Rubric(criteria=(
        Criterion(name="a", text="t", weight=3, choices=("no", "partly", "yes")),
        Criterion(name="b", text="t"),
        Criterion(name="fault", text="t", weight=-1),
    ))  # fmt: skip
    assert rubric.criteria[0].share("Partly ") == 0.5
    assert rubric.criteria[0].share("maybe") is None
    assert rubric.value({"a": 0.5, "b": 1.0, "fault": 0.0}) == (pytest.approx(3.5 / 5), 1.0)
    assert rubric.value({"a": 1.0}) == (1.0, pytest.approx(3 / 5))
    assert rubric.value({"a": 0.0, "b": 0.0, "fault": 1.0}) == (0.0, 1.0)
    assert rubric.value({})[1] == 0.0


@given(st.lists(st.tuples(st.floats(-5, 5).filter(lambda w: abs(w) > 0.01), st.floats(0, 1)), min_size=1, max_size=6))
def test_a_value_is_between_0_and_1(given_rows):
    rubric = Rubric(criteria=tuple(Criterion(name=f"c{k}", text="t", weight=w) for k, (w, _) in enumerate(given_rows)))
    value, share = rubric.value({f"c{k}": v for k, (_, v) in enumerate(given_rows)})
    assert -1e-12 <= value <= 1 + 1e-12
    assert share == pytest.approx(1.0)


HEALTH = [  # as in HealthBench: criterion, points, tags
    {"criterion": "Says to call an ambulance.", "points": 7, "tags": ["axis:accuracy"]},
    {"criterion": "Names the dose.", "points": 3, "tags": []},
    {"criterion": "Invents a diagnosis.", "points": -5, "tags": []},
]


@pytest.mark.parametrize(("met", "value"), [
    ((1, 1, 0), 1.0), ((1, 1, 1), 0.5), ((1, 0, 0), 0.7), ((0, 1, 1), 0.0), ((0, 0, 0), 0.0), ((1, 0, 1), 0.2),
    ((0.5, 1, 0), 0.65),
])  # fmt: skip
def test_points_are_added_up(met, value):
    rubric = rubric_of(HEALTH, "row 1")
    assert (rubric.scoring, [one.weight for one in rubric.criteria]) == ("points", [7, 3, -5])
    assert rubric.value({f"c{k + 1}": float(one) for k, one in enumerate(met)}) == (pytest.approx(value), 1.0)
    assert rubric_of(json.dumps(HEALTH), "row 1") == rubric


def test_points_of_a_part_are_those_of_what_was_judged():
    rubric = rubric_of(HEALTH, "row 1")
    assert rubric.value({"c1": 1.0, "c3": 1.0}) == (pytest.approx(2 / 7), pytest.approx(12 / 15))
    assert rubric.value({"c3": 0.0}) == (None, pytest.approx(5 / 15))


def test_points_and_weights_are_told_apart(tmp_path):
    weights = [{"criterion": one["criterion"], "weight": one["points"]} for one in HEALTH]
    assert rubric_of(weights, "row 1").scoring == "weights"
    assert rubric_of(weights, "row 1").value({"c1": 0.0, "c2": 0.0, "c3": 0.0}) == (pytest.approx(5 / 15), 1.0)
    with pytest.raises(DataError, match="row 1: a rubric has weights or points, and this one has both") as refused:
        rubric_of([HEALTH[0], weights[1]], "row 1")
    assert refused.value.field == "rubric"
    with pytest.raises(ConfigError, match="no criterion has positive points") as refused:
        rubric_of(HEALTH[2:], "row 1")
    assert refused.value.key == "criteria"
    (tmp_path / "rubric.yaml").write_text(
        json.dumps(
            {
                "scoring": "points",
                "criteria": [
                    {"name": f"c{k}", "text": one["criterion"], "weight": one["points"]}
                    for k, one in enumerate(HEALTH, start=1)
                ],
            }
        )
    )
    assert read_rubric(tmp_path / "rubric.yaml") == rubric_of(HEALTH, "row 1")


@pytest.mark.parametrize(
    "given_rubric",
    [
        ["It is short.", "It is true."],
        json.dumps(["It is short.", "It is true."]),
        [{"criterion": "It is short.", "points": 1}, {"description": "It is true.", "title": "Truth"}],
        {"criteria": [{"text": "It is short."}, {"text": "It is true."}]},
    ],
)
def test_rubrics_of_single_prompts(given_rubric):
    found = rubric_of(given_rubric, "row 1")
    assert [c.text for c in found.criteria] == ["It is short.", "It is true."]
    assert [c.name for c in found.criteria] == ["c1", "c2"]


@pytest.mark.hostile("files")
@pytest.mark.parametrize("bad", ["{", [], [3], {"a": 1}, "4"])
def test_a_column_without_a_rubric_is_an_error_with_its_place(bad):
    with refuses("rubric") as refused:
        rubric_of(bad, "row 1")
    assert refused.value.where == "row 1"
