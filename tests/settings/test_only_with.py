"""Keys that say with which values of their neighbours they do something."""

import pytest
from pydantic import ValidationError

from guerdon.config.loading import to_plain, validate
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.base import SET, Because, OnlyWith, Settings, Unless, only_with
from tables import cases, refuses


class Paint(Settings):
    kind: str = "plain"
    mixed: bool = False
    layers: int = 0
    share: float = only_with(0.5, ge=0, le=1, mixed=True, description="of the second colour")
    drying: float | None = only_with(None, gt=0, layers=SET, kind=Unless("wet", "fresh"), description="hours")
    gloss: float = only_with(0.1, kind=("oil", "lacquer"), description="of the surface")
    grain: int = only_with(1, coarse=Because(True, "without coarse pigments"), description="of the pigments")
    varnish: str = only_with("none", kind=Because("oil", "kind {}, which needs none"), description="on top")

    @property
    def coarse(self):
        return self.kind.startswith("sand")

    def derived(self):
        return {"layers": 3} if self.kind == "lacquer" else {}


class Wall(Settings):
    paint: Paint = Paint()
    height: float = 2.5


@cases(
    ("given", "key", "message"),
    [
        ({"share": 0.5}, "share", "share would do nothing with mixed: false; remove it"),
        ({"drying": 2.0}, "drying", "drying would do nothing with layers 0; remove it"),
        ({"drying": 2.0, "layers": 2, "kind": "wet"}, "drying", "drying would do nothing with kind wet"),
        ({"gloss": 0.1}, "gloss", "gloss would do nothing with kind plain"),
        ({"gloss": 0.1, "kind": ""}, "gloss", "gloss would do nothing without kind"),
        ({"grain": 1}, "grain", "grain would do nothing without coarse pigments"),
        ({"kind": "sand", "varnish": "none"}, "varnish", "varnish would do nothing with kind sand, which needs none"),
        ({"grain": 2, "share": 0.1, "mixed": True}, "grain", "grain would do nothing"),
        ({"share": 2.0, "mixed": True}, "share", "less than or equal to 1"),
    ],
    ids=str,
)
def test_a_key_that_would_do_nothing_is_refused_where_it_is_given(given, key, message):
    with pytest.raises(ValidationError, match=message):
        Paint(**given)
    with refuses(f"paint.{key}"):
        validate(Wall, {"paint": given}, origin="wall.yaml")


@pytest.mark.parametrize(
    "given",
    [
        {}, {"drying": None}, {"mixed": True, "share": 0.0}, {"layers": 1, "drying": 3.0},
        {"kind": "lacquer", "gloss": 1}, {"kind": "sandy", "grain": 4}, {"kind": "oil", "varnish": "two", "gloss": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_key_that_does_something_is_accepted_and_read_back(given):
    wall = validate(Wall, {"paint": given}, origin="wall.yaml")
    assert all(getattr(wall.paint, key) == value for key, value in given.items())
    assert validate(Wall, to_plain(wall), origin="again") == wall


def test_a_value_that_follows_from_others_is_not_one_that_was_given():
    assert (Paint(kind="lacquer").layers, Paint(kind="lacquer", layers=1).layers, Paint().layers) == (3, 1, 0)
    assert Paint(kind="lacquer", drying=1.0).drying == 1.0  # the neighbour's value is the one that follows
    assert "layers" not in Paint(kind="lacquer").model_fields_set


def test_the_rule_is_in_the_schema_and_reads_as_words():
    shown = {name: field["only_with"] for name, field in Paint.model_json_schema()["properties"].items() if
             "only_with" in field}  # fmt: skip
    assert shown == {
        "share": "mixed true", "drying": "layers; kind not wet, fresh", "gloss": "kind oil, lacquer",
        "grain": "coarse pigments", "varnish": "kind oil",
    }  # fmt: skip


def test_every_rule_names_neighbours_that_exist():
    """A misspelled neighbour would show when a user gives the key."""
    forms, found = [Settings], 0
    while forms:
        form = forms.pop()
        forms += [one for one in form.__subclasses__() if one.__module__.startswith("guerdon.")]
        assert form._refuse_idle_keys is Settings._refuse_idle_keys  # a validator of that name would replace the check
        for name, field in form.model_fields.items():
            for rule in (mark for mark in field.metadata if isinstance(mark, OnlyWith)):
                missing = [key for key in rule.neighbours if not (key in form.model_fields or hasattr(form, key))]
                shared = form.__name__.startswith("_")  # its forms have them
                assert not missing or shared, f"{form.__name__}.{name}: {missing}"
                found += 1
    assert found > 20


def test_the_order_of_checks_does_not_matter_to_what_is_written_out():
    settings = ControlAlgorithmSettings(adv_estimator="grpo", group_size=4)
    plain = to_plain(settings)
    assert "rollout_steps" not in plain
    assert plain["group_size"] == 4
    assert validate(ControlAlgorithmSettings, plain, origin="again") == settings
