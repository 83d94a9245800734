"""`cluster`: what a run uses of a Ray cluster. Other sections do not know whether there is one.

engine: ray
cluster: {address: auto, collectors: 4, collector_cpus: 2, strategy: spread}
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from guerdon.errors import ConfigError
from guerdon.settings.base import SET, Settings, Unless, only_with


class ClusterSettings(Settings):
    """`cluster`: the workers of `engine: ray` and where they are placed."""

    address: str = Field(
        "local",
        description="of the cluster: local joins the one that the variable RAY_ADDRESS names, or starts one on this "
        "machine for this run; auto finds the one that `ray start` began here; else host:port of its head",
    )
    collectors: int = Field(
        1, ge=1, description="workers that collect the shards of rollouts; at most runner.rollout_shards"
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
    reward_workers: int = Field(
        0,
        ge=0,
        description="workers that score with the frozen reward models of a run, each with all of them; at most "
        "reward.scoring_shards. 0: the process of the learner scores",
    )
    reward_worker_cpus: float = only_with(
        1.0, ge=0, reward_workers=SET, description="CPUs that each reward worker reserves"
    )
    reward_worker_gpus: float = only_with(
        0.0,
        ge=0,
        reward_workers=SET,
        description="GPUs that each reward worker reserves; parts of one let several workers share it",
    )
    reward_worker_resources: dict[str, float] = only_with(
        default_factory=dict, reward_workers=SET, description="custom resources that each reward worker reserves"
    )
    learners: int = Field(
        1,
        ge=1,
        description="processes that train the policy and PRIME's reward model together (docs/distributed.md); the "
        "process of the run is the first, the others are workers",
    )
    learner_cpus: float = only_with(
        1.0, ge=0, learners=Unless(1), description="CPUs that each further learner reserves"
    )
    learner_gpus: float = only_with(
        0.0,
        ge=0,
        learners=Unless(1),
        description="GPUs that each further learner reserves: 1 where the process of the run has one, too",
    )
    learner_resources: dict[str, float] = only_with(
        default_factory=dict, learners=Unless(1), description="custom resources that each further learner reserves"
    )
    job_cpus: float = Field(1.0, ge=0, description="CPUs that each job of `guerdon compare` reserves")
    job_gpus: float = Field(0.0, ge=0, description="GPUs that each job of `guerdon compare` reserves")
    label_workers: int = Field(1, ge=1, description="workers that sample for `guerdon label`")
    label_worker_cpus: float = Field(1.0, ge=0, description="CPUs that each of them reserves")
    label_worker_gpus: float = Field(0.0, ge=0, description="GPUs that each of them reserves")
    weight_transfer: Literal["auto", "object_store", "collective"] = Field(
        "auto",
        description="how weights reach the collectors: object_store, Ray's, through the memory of each node; "
        "collective, one broadcast to all of them, by NCCL where the policy that learns and each collector have a GPU "
        "of their own, else by Gloo; auto: collective where NCCL is possible, else object_store",
    )
    weight_timeout: float = only_with(
        120.0,
        gt=0,
        weight_transfer=Unless("object_store"),
        description="seconds that a broadcast of weights may take; then those that did not get them read them from the "
        "object store",
    )
    strategy: Literal["default", "spread", "pack"] = Field(
        "default",
        description="default: Ray fills nodes up before it takes the next; spread: workers of a kind go to different "
        "nodes; pack: a placement group in which the n-th collector and the n-th reward worker share a node, and all "
        "of them as few nodes as there is room on",
    )
    start_timeout: float = Field(
        120.0, gt=0, description="seconds to wait for room for workers, at the start and for a replacement"
    )
    task_timeout: float = Field(
        1800.0,
        gt=0,
        description="seconds without a result after which a worker that is at work counts as lost, because it hangs: "
        "more than a part of a rollout, or of its scores, can take",
    )
    max_replacements: int = Field(
        5,
        ge=0,
        description="workers of a kind replaced during one rollout, or one scoring, before the run stops with a "
        "checkpoint to resume; also how often learners start again from one checkpoint, and a job of `guerdon compare`",
    )

    @model_validator(mode="after")
    def _workers_have_work(self) -> ClusterSettings:
        kinds = [("collector", self.collector_cpus, self.collector_gpus, self.collector_resources)]
        if self.reward_workers:
            kinds += [("reward_worker", self.reward_worker_cpus, self.reward_worker_gpus, self.reward_worker_resources)]
        for kind, cpus, gpus, resources in kinds:
            if self.strategy == "pack" and not (cpus or gpus or any(resources.values())):
                raise ConfigError.about("strategy", f"pack places what workers reserve: {kind}_cpus must be above 0")
        return self

    @field_validator("address")
    @classmethod
    def _is_no_client(cls, given: str) -> str:
        if given.startswith("ray://"):
            raise ValueError(
                "ray:// (Ray Client) is not supported: start the run on a machine of the cluster, with auto"
            )
        return given
