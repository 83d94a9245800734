"""`guerdon label` as a stage. What labels is imported when it is used: an estimate needs no model.

print(LabelStage().work(study).line)
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guerdon.plan.estimate import estimate_label
from guerdon.plan.stages import loaded
from guerdon.settings.study import Study

if TYPE_CHECKING:
    from guerdon.labels.data_set import LabelledDataSet

RAY_WORKERS = "guerdon.engines.ray_label:LabelWorkers"


@dataclass(frozen=True)
class LabelStage:
    """`guerdon label`; with `engine: ray`, policies and local judges sample on a cluster.

    Attributes:
        skip_generation: see `label`.
    """

    skip_generation: bool = False

    def check(self, study: Study) -> None:
        """Refuse what `label` refuses at its start; see `check_label`."""
        from guerdon.labels.label import check_label

        check_label(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Texts to sample, calls, tokens, dollars, seconds and bytes; nothing where the labels are there."""
        return {} if self.skip_generation else estimate_label(study)

    def work(self, study: Study) -> LabelledDataSet:
        """Label them."""
        from guerdon.labels.label import label

        if study.engine == "local":
            return label(study, skip_generation=self.skip_generation)
        workers = loaded(RAY_WORKERS)(study.cluster, study.generation, study.runner)
        with closing(workers):
            return label(study, skip_generation=self.skip_generation, sample_with=workers.sample_with)
