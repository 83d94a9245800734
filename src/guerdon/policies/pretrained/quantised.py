"""Weights that are stored in fewer bits: what becomes of them is decided before any is read.

| `quant_method` | becomes | needs |
|---|---|---|
| `fp8`, `mxfp8`, `mxfp4` | floats, which are trained and saved as any | |
| `compressed-tensors`, `bitsandbytes` | floats, for scoring and under adapters | the package of its arithmetic |
| `gptq`, `awq` | stays as it is, for scoring and under adapters | the package with its kernel |

Everything else is refused by its name.

    form = form_of(config, "the language model 'models/gpt-oss-20b'")        # raises where it cannot be read
    model = kind.from_pretrained(path, **form.options())
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError
from guerdon.policies.pretrained.unused import BFLOAT16


@dataclass(frozen=True)
class StoredForm:
    """How weights are stored.

    Attributes:
        method: `quant_method` of the configuration.
        config: the class of transformers that asks for floats (`dequantize`); None: it has none.
        module: imported by transformers to read it; None: torch is enough.
        package: with that module, for pip.
        trains: whether all weights may be trained, which are floats then.
        floats: whether it becomes floats when it is read.
    """

    method: str
    config: str | None = None
    module: str | None = None
    package: str = ""
    trains: bool = False
    floats: bool = True

    def options(self) -> dict[str, Any]:
        """What `from_pretrained` is given to make floats of the weights while they are read."""
        if self.config is None:
            return {}
        import transformers

        return {"quantization_config": getattr(transformers, self.config)(dequantize=True)}


FORMS = (
    StoredForm("fp8", "FineGrainedFP8Config", trains=True),
    StoredForm("mxfp8", "FineGrainedFP8Config", trains=True),
    StoredForm("mxfp4", "Mxfp4Config", trains=True),
    StoredForm("compressed-tensors", "CompressedTensorsConfig", "compressed_tensors", "compressed-tensors"),
    StoredForm("bitsandbytes", None, "bitsandbytes", "bitsandbytes"),
    StoredForm("gptq", None, "gptqmodel", "gptqmodel optimum", floats=False),
    StoredForm("awq", None, "gptqmodel", "gptqmodel", floats=False),
)


def quantization_of(config: Any) -> dict[str, Any] | None:
    """How the weights of a model are stored, where they are not floats."""
    for part in (config, config.get_text_config()):
        given = getattr(part, "quantization_config", None) or getattr(part, "compression_config", None)
        if given is not None:
            return given if isinstance(given, dict) else dict(given.to_dict())
    return None


def form_of(config: Any, where: str) -> StoredForm | None:
    """How the weights of a model are stored; None: as floats.

    Args:
        config: of transformers.
        where: named in errors.

    Raises:
        CheckpointError: nothing here can read them.
        MissingDependencyError: the package that reads them is not installed.
    """
    stored = quantization_of(config)
    if stored is None:
        return None
    method = stored.get("quant_method")
    if method is None and (stored.get("load_in_4bit") or stored.get("load_in_8bit")):
        method = "bitsandbytes"
    form = next((form for form in FORMS if form.method == method), None)
    if form is None:
        known = ", ".join(form.method for form in FORMS)
        raise CheckpointError(
            f"{where}: its weights are stored by {method!r}, which guerdon does not read (it reads {known}): {BFLOAT16}"
        )
    if form.module is not None and find_spec(form.module) is None:
        raise MissingDependencyError(
            f"{where}: its weights are stored by {method}, which needs {form.package}: pip install {form.package}; or "
            f"{BFLOAT16}"
        )
    return form


def check_trains(form: StoredForm | None, *, adapter: bool, where: str) -> None:
    """Refuse to train all weights of a model that are stored in a form that is read for scoring and adapters.

    Args:
        form: of the weights.
        adapter: whether an adapter is trained.
        where: names the model in the error.

    Raises:
        ConfigError: they are.
    """
    if form is not None and not form.trains and not adapter:
        raise ConfigError(
            f"{where}: its weights are stored by {form.method}, for scoring and for training under an adapter: set "
            f"lora, or {BFLOAT16}",
            key="policy.path",
        )


def forget_storage(config: Any) -> None:
    """Take out of a configuration how the files store weights, where the model has floats."""
    for part in (config, config.get_text_config()):
        for key in ("quantization_config", "compression_config"):
            vars(part).pop(key, None)


def mark(model: Any, form: StoredForm | None) -> None:
    """Remember how the weights of a model were stored."""
    model.stored_form = form
