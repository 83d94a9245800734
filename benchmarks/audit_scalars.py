"""What `guerdon audit` says of scalars that public runs logged, and which tags of `TAGS` were tried on them.

    python benchmarks/audit_scalars.py FOLDER --page docs/audit_scalars.md

`audit_scalars.tsv` names tool, repository, revision and path, as `audit_public.tsv` does; the files lie under
FOLDER/OWNER+NAME/PATH and belong to their owners. Findings are judged in `audit_public_judged.tsv`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from audit_public import HERE, JUDGED, Log, audited, short, table

from guerdon.auditing.logs import read_log
from guerdon.auditing.scalar_checks import TAGS, Tag, role_of

LIST = HERE / "audit_scalars.tsv"
OWN = "guerdon and others"  # `Tag.tool` of names that are not of one tool
HEAD = """# Scalars of public runs, audited

A run that logs no rows may still have curves. What a curve is follows from its name, by the table `TAGS` in
`src/guerdon/auditing/scalar_checks.py`. This page says on which public file each name was tried, and what
`guerdon audit` says of these files. {logs} files were read: {findings} findings, {false} of them false.

Findings were judged from the curves themselves; of the files without findings the beginning, best, worst and end of
each curve with a role were looked at; the fall of one could not be decided (below). This needs the files,
which belong to their owners:

<!-- Not run here: it needs the files, which belong to their owners. -->

    python benchmarks/audit_scalars.py FOLDER --page docs/audit_scalars.md

Of some files only a part was read, put into a file of its own:

- of the page of `Madhustat/OpenRLHF`, the pull request of `hongbo-miao/hongbomiao.com` and the issue of
  `vllm-project/vllm-ascend` the lines that a trainer printed, in one line each where the page breaks them;
- of `SemiAnalysisAI/opd-benchmark`, which could be read but not copied, the numbers of some names, copied by hand;
- `metrics_raw.json` of `intertwine/security-verifiers` as one object per line, and the lines of
  `BNJ02/marl-rllib-gpu-bench`, which its own script wrote, with the number of the iteration as `step`.

## Faults that these files showed

All of them are repaired.

- `timing_s/reward` of verl, the seconds that rewards take, was read as a reward, and had a false `collapse`.
- `critic/returns/mean` of verl was read as a reward; where groups are compared it is the mean of advantages, near 0. It
  had a false `collapse`, and the sentence about the run was about it.
- `reward/format_error_ratio` and `reward/wrong_answer_ratio`, which fall as a policy becomes better, were read as
  rewards.
- The noise of a curve that is 0 at most steps, such as a rare reward, was estimated as 0: a false `collapse`.
- `return` of OpenRLHF is the reward minus what its group has on average. It is no longer used beside `reward`.
- `rewards/accuracies` of preference training by TRL was read as a reward.
- A constant curve had a false `collapse` by rounding.
- A reward that began at its best and fell to nothing was no `collapse`: seven of the runs of TRL below.
- `rewards/accuracy_reward/std` of TRL was read as a truth.
- `trainer_state.json` of transformers was read as rows, `result.json` of RLlib and the files of Weights & Biases not at
  all.
- `rollout/tool_success_rate` of a user of verl was read as a truth, which hid that responses became longer.
- A score of verl that falls to -1, its lowest value, and stays there was no `collapse`.
- Entropies of RLlib (`learner/entropy`, `learner/policy_entropy`, `learner/agent_0/entropy`) were not read, nor were
  console logs and `progress.csv` without `--columns`.

The fall of `critic/score/mean` from -0.52 to -0.91 in the first run of `jianghoucheng` is no finding: where a reward
begins at its best, can be negative and still moves at the end, `collapse` cannot be decided, and says so.
One finding is false and stays: of curves alone, a reward that falls because the levels of a curriculum become harder
cannot be told from one that collapses. The remedy says so.

## Files

| tool | file | first line | findings, each with the judgement |
| --- | --- | --- | --- |
"""
TAGS_HEAD = """
## Tags

The file is the one with the most points. Names that are not of one tool, such as `success`, come last.

| tool | tag | role | public file |
| --- | --- | --- | --- |
"""


class Tried(NamedTuple):
    """Where a tag was tried: points of the longest curve, its name, and the log."""

    points: int
    name: str
    log: Log


def tried_on(logs: list[Log], folder: Path) -> dict[Tag, Tried]:
    """The longest public curve of each tag."""
    found: dict[Tag, Tried] = {}
    for log in logs:
        curves = read_log(folder / log.repository.replace("/", "+") / log.path).curves
        for name, (_, values) in curves.items():
            tag, points = role_of(name), int(np.isfinite(values).sum())
            if tag is not None and (tag not in found or points > found[tag].points):
                found[tag] = Tried(points, name, log)
    return found


def address(log: Log) -> str:
    """A log as the page names it."""
    return f"`{log.repository}:{log.path}`, {log.revision[:10]}"


def page(logs: list[Log], folder: Path) -> str:
    """The page as Markdown."""
    judged = {(row[0], row[1], row[2]): (row[3], row[4]) for row in table(JUDGED)}
    verdicts, rows = [], []
    for one in (audited(log, folder) for log in logs):
        cells = []
        for severity, name, text in one.findings:
            verdict, why = judged.get((one.log.repository, one.log.path, name), ("not judged", ""))
            verdicts.append(verdict)
            cells.append(f"`{name}` ({severity}): {short(text)}<br>**{verdict}**{': ' if why else ''}{why}")
        rows.append(f"| {one.log.tool} | {address(one.log)} | {short(one.first)} | {'<br>'.join(cells)} |")
    tried = tried_on(logs, folder)
    tags = []
    for tag in TAGS:
        where = "not of one tool" if tag.tool == OWN else "**no public file**"
        if tag in tried:
            where = f"`{tried[tag].name}`, {tried[tag].points:,} points: {address(tried[tag].log)}"
        tags.append(f"| {tag.tool} | `{tag.name}` | {tag.role} | {where} |")
    head = HEAD.format(logs=len(logs), findings=len(verdicts), false=verdicts.count("false"))
    return head + "\n".join(rows) + "\n" + TAGS_HEAD + "\n".join(tags) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    args = parser.parse_args()
    logs = [Log(*row) for row in table(LIST)]
    args.page.write_text(page(logs, args.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
