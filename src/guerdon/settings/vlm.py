"""Vision-language models as reward models: `reward.model.vlm`.

Names and limits are those of the reward servers and clients that people use.

    VLMSettings(path="Qwen/Qwen2.5-VL-7B-Instruct", question="progress", nframes=8)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field, model_validator

from guerdon.errors import ConfigError
from guerdon.network.retry import TRIES
from guerdon.settings.aliases import ADAPTER_ALIAS, IMPLIED_BY_ALIAS, PATH_ALIAS, QWEN_ALIAS, VLM_ALIASES
from guerdon.settings.base import SET, Because, Bf16, Seed, Settings, Unless, only_with, refuse
from guerdon.settings.label import LEAVE_OUT, OptionalSetting
from guerdon.settings.text_policy import TemplateArguments

VLMType = Literal["qwen_vl", "primo_r1", "true_logprob", "trend", "preference", "robometer", "roboreward"]
VLM_NAMES: dict[str, VLMType] = {
    name: kind for kind in get_args(VLMType) for name in (kind, *VLM_ALIASES.get(kind, ()))
}
"""Names that a configuration may use for each kind."""
NFRAMES, MAX_PIXELS, MOST_PIXELS = 16, 256 * 28 * 28, 16384 * 32 * 32  # most: as qwen-vl-utils for Qwen3-VL
if TYPE_CHECKING:
    VLMName = str
else:
    VLMName = Literal[tuple(VLM_NAMES)]

_IMPLIED: dict[str, dict[str, Any]] = {
    **IMPLIED_BY_ALIAS,
    "robometer": {"max_pixels": MOST_PIXELS},
    "roboreward": {"max_pixels": MOST_PIXELS, "fps": 1.0},
}
_FLAT = {PATH_ALIAS: "path", ADAPTER_ALIAS: "adapter"}

_WRITTEN = {  # keys of answers in text
    "max_tokens", "temperature", "top_p", "seed", "checkpoint_generation", "allow_fallback"
}  # fmt: skip
_QUESTION = {"question", "input", "answer"}
_WINDOW = {"window"}
_IDLE: dict[VLMType, set[str]] = {  # keys that a kind does not have
    "qwen_vl": _WINDOW, "primo_r1": _QUESTION | _WINDOW,
    "true_logprob": _QUESTION | _WINDOW | _WRITTEN | {"score_mode"},
    "trend": _QUESTION | {"rows", "score_mode"}, "preference": _QUESTION | {"rows", "score_mode"},
    "robometer": _WINDOW | _WRITTEN | {"input", "answer", "score_mode", "prompt", "video_as", "fps", "adapter"},
    "roboreward": _QUESTION | _WINDOW | {"score_mode"},
}  # fmt: skip


class TinyVLMSettings(Settings):
    """A vision-language model made in code with random weights, tokenizer and image processor: no download."""

    architecture: Literal["qwen2_vl", "qwen2_5_vl", "qwen3_vl"] = Field("qwen2_5_vl", description="which family")
    hidden_size: int = Field(64, ge=16, le=16384, description="width of both towers")
    layers: int = Field(2, ge=1, le=1000, description="depth of the language model")
    vision_layers: int = Field(2, ge=1, le=1000, description="depth of the vision tower")
    heads: int = Field(4, ge=1, description="attention heads of both towers")
    intermediate: int = Field(128, ge=8, le=65536, description="width inside the feed-forward layers")
    patch_size: int = Field(8, ge=2, le=1024, description="pixels; four patches make a token")

    @model_validator(mode="after")
    def _fits(self) -> TinyVLMSettings:
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 8:
            raise ConfigError.about(
                "hidden_size", f"{self.hidden_size} must be a multiple of 8 times heads {self.heads}"
            )
        return self


class EndpointSettings(Settings):
    """`reward.model.vlm.openai`: a chat completions endpoint (vLLM, SGLang, any compatible one) that sees pictures."""

    base_url: str = Field(description="such as http://127.0.0.1:8000/v1")
    model: str = Field(description="what the endpoint calls the model")
    api_key_env: str | None = Field(None, description="environment variable (or line of ./.env) of the key; null: none")
    concurrency: int = Field(8, ge=1, description="requests under way at a time")
    retries: int = Field(
        TRIES - 1,
        ge=0,
        description="requests sent again after a failure that may pass; pauses double, or are as the server says",
    )
    timeout: float = Field(120.0, gt=0, description="seconds of wall-clock per request")
    deadline: float = Field(600.0, gt=0, description="seconds for a request with all its retries and pauses")
    leave_out: tuple[OptionalSetting, ...] = LEAVE_OUT

    @model_validator(mode="after")
    def _is_address(self) -> EndpointSettings:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError.about(
                "base_url", f"{self.base_url!r} is not an address; write http://host:port/v1 or https://..."
            )
        return self


class VLLMSettings(Settings):
    """`reward.model.vlm.vllm`: vLLM inside this process."""

    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share the model")
    max_model_len: int | None = Field(16384, ge=64, description="longest prompt and answer; null: the model's own")
    gpu_memory_utilization: float = Field(0.8, gt=0, le=1, description="share of the GPU's memory that it takes")


_OWN = Because(Unless("openai"), "backend openai, whose endpoint has its own model")


class VLMSettings(Settings):
    """`reward.model.vlm`: which model, which question, which frames."""

    path: str | None = only_with(None, backend=_OWN, description=f"folder or hub id of the model ({PATH_ALIAS})")
    adapter: str | None = only_with(
        None, backend=_OWN, description=f"peft folder on top of it ({ADAPTER_ALIAS}); kept as an adapter"
    )
    backend: Literal["transformers", "openai", "vllm"] = Field(
        "transformers", description="in this process, behind an HTTP endpoint, or by vLLM in this process"
    )
    question: Literal["completed", "progress"] = Field(
        "completed",
        description="qwen_vl: is the task completed (yes or no), or how far is it (0 to 100); robometer: probability "
        "of success, or progress (as its config says where this is not set)",
    )
    input: Literal["image", "video"] | None = Field(
        None, description="qwen_vl: single frames or videos; null: images for completed, videos for progress"
    )
    prompt: str | None = Field(None, description="name of a prompt template; null: the one of question and input")
    chat_template_kwargs: TemplateArguments = Field(
        {},
        description="arguments of the model's chat template, such as {enable_thinking: false}; with backend openai in "
        "the body of a request, as vLLM and SGLang take them",
    )
    answer: Literal["soft", "hard"] | None = Field(
        None,
        description="completed: soft: p(yes) / (p(yes) + p(no)) of the next token; hard: what it writes, 1 or 0. null: "
        f"soft (model_type {QWEN_ALIAS}: hard)",
    )
    score_mode: Literal["auto", "percentage", "unit"] = Field(
        "auto",
        description="how a number is read. percentage: divided by 100; unit: as it is; auto: divided where it has a % "
        "or is above 1, and 1 itself is read as the prompt says",
    )
    allow_fallback: bool = Field(
        False,
        description="count a value that was read from a sentence, not from an answer in the requested form; "
        "false: the failure `fallback`",
    )
    rows: Literal["all", "last"] | None = Field(
        None,
        description="qwen_vl, robometer, roboreward: judge every row of an episode (videos up to that row), or the "
        "whole episode once; null: all for images and robometer, last for videos",
    )
    nframes: int = Field(NFRAMES, ge=1, le=128, description="frames of a video, the first and the last among them")
    max_pixels: int = Field(MAX_PIXELS, ge=784, le=MOST_PIXELS, description="larger frames are made smaller")
    video_as: Literal["video", "images"] | None = Field(
        None,
        description="how a model gets a video: in one piece (openai, vllm: a video_url as vLLM takes it), or as its "
        "frames one by one; null: video for transformers, images for the others",
    )
    fps: float = only_with(4.0, gt=0, backend="transformers", description="frames per second given to the model")
    max_tokens: int | None = Field(None, ge=1, description="a longer reply is a failure; null: the prompt's own")
    temperature: float = Field(0.0, ge=0, description="of answers; 0: the likeliest token")
    top_p: float = only_with(1.0, gt=0, le=1, temperature=SET, description="of answers")
    seed: Seed = only_with(0, temperature=SET, description="of answers")
    checkpoint_generation: bool = only_with(
        False,
        backend="transformers",
        description="the checkpoint's generation_config.json is applied (repetition_penalty, num_beams, "
        "...), except for max_tokens, temperature and top_p; false: only the tokens that end an answer",
    )
    window: int = Field(5, ge=2, description="trend, preference: rows that are looked at together")
    batch_size: int = only_with(8, ge=1, backend="transformers", description="questions per forward pass")
    bf16: Bf16 = only_with(
        "auto", backend="transformers", description="compute in bfloat16; auto: where the hardware has it"
    )
    openai: EndpointSettings | None = Field(None, description="backend openai: the endpoint")
    vllm: VLLMSettings = only_with(VLLMSettings(), backend="vllm", description="its engine")

    @model_validator(mode="after")
    def _has_an_endpoint(self) -> VLMSettings:
        if (self.backend == "openai") != (self.openai is not None):
            raise ConfigError.about("backend", "openai, and only that, needs openai: base_url and model")
        return self

    def check(self, kind: VLMType) -> None:
        """Refuse what this kind of model does not have.

        Raises:
            ValueError: a key would do nothing.
        """
        given = self.model_fields_set
        refuse(_IDLE[kind] & given, f"model_type {kind}")
        if kind == "robometer" and self.backend != "transformers":
            raise ConfigError(
                "model_type robometer has heads that vLLM and endpoints do not read: remove backend", key="backend"
            )
        if kind == "qwen_vl":
            if self.prompt is not None:
                refuse({"question", "input"} & given, "prompt, which says both")
            elif self.question == "progress":
                refuse({"answer"} & given, "question progress")
            else:
                refuse({"score_mode"} & given, "question completed")
                if self.answer != "hard":
                    refuse(_WRITTEN & given, "answer soft")
            usual = "image" if self.question == "completed" else "video"
            if self.prompt is None and (self.input or usual) == "image":
                refuse({"nframes", "fps", "video_as"} & given, "input image")

    @property
    def prompt_name(self) -> str:
        """The template of `qwen_vl`: the one named, or that of question and input."""
        if self.prompt is not None:
            return self.prompt
        if self.question == "completed":
            return "completed_video" if self.input == "video" else "completed"
        return "completion_percentage_image" if self.input == "image" else "completion_percentage"


def vlm_form(given: dict[str, Any]) -> dict[str, Any]:
    """The keys of `reward.model` with flat names moved into `vlm`, and with what the name of the model implies.

    Raises:
        ValueError: a value stands in two places.
    """
    name = given.get("model_type")
    if name not in VLM_NAMES:
        return given
    inside = given.get("vlm")
    asked = inside.model_dump(exclude_unset=True) if isinstance(inside, VLMSettings) else inside
    if asked is not None and not isinstance(asked, dict):
        return given
    asked = dict(asked or {})
    for flat, key in _FLAT.items():
        if given.get(flat) is None:
            continue
        if asked.get(key) is not None:
            raise ConfigError.about(flat, f"and vlm.{key} are two names of one thing; give one of them")
        asked[key] = given[flat]
    rest = {key: value for key, value in given.items() if key not in _FLAT}
    implied = implied_by(str(name), asked)
    return {**rest, "vlm": implied} if implied else rest


def implied_by(name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The keys of `vlm` with what the name of a model implies, where they do not say otherwise."""
    implied = dict(_IMPLIED.get(name, {}))
    if asked.get("prompt") is not None or asked.get("question", "completed") != "completed":
        implied.pop("answer", None)
    if asked.get("prompt") is not None:
        implied.pop("question", None)
    if asked.get("backend", "transformers") != "transformers":
        implied.pop("fps", None)
    return {**implied, **asked}


def check_vlm(name: str, settings: VLMSettings | None, checkpoint_path: str | None) -> None:
    """Refuse settings of `reward.model` that do not make a vision-language reward model.

    Raises:
        ValueError: there is no model, or a key would do nothing.
    """
    asked = settings or VLMSettings()
    if checkpoint_path is None and asked.path is None and asked.backend != "openai":
        raise ConfigError.about(
            "model_type",
            f"{name} needs checkpoint_path (a folder that `guerdon train` wrote), vlm.path "
            f"({PATH_ALIAS}), or vlm.backend: openai with its endpoint",
        )
    if checkpoint_path is not None and asked.path is not None:
        raise ConfigError.about("vlm.path", f"({PATH_ALIAS}) and checkpoint_path are both given; remove one of them")
    if checkpoint_path is not None and asked.backend == "openai":
        raise ConfigError.about("checkpoint_path", "would do nothing with vlm.backend openai; remove it")
    try:
        asked.check(VLM_NAMES[name])
    except ConfigError as error:
        raise ConfigError(str(error), key=f"vlm.{error.key}") from error
