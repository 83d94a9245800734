"""Writes the table of layouts into docs/reading.md, from the rows that the tests make of each.

python docs/make_reading.py            write the table
python docs/make_reading.py --check    exit 1 when it is out of date
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "reading"))

from layout_files import written  # noqa: E402
from layout_rows import GROUPS, REFUSED  # noqa: E402

from guerdon.auditing.uses import uses_of  # noqa: E402
from guerdon.reading.reader import read  # noqa: E402

PAGE = Path(__file__).with_name("reading.md")
BEGIN, END = "<!-- layouts -->\n", "<!-- end of layouts -->\n"
HEAD = "| layout | columns | coding | files | commands |\n|---|---|---|---|---|\n"
MOST_COLUMNS = 7
ROBOTS = (  # name, columns, files, commands
    (
        "LeRobot, versions 2 and 3",
        "`next.reward`, `next.success`, `observation.state`, ...",
        "a folder",
        "audit, score",
    ),
    ("monitor of Stable-Baselines3", "`r`, `l`, `t`", "monitor.csv", "audit"),
    ("TensorBoard", "`rollout/ep_rew_mean`, `critic/score/mean`, ...", "events.out.tfevents", "audit"),
    (
        "progress.csv of Stable-Baselines3, RLlib",
        "`rollout/ep_rew_mean`, `episode_reward_mean`, ...",
        "progress.csv, result.json",
        "audit",
    ),
    (
        "state of a Trainer of transformers or TRL",
        "`reward`, `rewards/accuracy_reward/mean`, ...",
        "trainer_state.json",
        "audit",
    ),
    (
        "Weights & Biases, on the machine of the run",
        "`critic/score/mean`, `train/reward`, ...",
        "run-*.wandb",
        "audit",
    ),
    (
        "console logs of verl, OpenRLHF, TRL, Stable-Baselines3",
        "`critic/score/mean`, `reward`, ...",
        ".log, .out, .ipynb, ...",
        "audit",
    ),
    ("robomimic, Minari", "", ".hdf5", "refused, with what to do"),
    ("RLDS", "", ".tfrecord", "refused, with what to do"),
)
"""Episodes of robots and scalars of runs, which are read as such."""


def rows() -> Iterator[str]:
    """A row for each layout."""
    for cases, examples in GROUPS:
        for case in cases:
            made = [row for row in (case.make(*one) for one in examples) if row is not None]
            whole = case.whole(made) if case.whole else made
            columns = _columns(whole if isinstance(whole, dict) else whole[0])
            with tempfile.TemporaryDirectory() as folder:
                path = written(Path(folder), f"rows{case.container}", made, case.whole)
                found = ", ".join(command for command, use in uses_of(path, read(path)).items() if use.what)
            yield f"| {case.name} | {columns} | {case.coding.replace('|', '/')} | {case.container} | {found} |"
    for name, row in REFUSED.items():
        yield f"| {name} | {_columns(row)} | | .jsonl | refused, with the reason |"
    for name, columns, files, found in ROBOTS:
        yield f"| {name} | {columns} | | {files} | {found} |"


def _columns(row: object) -> str:
    names = list(row) if isinstance(row, dict) else []
    more = ", ..." if len(names) > MOST_COLUMNS else ""
    return ", ".join(f"`{name}`" for name in names[:MOST_COLUMNS]) + more


def page() -> str:
    """The page with the table of today."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{HEAD}" + "".join(f"{row}\n" for row in rows()) + f"{END}{after}"


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv:
        sys.exit(0 if made == PAGE.read_text(encoding="utf-8") else f"{PAGE}: run python docs/make_reading.py")
    PAGE.write_text(made, encoding="utf-8")
