"""The configuration of `guerdon serve`: models, access, limits.

Names and defaults that the first reward server had (`backend`, `model_path`, `gpu_ids`, `tensor_parallel_size`, ...)
are kept.

    ServeSettings(models={"prm": {"backend": "constant"}}, port=0)
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from guerdon.errors import ConfigError
from guerdon.secrets import clean_key
from guerdon.settings.base import SET, Because, Settings, only_with, refuse

MIB = 1024 * 1024


class ServedModelSettings(Settings):
    """`models.<name>`: one reward model of a server."""

    backend: str | None = Field(None, description="kind of model, such as PRIMO-R1; null: by model_path")
    model_path: str | None = Field(None, description="folder of its checkpoint, or a hub id")
    custom_backend: str | None = Field(None, description="module:factory instead of backend; gets these settings")
    aliases: tuple[str, ...] = Field((), description="other names that a client may call it")
    tensor_parallel_size: int | None = Field(
        None, ge=1, description="GPUs that share one vLLM model; null: 2 for qwen2_5_vl_vllm, 1 for the rest"
    )
    max_model_len: int | None = Field(None, ge=1, description="tokens that vLLM plans for; null: 16384")
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1, description="vLLM's share; null: 0.8, PRIMO-R1 0.9")
    temperature: float | None = Field(None, ge=0, description="of what it writes; null: 0, PRIMO-R1 0.1")
    top_p: float | None = Field(None, gt=0, le=1, description="of what it writes; null: 0.001, PRIMO-R1 0.9")
    max_tokens: int | None = Field(None, ge=1, description="longest reply; null: 64, PRIMO-R1 4096 (1024 is too short)")
    processes: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        "auto",
        description="copies of it, each in a process of its own (and each on the next GPU, where there are several: "
        "those of gpu_ids, or all that are visible); null or none: in the server's process; auto: a small model on a "
        "CPU with at least four cores has a copy for each but one, any other model is in the server's process",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="further arguments of its loader, by name")
    update_dir: str | None = Field(None, description="state of a model that learns; null: it does not learn")
    keep_updates: int = only_with(2, ge=1, update_dir=SET, description="newest states kept there")

    @model_validator(mode="after")
    def _one_source(self) -> ServedModelSettings:
        if self.backend is not None and self.custom_backend is not None:
            raise ConfigError.about("custom_backend", "and backend are both given; remove one of them")
        if self.backend is None and self.custom_backend is None and self.model_path is None:
            raise ConfigError("a served model needs backend, model_path or custom_backend", key="backend")
        if isinstance(self.processes, int) and (self.tensor_parallel_size or 1) > 1:
            raise ConfigError(
                "a model on several GPUs is not there in several copies; remove processes", key="processes"
            )
        if isinstance(self.processes, int) and self.update_dir is not None:
            raise ConfigError(
                "a model with an update_dir learns, which copies would not do alike; remove processes", key="processes"
            )
        return self

    @field_validator("processes", mode="before")
    @classmethod
    def _no_copies(cls, given: Any) -> Any:
        """`none`, as on the command line, is null."""
        return None if given in ("none", "null") else given

    @field_validator("custom_backend")
    @classmethod
    def _names_a_factory(cls, given: str | None) -> str | None:
        if given is not None and not all(given.partition(":")[::2]):
            raise ValueError(f"{given!r} does not name a factory; write module:factory")
        return given


class BatchSettings(Settings):
    """`batch`: how items of different requests come together in one call of a model."""

    max_items: int = Field(32, ge=1, description="items per call of a model")
    max_wait_ms: float = Field(2.0, ge=0, description="wait so long for more items while the model is idle")
    length_ratio: float = Field(4.0, ge=1, description="longest item of a call, relative to its first")
    queue_items: int = Field(1024, ge=1, description="items that wait for one model; beyond that the answer is 429")
    cache_items: int = Field(4096, ge=0, description="scores remembered by content for one model; 0: none")


class LimitSettings(Settings):
    """`limits`: what one request, and all requests together, may take."""

    max_body_bytes: int = Field(64 * MIB, ge=1, description="of one request; beyond that the answer is 413")
    max_header_bytes: int = Field(65_536, ge=1024, description="of a request's header; beyond that the answer is 431")
    max_bytes_in_flight: int = Field(512 * MIB, ge=1, description="of all request bodies being received or worked on")
    concurrency: int = Field(512, ge=1, description="requests at a time; beyond that the answer is 429")
    read_timeout_s: float = Field(30.0, gt=0, description="seconds for the header of a request, and for its body")
    max_items: int = Field(1024, ge=1, description="items in one request")
    max_steps: int = Field(1024, ge=1, description="steps of one text item")
    max_characters: int = Field(1_000_000, ge=1, description="characters of one text item")
    max_task_characters: int = Field(10_000, ge=1, description="characters of the task of one item of frames")
    deadline_s: float = Field(120.0, gt=0, description="seconds for a request, decoding included; then 504")
    drain_s: float = Field(8.0, gt=0, description="seconds that accepted requests have left after SIGTERM")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class MediaSettings(Settings):
    """`media`: what pictures and videos may cost before they are looked at."""

    root: str | None = Field(None, description="folder of the files that video_path may name; null: none")
    max_file_bytes: int = Field(32 * MIB, ge=1, description="of one picture or video")
    max_frames: int = Field(1024, ge=1, description="frames of one item, after sampling")
    max_frame_pixels: int = Field(4_000_000, ge=1, description="pixels of one frame")
    max_video_s: float = Field(600.0, gt=0, description="seconds that a video may last")
    max_decoded_bytes: int = Field(256 * MIB, ge=1, description="of all frames of one item together, decoded")
    decode_timeout_s: float = Field(10.0, gt=0, description="seconds in which the frames of one item must be decoded")
    workers: int = Field(2, ge=1, description="decoding processes at most; started when first needed")


class RayServeSettings(Settings):
    """`ray`: replicas of the server on a Ray cluster, as many as the requests need."""

    address: str = Field(
        "local",
        description="of the cluster: local joins the one that the variable RAY_ADDRESS names, or starts one on this "
        "machine; auto finds the one that `ray start` began here; else host:port of its head",
    )
    min_replicas: int = Field(1, ge=1, description="replicas that are there without requests")
    max_replicas: int = Field(4, ge=1, description="replicas at most")
    target_requests: float = Field(
        8.0, gt=0, description="requests per replica, waiting ones included, at which their number stays as it is"
    )
    upscale_delay_s: float = Field(10.0, ge=0, description="seconds that there must be too few replicas")
    downscale_delay_s: float = Field(300.0, ge=0, description="seconds that there must be too many replicas")
    replica_cpus: float = Field(1.0, ge=0, description="CPUs that each replica reserves")
    replica_gpus: float = Field(0.0, ge=0, description="GPUs that each replica reserves")

    @model_validator(mode="after")
    def _in_order(self) -> RayServeSettings:
        if self.min_replicas > self.max_replicas:
            raise ConfigError.about(
                "min_replicas", f"{self.min_replicas} is more than max_replicas {self.max_replicas}"
            )
        if self.address.startswith("ray://"):
            raise ConfigError(
                "ray:// (Ray Client) is not supported: start the server on a machine of the cluster", key="address"
            )
        return self


class ServeSettings(Settings):
    """The root: one server."""

    models: dict[str, ServedModelSettings] = Field(description="the models, by the name that clients ask for")
    default: str | None = Field(None, description="the model of requests that name none; null: the first")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(18080, ge=0, le=65535, description="port to listen on; 0: any free one")
    token: str | None = Field(None, min_length=8, repr=False, description="secret of every request but GET /health")
    insecure: bool = Field(False, description="listen beyond this machine without a token")
    gpu_ids: str | None = only_with(
        None,
        ray=Because(None, "ray, which gives replicas their GPUs (ray.replica_gpus)"),
        description="GPUs to use, such as 0,1; null: all that are visible",
    )
    threads: int | None = Field(
        None, ge=1, le=1024, description="cores of a model; null: OMP_NUM_THREADS, or half of all"
    )
    batch: BatchSettings = Field(BatchSettings(), description="how requests are put together")
    limits: LimitSettings = Field(LimitSettings(), description="what requests may take")
    media: MediaSettings = Field(MediaSettings(), description="what pictures and videos may take")

    sample_path: str | None = Field(
        None,
        description="folder of rows for guerdon audit about what was scored, without texts; null: none are written",
    )
    sample_share: float = only_with(
        0.01, gt=0, le=1, sample_path=SET, description="share of the prompts; all responses to a prompt are in, or none"
    )
    sample_text: bool = only_with(False, sample_path=SET, description="also write prompts and responses there")
    ray: RayServeSettings | None = Field(None, description="serve with replicas on a Ray cluster; null: one process")

    @field_validator("token", mode="before")
    @classmethod
    def _is_plain(cls, given: Any) -> Any:
        return clean_key(given, "token") if isinstance(given, str) else given

    @field_validator("gpu_ids")
    @classmethod
    def _are_numbers(cls, given: str | None) -> str | None:
        if given is not None and not all(part.strip().isdigit() for part in given.split(",")):
            raise ValueError(f"{given!r} is not a list of GPU numbers such as 0,1")
        return given

    @model_validator(mode="after")
    def _has_models(self) -> ServeSettings:
        if not self.models:
            raise ConfigError(
                "there is no model to serve: give --model-path, --model name=path or models", key="models"
            )
        if self.default is not None and self.default not in self.models:
            raise ConfigError.about("default", f"is {self.default!r}, and models has {', '.join(self.models)}")
        names = [name for key, model in self.models.items() for name in {key, *model.aliases}]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(
                f"two models answer to the name {twice[0]!r}; rename one, or remove the alias", key="models"
            )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> ServeSettings:
        if self.limits.max_items > self.batch.queue_items:
            raise ConfigError.about(
                "limits.max_items",
                f"({self.limits.max_items}) is more than batch.queue_items "
                f"({self.batch.queue_items}): such a request could never be accepted",
            )
        if not self.is_loopback and self.token is None and not self.insecure:
            raise ConfigError.about(
                "host",
                f"{self.host} is reachable from other machines: give a token (--token, or GUERDON_TOKEN), "
                "or --insecure to let everyone in",
            )
        if self.ray is not None:
            self._check_replicas()
        if self.insecure and (self.token is not None or self.is_loopback):
            refuse({"insecure"}, "a token" if self.token is not None else f"host {self.host}")
        return self

    def _check_replicas(self) -> None:
        """Refuse what the replicas of a Ray cluster cannot do."""
        idle = {"max_header_bytes", "read_timeout_s"} & self.limits.model_fields_set
        refuse(idle, "ray, whose proxy receives requests", "limits")
        for name, model in self.models.items():
            if isinstance(model.processes, int):
                raise ConfigError.about(
                    f"models.{name}.processes", ": the copies of a model are ray.min_replicas to max_replicas"
                )
            if model.update_dir is not None:
                raise ConfigError.about(
                    f"models.{name}.update_dir",
                    ": replicas of a model that learns would drift apart; serve it in one process, without ray",
                )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)
