"""Registry: the parts of one kind by name, guerdon's own and those that users bring.

A user's part is `package.module:factory`, or a name that an installed package registers by an entry point in the group
of its kind:

    [project.entry-points."guerdon.reward_models"]
    brightness = "my_package.rewards:make_brightness"

A factory is called with arguments by name: `params` of the configuration, checked against its signature, and those
that guerdon offers to this kind, where the signature names them. A parameter `params` that is annotated with a pydantic
model gets all of `params` as that model. See docs/extend.md.

    builtins = {"constant": "guerdon.models.constant:ConstantModel"}
    REWARD_MODELS = Registry("reward model", "guerdon.reward_models", builtins)
    model = REWARD_MODELS.build("my_package.rewards:make_brightness", {"gain": 2.0}, RewardModel)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from guerdon.config.modules import users_modules
from guerdon.config.problems import problems
from guerdon.config.tree import Tree
from guerdon.errors import ConfigError, boundary, did_you_mean

OWN = "package.module:factory"


@dataclass(frozen=True)
class Registry:
    """The names of one kind of part.

    Attributes:
        kind: what the parts are, in words.
        group: of the entry points that register names.
        builtins: name to `module:factory`, imported when it is asked for.
        offers: arguments that guerdon offers to a user's factory.
    """

    kind: str
    group: str
    builtins: Mapping[str, str]
    offers: Sequence[str] = ()

    def registered(self) -> dict[str, EntryPoint]:
        """What installed packages register, by name; a built-in's name stays the built-in's."""
        return {one.name: one for one in entry_points(group=self.group) if one.name not in self.builtins}

    def hidden(self) -> list[EntryPoint]:
        """What installed packages register under a name that a built-in or another package has."""
        used = list(self.registered().values())
        return [one for one in entry_points(group=self.group) if one not in used]

    def listed(self) -> list[str]:
        """Every name, for people; of a registered one its package, and whether its module exists. Imports nothing."""
        return [*self.builtins, *(self._shown(name, entry) for name, entry in self.registered().items())]

    @staticmethod
    def _shown(name: str, entry: EntryPoint) -> str:
        missing = _missing_module(entry.value.partition(":")[0])
        origin = f"of {package_of(entry)}"
        if missing:
            origin += f"; broken: no module {missing}"
        return f"{name} ({origin})"

    def is_own(self, name: str) -> bool:
        """Whether a name stands for a user's part: it is not a built-in's."""
        return name not in self.builtins

    def known(self, name: str) -> str:
        """The name itself, of a built-in, or once its factory is found.

        Raises:
            ConfigError: as `factory` does.
        """
        if self.is_own(name):
            self.factory(name)
        return name

    def factory(self, name: str) -> Callable[..., Any]:
        """The factory of a name, imported and not called.

        Raises:
            ConfigError: the name is not known, or its module or factory is not there.
        """
        spec = self.builtins.get(name, name)
        if ":" not in spec:
            registered = self.registered()
            if name not in registered:
                known = [*self.builtins, *registered]
                hint = did_you_mean(name, known, quoted=True)
                raise ConfigError(
                    f"unknown {self.kind} {name!r}: choose one of {', '.join(known)}, or write {OWN}{hint}"
                )
            spec = registered[name].value
        found = _imported(spec, f"the {self.kind} {name}")
        if not callable(found):
            raise ConfigError(
                f"the {self.kind} {name} is a {type(found).__name__} and cannot be called: name a factory"
            )
        return found  # type: ignore[no-any-return]

    def check(self, name: str, params: Mapping[str, Any], *, key: str = "params") -> dict[str, Any]:
        """The arguments of a user's factory that `params` give.

        Args:
            name: `package.module:factory`, or a registered name.
            params: arguments of the factory from the configuration.
            key: that holds them in their section.

        Raises:
            ConfigError: as `factory` does; or an argument is unknown, missing or of another type.
        """
        model, whole = _params_model(self.factory(name), self.offers)
        section = create_model("Arguments", params=(model, ...))
        try:
            checked = section.model_validate({"params": params}).params  # type: ignore[attr-defined]
        except ValidationError as error:
            found = problems(section, Tree({"params": dict(params)}), error, f"the {self.kind} {name}")
            inside = (found[0].key or "").removeprefix("params")
            raise ConfigError("; ".join(map(str, found)), key=f"{key}{inside}") from error
        if whole:
            return {"params": checked}
        fields = type(checked).model_fields
        given = {str(fields[key].alias): getattr(checked, key) for key in checked.model_fields_set & fields.keys()}
        return given | (checked.model_extra or {})

    def build(self, name: str, params: Mapping[str, Any], kind: type | tuple[type, ...], **offered: Any) -> Any:
        """Call a user's factory.

        Args:
            name: `package.module:factory`, or a registered name.
            params: arguments of the factory from the configuration.
            kind: what it must return.
            **offered: further arguments, for factories that name them.

        Raises:
            ConfigError: as `check` does; or the factory raised, or returned something else.
        """
        return self.maker(name, params, kind, **offered)()

    def maker(
        self, name: str, params: Mapping[str, Any], kind: type | tuple[type, ...], **offered: Any
    ) -> Callable[[], Any]:
        """What calls a user's factory, each time with arguments of its own; they are checked once. See `build`."""
        arguments = self.check(name, params)
        factory = self.factory(name)
        wanted = parameters_of(factory) or {}
        given = {key: value for key, value in offered.items() if key in wanted}

        def make() -> Any:
            with boundary(ConfigError, f"the {self.kind} {name} raised"), users_modules():
                made = factory(**deepcopy(arguments), **given)
            if not isinstance(made, kind):
                names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
                what = f"returned a {type(made).__name__}, which is not a {names}"
                raise ConfigError(f"the {self.kind} {name} {what}: docs/extend.md shows what it must have")
            return made

        return make


def parameters_of(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a factory by name; None for some that are written in C, which do not say theirs."""
    try:
        return inspect.signature(factory).parameters
    except ValueError:
        return None


def package_of(entry: EntryPoint) -> str:
    """Name and version of the package that registers a part."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


def _missing_module(name: str) -> str:
    """The outermost package or module of a dotted name that does not exist; empty where all do. Imports nothing."""
    package, *inner = name.split(".")
    try:
        spec = find_spec(package)
    except ValueError:  # it is imported, and has no specification, as `__main__`
        return ""
    for part in inner:
        if spec is None:
            break
        package = f"{package}.{part}"
        spec = PathFinder.find_spec(package, spec.submodule_search_locations or [])
    return package if spec is None else ""


def _imported(spec: str, what: str) -> Any:
    """What `package.module:name` stands for."""
    module, _, attribute = spec.partition(":")
    try:
        with boundary(ConfigError, f"{what}: the module {module} cannot be imported"), users_modules():
            found: Any = import_module(module)
    except ConfigError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{module}.".startswith(f"{missing.name}."):
            hint = "install its package, or start guerdon in the folder that holds it"
            raise ConfigError(f"{what}: there is no module {missing.name}; {hint}") from missing
        raise
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigError(f"{what}: there is no {name} in {module}{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    return found


def _params_model(factory: Callable[..., Any], offers: Sequence[str]) -> tuple[type[BaseModel], bool]:
    """The model of a factory's arguments, and whether it is the factory's own, for an argument `params`."""
    parameters = parameters_of(factory)
    if parameters is None:
        return create_model("Params", __config__=ConfigDict(extra="allow")), False
    called = factory.__init__ if inspect.isclass(factory) else factory
    try:
        hints = get_type_hints(called)
    except (NameError, TypeError):  # names that only a type checker imports; objects that are called
        hints = {}
    fields: dict[str, Any] = {}
    extra: Literal["allow", "forbid"] = "forbid"
    for i, parameter in enumerate(parameters.values()):
        hint = hints.get(parameter.name, Any)
        if parameter.name == "params" and inspect.isclass(hint) and issubclass(hint, BaseModel):
            return hint, True
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = "allow"
        elif parameter.kind is not parameter.VAR_POSITIONAL and parameter.name not in offers:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[f"argument_{i}"] = (hint, Field(default, alias=parameter.name))
    config = ConfigDict(extra=extra, arbitrary_types_allowed=True)
    return create_model("Params", __config__=config, **fields), False
