"""`cluster`: what a run uses of a Ray cluster. Other sections do not know whether there is one.

engine: ray
cluster: {address: auto, collectors: 4, collector_cpus: 2, strategy: spread}
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from guerdon.settings.base import Settings


class ClusterSettings(Settings):
    """`cluster`: the actors of `engine: ray` and where they are placed."""

    address: str = Field(
        "local",
        description="of the cluster: local starts one on this machine for this run, auto finds the one that `ray "
        "start` began here, else host:port of its head",
    )
    collectors: int = Field(
        1, ge=1, description="actors that collect the shards of rollouts; at most runner.rollout_shards"
    )
    collector_cpus: float = Field(1.0, ge=0, description="CPUs that each collector reserves; parts of one are allowed")
    collector_gpus: float = Field(
        0.0, ge=0, description="GPUs that each collector reserves; parts of one let several share it"
    )
    collector_resources: dict[str, float] = Field(
        default_factory=dict,
        description="custom resources that each collector reserves, by the names of `ray start --resources`: they "
        "choose the nodes",
    )
    strategy: Literal["default", "spread"] = Field(
        "default",
        description="default: Ray fills nodes up before it takes the next; spread: collectors go to different nodes",
    )
    start_timeout: float = Field(
        120.0, gt=0, description="seconds to wait for room for a collector, at the start and for a replacement"
    )
    max_replacements: int = Field(
        5,
        ge=0,
        description="collectors replaced during one rollout before the run stops with a checkpoint to resume",
    )

    @field_validator("address")
    @classmethod
    def _is_no_client(cls, given: str) -> str:
        if given.startswith("ray://"):
            raise ValueError(
                "ray:// (Ray Client) is not supported: start the run on a machine of the cluster, with auto"
            )
        return given
