"""A reward model on a reward server: where it is, what is sent, and what happens when it does not answer.

The names are those of the LIBERO guide's client.

    RemoteSettings(endpoint="http://127.0.0.1:18080/v1/rewards", backend="resnet")
"""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from guerdon.config.loading import validate
from guerdon.errors import ConfigError
from guerdon.network.retry import TRIES
from guerdon.settings.base import Because, PythonSettings, only_with

Upload = Literal["npy", "jpeg", "mp4", "path"]
NATIVE, SCORE = "/v1/rewards", "/score"
_BRINGS_A_PROMPT = {"prompt_template", "system_prompt", "user_prompt"}
_VIDEO = Because(("mp4", "path"), "upload {}, which writes no video")
_OPTIONS = {"score_mode": ("auto", "percentage", "unit"), "prompt": None}


def remote_at(address: str) -> RemoteSettings:
    """The settings of a server by its address alone; `?model=name` behind it picks one of its models.

    Raises:
        ConfigError: it is not an address.
    """
    endpoint, _, backend = address.partition("?model=")
    return validate(RemoteSettings, {"endpoint": endpoint, "backend": backend or None}, origin=address)


class RemoteSettings(PythonSettings):
    """Client of a reward server."""

    endpoint: str = Field(
        "http://127.0.0.1:18080/score",
        description="the server, by one of its routes: .../score asks for one episode per request, .../v1/rewards "
        "(or the bare address) for many; text needs the second",
    )
    backend: str | None = Field(None, description="the server's name of the model; null: the server's default")
    backend_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="for the model: score_mode (auto, percentage, unit), and prompt, the name of one of its templates",
    )
    timeout: float = Field(120.0, gt=0, description="seconds for a whole batch, all tries and pauses included")
    connect_timeout: float = Field(2.0, gt=0, description="seconds to reach the server")
    read_timeout: float = Field(60.0, gt=0, description="seconds of silence after which a try is given up")
    tries: int = Field(
        TRIES, ge=1, description="per request: after 408, 429, 5xx or a broken connection it is sent again; the "
        "pauses between 8 tries add up to at least 50 s, so that a server may restart meanwhile"
    )  # fmt: skip
    nframes: int = Field(
        16, ge=1, le=128, description="frames sent of an episode, for models that judge whole episodes; first and last "
        "among them"
    )  # fmt: skip
    max_pixels: int = Field(200704, ge=784, le=1605632, description="larger frames are made smaller")
    fps: int = only_with(4, ge=1, upload=_VIDEO, description="frames per second of the video")
    upload: Upload = Field(
        "npy",
        description="how frames travel: npy as they are; jpeg and mp4 smaller and close; path: a video written to "
        "temp_video_dir, whose name is sent to a server that reads that folder (its --media-root)",
    )
    max_batch_items: int = only_with(
        32,
        ge=1,
        form=Because("native", f"an endpoint {SCORE}, which takes one episode per request"),
        description="episodes per request to .../v1/rewards",
    )
    concurrency: int = Field(4, ge=1, description="requests under way at a time")
    fail_on_request_error: bool = Field(
        False, description="an episode that could not be scored stops everything; in a run that is on_failure: raise"
    )
    fallback: Literal["none", "native"] = Field(
        "none",
        description="native: where the score is missing, true success takes its place (1 or 0); it is counted as a "
        "failure all the same",
    )
    keep_temp_video: bool = only_with(False, upload=_VIDEO, description="keep the videos in temp_video_dir")
    temp_video_dir: str | None = only_with(
        None,
        upload=_VIDEO,
        in_memory=Because(False, "upload mp4 unless keep_temp_video: the video is made in memory"),
        description="where videos are written; they are removed after use",
    )
    token_env: str = Field("GUERDON_TOKEN", description="environment variable with the server's token, if it needs one")

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, endpoint: str) -> str:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{endpoint!r} is not an address; write http://host:port{NATIVE} or https://...")
        if parts.username or parts.password:
            raise ValueError("a token does not belong into an address: put it into the variable that token_env names")
        if parts.query or parts.fragment:
            raise ValueError(f"{endpoint!r} has more than a path behind the host; remove it")
        if parts.path.rstrip("/") not in ("", "/v1", NATIVE, SCORE):
            raise ValueError(f"{endpoint!r} is not a route that is known: end it with {NATIVE} or {SCORE}")
        return endpoint

    @model_validator(mode="after")
    def _fits(self) -> RemoteSettings:
        brought = _BRINGS_A_PROMPT & set(self.backend_kwargs)
        if brought:
            raise ConfigError.about(
                f"backend_kwargs.{sorted(brought)[0]}",
                ": a client names a prompt of the server (prompt), it does not "
                "send one; what a client sends could be written by what is judged",
            )
        for key, value in self.backend_kwargs.items():
            if key not in _OPTIONS:
                raise ConfigError.about(f"backend_kwargs.{key}", f"is not known; there are {', '.join(_OPTIONS)}")
            allowed = _OPTIONS[key]
            if not isinstance(value, str) or (allowed is not None and value not in allowed):
                raise ConfigError.about(
                    f"backend_kwargs.{key}", f"is {value!r}; allowed: {', '.join(allowed or ('a name',))}"
                )
        if self.upload == "path" and self.temp_video_dir is None:
            raise ConfigError.about(
                "upload", "path needs temp_video_dir: a folder that the server reads (its --media-root)"
            )
        if self.keep_temp_video and self.temp_video_dir is None:
            raise ConfigError.about("keep_temp_video", "needs temp_video_dir: where to keep them")
        if self.fail_on_request_error and self.fallback != "none":
            raise ConfigError.about("fail_on_request_error", "and fallback exclude each other; remove one of them")
        return self

    @property
    def form(self) -> Literal["native", "score"]:
        """Which wire format the endpoint speaks."""
        return "score" if urlsplit(self.endpoint).path.rstrip("/") == SCORE else "native"

    @property
    def in_memory(self) -> bool:
        """Whether a video is in no file."""
        return self.upload == "mp4" and not self.keep_temp_video

    def in_a_run(self) -> RemoteSettings:
        """The same, with failures handed back: there `on_failure` decides what they do."""
        return self.model_copy(update={"fail_on_request_error": False})

    @property
    def address(self) -> str:
        """The endpoint, and which of its models: what `remote_at` reads."""
        return self.endpoint if self.backend is None else f"{self.endpoint}?model={self.backend}"

    @property
    def base(self) -> str:
        """The address without a route."""
        parts = urlsplit(self.endpoint)
        return f"{parts.scheme}://{parts.netloc}"
