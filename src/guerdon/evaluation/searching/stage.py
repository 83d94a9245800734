"""`guerdon search` as a stage. What searches is imported when it is used: an estimate needs no model.

print(SearchStage().work(study).line)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guerdon.plan.estimate import estimate_search
from guerdon.settings.study import Study

if TYPE_CHECKING:
    from guerdon.evaluation.searching.search_study import SearchDone


class SearchStage:
    """`guerdon search`."""

    def check(self, study: Study) -> None:
        """Refuse what the start of a search refuses; see `check_search`."""
        from guerdon.evaluation.searching.search_study import check_search

        check_search(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Questions, solutions, seconds and bytes."""
        return estimate_search(study)

    def work(self, study: Study) -> SearchDone:
        """Search."""
        from guerdon.evaluation.searching.search_study import search

        return search(study)
