"""Sampling of `guerdon label` on a Ray cluster: solutions, completions of prefixes, local judges.

What is sampled for a batch of requests depends on the batch and the weights alone, so it does not matter which worker
samples it, and that of a lost worker is sampled again: the labels are those of one process, bit for bit.

with closing(LabelWorkers(study.cluster, study.generation, study.runner)) as workers:
    label(study, sample_with=workers.sample_with)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property, partial

from guerdon.endpoints.completions import BatchSampler, Sample, SampleBatch, Sampled, weights_hash
from guerdon.engines.ray_cluster import Actors, ClusterWorker
from guerdon.errors import ConfigError
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.runner import RunnerSettings
from guerdon.settings.text_policy import GenerationSettings, TextPolicySettings


class LabelWorker(ClusterWorker):
    """What runs in an actor: policies, loaded when they are first needed.

    Args:
        generation: the `generation` section.
        seed: `runner.seed`.
    """

    def __init__(self, generation: GenerationSettings, seed: int) -> None:
        self._generation, self._seed = generation, seed
        self._samplers: dict[str, BatchSampler] = {}

    def sample(self, settings: TextPolicySettings, fingerprint: str, batch: SampleBatch) -> Sampled:
        """The completions of a batch.

        Args:
            settings: of the policy.
            fingerprint: `weights_hash` that it must have.
            batch: the requests.

        Raises:
            ConfigError: this node has other weights.
            DataError: the model has no room for a prompt and its response.
        """
        if fingerprint not in self._samplers:
            policy = load_policy(settings, seed=self._seed)
            if weights_hash(policy) != fingerprint:
                raise ConfigError(
                    f"the policy {settings.path} has other weights on a node of the cluster ({os.uname().nodename}): "
                    "put it on a file system that all nodes share",
                    key="policy.path",
                )
            self._samplers[fingerprint] = BatchSampler(policy, self._generation)
        return self._samplers[fingerprint].sample(batch)

    def close(self) -> None:
        """Release the models."""
        self._samplers.clear()


class LabelWorkers:
    """Actors that sample; they start when something is sampled that the cache does not have.

    Args:
        cluster, generation, runner: the sections.
    """

    def __init__(self, cluster: ClusterSettings, generation: GenerationSettings, runner: RunnerSettings) -> None:
        self._cluster, self._generation, self._runner = cluster, generation, runner

    @cached_property
    def _actors(self) -> Actors:
        build = (self._generation, self._runner.seed)
        return Actors(LabelWorker, build, "label_worker", self._cluster, self._runner.threads)

    def sample_with(self, settings: TextPolicySettings, fingerprint: str) -> Sample:
        """What samples with a policy whose weights have this hash."""
        return partial(self._sample, settings, fingerprint)

    def _sample(
        self, settings: TextPolicySettings, fingerprint: str, batches: Sequence[SampleBatch]
    ) -> Iterator[tuple[int, Sampled]]:
        if batches:
            yield from self._actors.results(
                batches, lambda worker, batch: worker.sample.remote(settings, fingerprint, batch)
            )

    def close(self) -> None:
        """End the actors, and the cluster where this work started it."""
        if "_actors" in vars(self):
            self._actors.close()
