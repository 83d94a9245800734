"""Writes docs/knobs.md: every key of a configuration, from the settings models themselves.

    python docs/make_knobs.py            write the page
    python docs/make_knobs.py --check    exit 1 when it is out of date

The models give key, default and meaning; the tables below say which of the five guides that guerdon comes from
names a key, and what was chosen where two of them disagree.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from guerdon.config.schema import discriminator
from guerdon.settings.aliases import RLINF_KEYS, VLA_OPTIONS, Option
from guerdon.settings.base import ByName, Named, OnlyWith, names_in
from guerdon.settings.other_trainers import OTHER_NAMES
from guerdon.settings.reward_models import RewardModelSettings
from guerdon.settings.reward_source import SOURCE_KEYS, RobotSource, RunSource, TextSource
from guerdon.settings.study import Study

PAGE = Path(__file__).with_name("knobs.md")

GUIDES = {
    0: "VLM process reward inside robot PPO",
    1: "PRIME, online implicit process reward",
    2: "LIBERO-10 reward comparison with a reward server",
    3: "ResNet image reward",
    4: "Process rewards for mathematics from a verifier",
}

NAMED = {
    "runner.resume_dir": "3",
    "runner.save_video": "0",
    "runner.logger.log_path": "3",
    "runner.logger.experiment_name": "3",
    "env.task_suite_name": "2",
    "env.data_collection.enabled": "3 (collecting while warming up)",
    "reward.use_reward_model": "3; 0 `process_reward_model`; 2 `reward_model.enable`",
    "reward.group_name": "3",
    "reward.combine_mode": "3",
    "reward.env_reward_weight": "3",
    "reward.sources.<name>.reward_mode": "3; 1 `prime_granularity: token / whole`",
    "reward.sources.<name>.success_reward": "3",
    "reward.sources.<name>.fail_reward": "3",
    "reward.sources.<name>.use_negative_reward": "3",
    "reward.sources.<name>.reward_threshold": "3",
    "reward.sources.<name>.reward_weight": "3; 0 `prm_reward_weight`; 1 `rm_coef`",
    "reward.sources.<name>.reward_coef": "2",
    "reward.sources.<name>.shaping": "2 `use_rel_reward`; 3 (threshold)",
    "reward.sources.<name>.gamma": "1 `reward_model_gamma`",
    "reward.sources.<name>.on_failure": "2 `fail_on_request_error`; 0 (falls back to zeros)",
    "reward.sources.<name>.model.model_type": "3; 0 `DummyRM`",
    "reward.sources.<name>.model.remote.endpoint": "2",
    "reward.sources.<name>.model.remote.timeout": "2",
    "reward.sources.<name>.model.remote.nframes": "2",
    "reward.sources.<name>.model.remote.max_pixels": "2",
    "reward.sources.<name>.model.remote.backend": "2",
    "reward.sources.<name>.model.remote.backend_kwargs": "2",
    "reward.sources.<name>.model.remote.fps": "2",
    "reward.sources.<name>.model.remote.fail_on_request_error": "2",
    "reward.sources.<name>.model.remote.keep_temp_video": "2",
    "reward.sources.<name>.model.remote.temp_video_dir": "2",
    "reward.sources.<name>.model.vlm.path": "0 `prm_model_name_or_path`; 2 `--model-path`",
    "reward.sources.<name>.model.vlm.adapter": "0 `prm_checkpoint_path`",
    "reward.sources.<name>.model.vlm.nframes": "2",
    "reward.sources.<name>.model.vlm.max_pixels": "2",
    "reward.sources.<name>.model.vlm.score_mode": "2 `backend_kwargs.score_mode`",
    "reward.sources.<name>.binary_reward": "2",
    "reward.sources.<name>.success_threshold": "2",
    "reward.sources.<name>.use_rel_reward": "2",
    "reward.sources.<name>.model.checkpoint_path": "3; 0 `prm_checkpoint_path`",
    "reward.sources.<name>.model.arch": "3",
    "reward.sources.<name>.model.hidden_dim": "3",
    "reward.sources.<name>.model.dropout": "3",
    "reward.sources.<name>.model.image_size": "3",
    "reward.sources.<name>.model.debug_save_dir": "3",
    "reward.sources.<name>.model.update": "1",
    "train.<name>.data_path": "3 `data.data_path`",
    "train.<name>.arch": "3",
    "train.<name>.hidden_dim": "3",
    "train.<name>.dropout": "3",
    "train.<name>.image_size": "3",
    "train.<name>.reward_threshold": "3",
    "algorithm.adv_estimator": "1, 2 (GRPO)",
    "algorithm.gamma": "1",
    "algorithm.adv_params.verifier_gamma": "1",
    "algorithm.adv_params.reward_model_gamma": "1",
    "data.n_samples": "1",
    "data.filter_accuracy": "1",
    "data.filter_truncated": "1",
    "data.accuracy_lower_bound": "1",
    "data.accuracy_upper_bound": "1",
    "data.oversample_factor": "1",
    "data.system_prompt": "1",
    "reward_model.rm_coef": "1",
    "reward_model.rm_type": "1",
    "reward_model.prime_granularity": "1",
    "reward_model.prime_norm": "1",
    "reward_model.mini_batch_size": "1",
    "reward_model.micro_batch_size": "1",
    "reward_model.prime_model.path": "1",
    "reward_model.prime_model.ref_type": "1",
    "reward_model.prime_model.ref_path": "1",
    "reward_model.prime_model.update": "1",
    "reward_model.prime_model.beta_train": "1",
    "reward_model.prime_model.loss_type": "1",
    "reward_model.prime_model.use_remove_padding": "1",
    "label.method": "4 `--method`",
    "label.reward": "4 `--reward`",
    "label.num_rollouts": "4 `--num_rollouts`",
    "label.num_samples": "4 `--num_samples`",
    "label.mining.min_fail_rate": "4 (difficulty filter)",
    "label.mining.max_fail_rate": "4 (difficulty filter)",
    "policy.path": "4 `--sft_model`",
    "policy.vla_path": "0",
    "policy.center_crop": "0",
    "policy.use_lora": "0",
    "policy.lora_rank": "0",
    "policy.lora_dropout": "0",
    "policy.decoding.temperature": "0 `temperature`",
    "compare.arms": "2 (runs A, B, C)",
}

_PRIME = ("prime_", "mini_batch_size", "micro_batch_size")  # keys of the section that a source has, too
NAMED |= {
    f"reward.sources.<name>.model.{key}": guide
    for name, guide in NAMED.items()
    if (key := name.removeprefix("reward_model.")).startswith(_PRIME)
}

SOURCES = {RobotSource: "a robot", TextSource: "text", RunSource: "a run"}
"""The forms of a source, which follow from its model, and what they are sources of."""

SAME = {"bc.sample_weighting.model": "reward.sources.<name>.model"}
"""Sections whose keys are in the table already."""

CLASHES = """\
| what | the guides say | guerdon says |
|---|---|---|
| weight of a learned reward | `prm_reward_weight` (0), `rm_coef` (1), `reward_weight` (3) | `reward_weight` |
| scale of a learned reward before its weight | `reward_coef` (2) | `reward_coef`; it comes before the weight, and so \
also changes what is logged as the source's return |
| learned reward on or off | `process_reward_model` (0), `reward_model.enable` (2), `use_reward_model` (3) | \
`reward.use_reward_model`; `reward.process_reward_model` is a short form of a source `prm` |
| where the reward's settings stand | flags (0), `reward_model` (1), `env.train.reward_model` (2), `reward` (3) | \
`reward`, one place for training; evaluation never uses a learned reward |
| reward per step or once | `prime_granularity: token / whole` (1), `reward_mode: per_step / terminal` (3) | \
`reward_mode: per_step / terminal` |
| learned plus native reward | always added (0), separate advantages (1), `combine_mode` (3) | `combine_mode` for the \
weights; sources are kept apart until the advantage, as in 1 |
| weights of the base model | `prm_model_name_or_path` (0), `path` (1), `--model-path` (2) | `pretrained_path` where a \
model is trained |
| weights of the trained model | `prm_checkpoint_path` (0), `checkpoint_path` (3) | `checkpoint_path` |
| model that gives zeros | `DummyRM` when no path is given (0) | `model_type: dummy` (or `constant`); \
`process_reward_model` without a path too |
| a measurement that fails | zeros (0), `fail_on_request_error` (2) | `on_failure: drop / neutral / raise`, default \
`drop` |
| discount of the learned reward | `reward_model_gamma` (1) | `gamma` of the source; that of the native reward is \
`algorithm.gamma` (`verifier_gamma` in 1) |
| a score as 0 or 1 | `binary_reward` (2), threshold always (3) | `shaping: threshold` or `raw`; `binary_reward` is \
taken too and means one of them |
| where success begins | `success_threshold` (2: from it on), `reward_threshold` (3: above it) | both words, each with \
its meaning |
| change of a score | `use_rel_reward` (2) | `shaping: relative`; `use_rel_reward` is taken too |
| where the reward server is | `endpoint` and what goes with it, in `env.train.reward_model` (2) | the same names, \
under `model` (or `model.remote`) of a source with `model_type: remote` |
| pictures from the environment variable | `DEBUG_IMAGE_SAVE_DIR` (3) | the same name, where `debug_save_dir` is \
not set |"""


_DEEPEST = 6  # dots of a key

Row = tuple[str, str, str, str, str]


def settings_rows() -> Iterator[Row]:
    """Key, allowed values, default, meaning and what it needs, of every leaf, in the order of the models."""
    yield from _walk(Study, "")


def page() -> str:
    """The whole page."""
    lines = [
        "# Every key of a configuration",
        "",
        "Written by `python docs/make_knobs.py` from `src/guerdon/settings/`; a test keeps it up to date. `<name>` is "
        "a name of your choice. *required* means: no default, once its section is there. With one reward model, the "
        "keys of `reward.sources.<name>` stand directly under `reward`; whether it is a source of a robot, of text or "
        "of a run follows from its model. A key with an entry in *only with* does nothing with other values of these "
        "neighbours, and is refused there.",
        "",
        "The column *guide* says which of the guides that guerdon comes from names the key (under the name given, "
        "where that differs):",
        "",
        *[f"- {number}: {title}" for number, title in GUIDES.items()],
        "",
    ]
    section = None
    for key, *cells in settings_rows():
        top = key.split(".")[0] if "." in key else "the study itself"
        if top != section:
            section = top
            lines += [] if not lines[-1] else [""]
            lines += [
                f"## {_title(top)}",
                "",
                "| key | values | default | meaning | only with | guide |",
                "|" + "---|" * 6,
            ]
        row = (f"`{key}`", *cells, NAMED.get(key, ""))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    lines += ["", "## Where the guides clash", "", CLASHES, "", *option_lines()]
    return "\n".join(lines)


def option_lines() -> list[str]:
    """The options of the VLA guide's training script, and what they are here."""
    lines = [
        "## Options of the VLA guide",
        "",
        "The options of the guide's training script stand for keys of this configuration: `guerdon run STUDY lr=5e-5` "
        "is `algorithm.learning_rate=5e-5`; at the top of a file they may stand too. Values in the last column are "
        "what guerdon does without being told, and are accepted; any other value of an option without a key is "
        "refused, with the reason that is given here.",
        "",
        "| option | key | remark | accepted |",
        "|---|---|---|---|",
    ]
    lines += _rows_of_names(VLA_OPTIONS)
    lines += [
        "",
        "## Keys of RLinf",
        "",
        "Keys of the LIBERO guide's configuration files, on the command line and in a file: `guerdon run STUDY "
        "actor.model.model_path=FOLDER`. Two names of one key must agree.",
        "",
        "| name | key | remark | accepted |",
        "|---|---|---|---|",
        *_rows_of_names(RLINF_KEYS),
    ]
    lines += [
        "",
        "## Names of other trainers",
        "",
        "Keys of verl, TRL, OpenRLHF and prime-rl. Where nothing stands in the last column, the value means the same. "
        "A study that has such a name is refused with this hint, since most mean something else: per device, per "
        "group, in updates.",
        "",
        "| name | of | here | how to convert a value |",
        "|---|---|---|---|",
        *(f"| `{name}` | {one.trainers} | {_keys(one.key)} | {one.convert} |" for name, one in OTHER_NAMES.items()),
        "",
        "These names are accepted for keys:",
        "",
        "| name | key |",
        "|---|---|",
        *(f"| `{name}` | `{key}` |" for name, key in sorted(_accepted(Study, ""))),
    ]
    return [*lines, ""]


def _keys(names: str) -> str:
    """Keys of a cell."""
    return ", ".join(f"`{name}`" for name in names.split(", ") if name)


def _accepted(model: type[BaseModel], prefix: str) -> set[tuple[str, str]]:
    """The other names of keys in a model and those inside it, each with its key."""
    found: set[tuple[str, str]] = set()
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        others = [str(one) for one in alias.choices if one != name] if isinstance(alias, AliasChoices) else []
        found |= {(f"{prefix}{other}", f"{prefix}{name}") for other in others}
        inner = f"{prefix}{name}." if name not in ("sources", "train", "arms") else f"{prefix}{name}.<name>."
        for one in _inner(field.annotation):
            found |= _accepted(one, inner) if inner.count(".") < _DEEPEST else set()
    return found


def _rows_of_names(names: dict[str, Option]) -> list[str]:
    """A row for each name of a guide."""
    lines = []
    for name, option in names.items():
        key = "refused" if option.key is None else f"`{option.key}`"
        same = ", ".join(f"`{str(v).lower() if isinstance(v, bool) else v}`" for v in option.same)
        lines.append(f"| `{name}` | {key} | {option.why} | {same} |")
    return lines


def _title(top: str) -> str:
    return top if " " in top else f"`{top}`"


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Row]:
    """Leaves first at the top level, so that its plain keys stand together."""
    fields = sorted(model.model_fields.items(), key=lambda f: bool(_inner(f[1].annotation))) if not prefix else None
    for name, field in fields or model.model_fields.items():
        yield from _rows(prefix + name, field)


def _rows(key: str, field: FieldInfo) -> Iterator[Row]:
    """The row of a plain key, the rows of a section."""
    name, inner = key.rpartition(".")[2], _inner(field.annotation)
    if name in ("sources", "train", "arms") and inner:
        key += ".<name>"
    elif name == "mixture":
        key += "[]"
    if key in SAME:
        yield key, f"as `{SAME[key]}`", _default(field), field.description or "", _needs(field)
    elif not inner:
        yield key, _allowed(field), _default(field), field.description or "", _needs(field)
    elif len(inner) == 1:
        yield from _walk(inner[0], key + ".")
    elif set(inner) == set(SOURCES):
        yield from _sources(key)
    else:
        marks = [*field.metadata, *(mark for part in get_args(field.annotation) for mark in get_args(part)[1:])]
        chosen = next((mark.default for mark in marks if isinstance(mark, ByName)), "")
        yield from _union(inner, key, f"`{chosen}`" if chosen else "")


def _allowed(field: FieldInfo) -> str:
    """The values of a key: of a registry its names, else what its type says."""
    named = next((mark.registry for mark in field.metadata if isinstance(mark, Named)), None)
    return _values(field.annotation) if named is None else _names(named.builtins, own=True)


def _sources(key: str) -> Iterator[Row]:
    """Keys of the forms of a source, in the order of a file; a key that only some have says which."""
    yield from _rows(f"{key}.model", FieldInfo.from_annotation(RewardModelSettings))
    for name in SOURCE_KEYS[1:]:
        owners = [form for form in SOURCES if name in form.model_fields]
        field = owners[0].model_fields[name]
        if _inner(field.annotation):
            yield from _rows(f"{key}.{name}", field)
            continue
        only = "" if len(owners) == len(SOURCES) else f"a source of {' or '.join(SOURCES[form] for form in owners)}"
        yield _row_of_forms(f"{key}.{name}", name, {SOURCES[form]: form for form in owners}, only)


def _row_of_forms(key: str, name: str, owners: dict[str, type[BaseModel]], only: str) -> Row:
    """The row of a key that several forms have, by what they are called; `only`: which forms have it."""
    fields = {kind: form.model_fields[name] for kind, form in owners.items()}
    allowed = _by_kind({kind: _allowed(field) for kind, field in fields.items()})
    default = _by_kind({kind: _default(field) for kind, field in fields.items()})
    meaning = _by_kind({kind: field.description or "" for kind, field in fields.items()})
    needs = _by_kind({kind: _needs(field) for kind, field in fields.items()})
    return key, allowed, default, meaning, "; ".join(part for part in (only, needs) if part)


def _union(models: list[type[BaseModel]], key: str, chosen: str) -> Iterator[Row]:
    """Keys of the members of a union, `chosen` where none is named; a key that only some have says which."""
    seen: dict[str, list[type[BaseModel]]] = {}
    for model in models:
        for name in model.model_fields:
            seen.setdefault(name, []).append(model)
    tag = discriminator(tuple(models))
    assert tag is not None, f"{key}: nothing tells {models} apart"
    names = {model: names_in(model, tag) for model in models}
    kinds = {model: named[0] if named else "your own" for model, named in names.items()}
    allowed = _names([name for named in names.values() for name in named], own=not all(names.values()))
    said = {k: model.model_fields[tag].description or "" for model, k in kinds.items()}
    meaning = "; ".join(f"{k}: {text}" for k, text in said.items() if text) or "which kind"
    yield f"{key}.{tag}", allowed, chosen, meaning, ""
    for name, owners in seen.items():
        if name == tag:
            continue
        field = owners[0].model_fields[name]
        if _inner(field.annotation):
            yield from _rows(f"{key}.{name}", field)
            continue
        named = {kinds[owner]: owner for owner in owners}
        only = "" if len(owners) == len(models) else f"{tag} {', '.join(named)}"
        yield _row_of_forms(f"{key}.{name}", name, named, only)


def _names(names: Iterable[str], *, own: bool) -> str:
    """Names of parts, and how one's own are named."""
    return ", ".join(
        [f"`{name}`" for name in names] + (["`package.module:factory`", "a registered name"] if own else [])
    )


def _needs(field: FieldInfo) -> str:
    """The values of its neighbours with which a key does something."""
    return "; ".join(str(mark) for mark in field.metadata if isinstance(mark, OnlyWith))


def _by_kind(said: dict[str, str]) -> str:
    """What every kind says, once where they agree."""
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    kinds: dict[str, list[str]] = {}
    for kind, text in said.items():
        if text:
            kinds.setdefault(text, []).append(kind)
    return " / ".join(f"{text} ({', '.join(names)})" for text, names in kinds.items())


def _inner(annotation: Any) -> list[type[BaseModel]]:
    """The settings models inside an annotation: itself, of a union, of the values of a mapping or tuple."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _inner(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return []
    return [model for part in get_args(annotation) for model in _inner(part)]


def _values(annotation: Any) -> str:
    """An annotation as people write it in YAML."""
    origin, args = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "null"
    if origin is Annotated:
        sizes = getattr(args[1], "func", None)
        return "size in pixels" if sizes is not None else _values(args[0])
    if origin is Literal:
        return ", ".join(f"`{a}`" for a in args)
    if origin is dict:
        return "mapping"
    if origin is tuple:
        if args[-1] is Ellipsis:
            return "list"
        return "size in pixels" if int in args else "two numbers"
    if origin is Union or args:
        return " or ".join(dict.fromkeys(_values(a) for a in args))
    words = {str: "text", int: "whole number", float: "number", bool: "true, false"}
    return words.get(annotation, str(annotation))


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "empty"
    if field.default is PydanticUndefined:
        return "*required*"
    return f"`{_plain(field.default)}`"


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_plain(v) for v in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def main() -> int:
    """Write the page, or say whether it is up to date."""
    text = page()
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
