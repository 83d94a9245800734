"""`guerdon collect` as a stage. What collects is imported when it is used: an estimate needs no simulator.

print(CollectStage().work(study).line)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guerdon.plan.estimate import estimate_collect
from guerdon.settings.study import Study

if TYPE_CHECKING:
    from guerdon.collect.collect import CollectResult


class CollectStage:
    """`guerdon collect`."""

    def check(self, study: Study) -> None:
        """Refuse what `collect` refuses at its start; see `check_collect`."""
        from guerdon.collect.collect import check_collect

        check_collect(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Episodes, frames, seconds and bytes."""
        return estimate_collect(study)

    def work(self, study: Study) -> CollectResult:
        """Collect them."""
        from guerdon.collect.collect import collect

        return collect(study)
