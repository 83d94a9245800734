"""The table of docs/eight_gpus.md is what `--dry-run` prints for the commands of the page."""

import re
from pathlib import Path

import pytest

from guerdon.config.loading import load
from guerdon.pages.durations import duration
from guerdon.plan.estimate import START, estimate_run
from guerdon.settings.study import Study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "eight_gpus.md").read_text(encoding="utf-8")
VLA = ("configs/libero_10_grpo_openvlaoft_runB_qwen.yaml", "vectorization=async")
ROWS = {  # of the table: the file, what else is in its command, and what is not
    "GRPO, torchrun": ("configs/eight_gpus_grpo.yaml", "torchrun", "resume"),
    "GRPO, Ray": ("configs/eight_gpus_grpo.yaml", "engine=ray", "sbatch"),
    "GRPO, served PRM, torchrun": ("configs/eight_gpus_prm.yaml", "torchrun", "sbatch"),
    "VLA, torchrun": (*VLA, "engine=ray"),
    "VLA, Ray": ("configs/libero_10_grpo_openvlaoft_runB_qwen.yaml", "engine=ray", "sbatch"),
}


def overrides(file, wanted, unwanted):
    """Those of the command of the page with this file and these words."""
    lines = [line.strip() for line in PAGE.splitlines() if re.match(r"    .*guerdon run ", line)]
    (found,) = {line for line in lines if file in line and wanted in line and unwanted not in line
                and "profile" not in line}  # fmt: skip
    return re.findall(r"[\w.]+=(?:'[^']*'|\S+)", found.partition(file)[2])


def minutes(text):
    """Seconds of a duration such as `1 h 47 min`, or of its first words."""
    units = {"h": 3600, "min": 60, "s": 1, "d": 86400}
    found = re.match(r"(?:\d+ (?:d|h|min|s) ?)+", text)
    return sum(int(n) * units[unit] for n, unit in re.findall(r"(\d+) (d|h|min|s)\b", found[0]))


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_the_estimate(row):
    file = ROWS[row][0]
    study = load(Study, ROOT / file, [word.replace("'", "") for word in overrides(*ROWS[row])])
    found = estimate_run(study)
    times = {key.removeprefix("time of "): line for key, line in found.items() if key.startswith("time of ")}

    def cell(*names):
        (key,) = [key for key in times if key.startswith(names)]
        return f"{times[key].partition(' = ')[0]} on {key.split(' on ')[1].split()[0]}"

    simulators = sum(minutes(line) for key, line in times.items() if key.startswith("the simulators"))
    cells = [
        row, found["memory at most"].split(",")[0], cell("generating", "acting"), cell("updating"), cell("evaluating"),
        times["sending weights"].partition(" by")[0], duration(simulators) if simulators else "",
        duration(found["seconds"]),
    ]  # fmt: skip
    assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in PAGE, cells
    assert found["memory at most"].endswith("fits on one GPU")
    assert found["seconds"] > START
    assert "GPUs" not in found, "the page uses as many GPUs as it names"
