"""`guerdon run`: one run as a stage, with its report.

print(RunStage(resume=True).work(study).line)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.comparison.live_page import live_page
from guerdon.comparison.report import write_single_report
from guerdon.files.json_files import read_lines
from guerdon.pages.table import ResultTable
from guerdon.plan.estimate import estimate_run
from guerdon.rl.best_policy import FOLDER
from guerdon.rl.log import true_success
from guerdon.settings.study import Study


class RunResult(NamedTuple):
    """What a run wrote.

    Attributes:
        folder: of the run.
        summary: what its `COMPLETE` holds.
        report: a page.
    """

    folder: Path
    summary: dict[str, Any]
    report: Path

    @property
    def metrics(self) -> ResultTable:
        """The rows of `metrics.jsonl`, of updates and of evaluations."""
        return ResultTable(read_lines(self.folder / "metrics.jsonl")[0])

    def __repr__(self) -> str:
        return f"<{true_success(self.summary['final'])}; {self.report}>"

    @property
    def line(self) -> str:
        """For people."""
        lines = [true_success(self.summary["final"])]
        if episodes := self.summary.get("episodes"):
            lines.append(", ".join(f"{count} {name}" for name, count in episodes.items()) + " episodes in training")
        if best := self.summary.get("best"):
            lines.append(best_policy(best))
        return "\n".join([*lines, f"wrote {self.folder} and {self.report}"])


def best_policy(best: Mapping[str, Any]) -> str:
    """The best policy of a run in words, from `best` of its `COMPLETE`."""
    chosen = f"best policy: that of step {best['step']:,}, in {FOLDER}: {_achieved(best['evaluation'])} episodes"
    if best["fresh"] is None:
        return f"{chosen} of the evaluation that chose it; no fresh evaluation: {best['why']}"
    return f"{chosen} of the evaluation that chose it, {_achieved(best['fresh'])} fresh ones"


def _achieved(result: Mapping[str, float]) -> str:
    """`true success 0.40 over 20`, of an evaluation that knows success or the return."""
    known = f"true success {result['success']:.2f}" if "success" in result else f"return {result['return/env']:.4g}"
    return f"{known} over {int(result['episodes'])}"


@dataclass(frozen=True)
class RunStage:
    """Train a policy with the rewards of the `reward` section.

    Attributes:
        resume: continue from the newest checkpoint.
        profile: iterations to record: a trace of torch's profiler, and where their time went; 0: none.
    """

    resume: bool = False
    profile: int = 0

    def check(self, study: Study) -> None:
        """Refuse parts that do not go together, or are not there; what needs trained weights is left to the run.

        Raises:
            GuerdonError: as `check_text` and `check_control`.
        """
        from guerdon.rl.profile import check_iterations

        check_iterations(self.profile)
        if self.resume:
            from guerdon.rl.run import continued

            study = continued(study)
        if study.text:
            from guerdon.rl.build_text import check_text

            return check_text(study)
        from guerdon.rl.build_control import check_control

        return check_control(study)

    def estimate(self, study: Study) -> dict[str, Any]:
        """Environment steps (responses), frames, seconds and bytes."""
        return estimate_run(study)

    def work(self, study: Study) -> RunResult | None:
        """Run to the end; None in another process than the first of `torchrun`, which follows it."""
        from guerdon.compute import distributed
        from guerdon.rl.run import run

        with distributed.joined(study.runner.collective_timeout), distributed.leading() as leads:
            if not leads:
                return None
            folder, summary = run(study, resume=self.resume, profile=self.profile, around=live_page)
        return RunResult(folder, summary, write_single_report(folder))
