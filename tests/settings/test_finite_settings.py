"""No setting anywhere may be NaN or infinite."""

import importlib
import math
import pkgutil
import typing

import pytest
from pydantic import ValidationError, create_model

import guerdon
from guerdon.config.loading import load
from guerdon.settings.base import Settings
from guerdon.settings.study import Study
from tables import cases, refuses

for module in pkgutil.walk_packages(guerdon.settings.__path__, "guerdon.settings."):
    importlib.import_module(module.name)


def classes(base=Settings):
    for one in base.__subclasses__():
        yield one
        yield from classes(one)


def holds_float(annotation):
    return annotation is float or any(map(holds_float, typing.get_args(annotation)))


def wrapped(annotation, value):
    """The value where a value of this type keeps a float: in a mapping, in a sequence, or as it is."""
    if typing.get_origin(annotation) is dict or "Mapping" in str(typing.get_origin(annotation)):
        return {"a": value}
    if typing.get_origin(annotation) in (tuple, list) or "Sequence" in str(typing.get_origin(annotation)):
        return [value, value]
    parts = [a for a in typing.get_args(annotation) if a is not float and holds_float(a)]
    return wrapped(parts[0], value) if parts and float not in typing.get_args(annotation) else value


FLOATS = sorted(
    {
        (c, name)
        for c in classes()
        if c.__module__.startswith("guerdon.")
        for name, field in c.model_fields.items()
        if holds_float(field.annotation)
    },
    key=lambda pair: (pair[0].__name__, pair[1]),
)


def test_all_settings_are_looked_at():
    assert len(FLOATS) > 100


@pytest.mark.hostile("configuration")
@cases(("model", "name"), FLOATS, ids=[f"{c.__name__}.{name}" for c, name in FLOATS])
def test_a_number_that_is_not_finite_is_refused(model, name):
    assert model.model_config["allow_inf_nan"] is False
    field = model.model_fields[name]
    alone = create_model("Alone", __base__=Settings, **{name: (field.annotation, field)})  # without the others' checks
    for value in (math.inf, -math.inf, math.nan):
        with pytest.raises(ValidationError) as caught:
            alone.model_validate({field.alias or name: wrapped(field.annotation, value)})
        assert "finite_number" in {error["type"] for error in caught.value.errors()}, caught.value


@pytest.mark.hostile("configuration")
@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan", "1e999"])
def test_the_command_line_names_the_key(value):
    with refuses("algorithm.learning_rate"):
        load(Study, None, [f"algorithm.learning_rate={value}"])
