"""A process that reads files with one of guerdon's readers, within limits; started by `fuzzing.Reader`.

Its input is a line of JSON per file, `[reader, path]`; its output one per file, `[outcome, text]`: `rows`; `refused`, a
`GuerdonError` with one line, or with one for each problem of a configuration; or `broken`, for any other exception,
an error of several lines or too much memory. A file that takes more processor time than its argument says ends it.
"""

import json
import os
import resource
import sys
import traceback
from pathlib import Path

from guerdon.auditing.logs import read_log
from guerdon.episodes.data_files import DataFiles
from guerdon.episodes.preferences import read_preferences
from guerdon.episodes.read import dataset_hash, read_episodes, summarize
from guerdon.episodes.solution_files import read_solutions
from guerdon.errors import ConfigError, GuerdonError
from guerdon.evaluation.benchmarks.labelled import read_labelled
from guerdon.evaluation.benchmarks.reward_bench import read_choices
from guerdon.evaluation.scoring.responses import scored_responses
from guerdon.models.judges.rubric import read_rubric
from guerdon.processes.process import shown
from guerdon.reading.containers import file_rows, good_rows
from guerdon.reading.reader import read as read_data
from guerdon.tasks.prompt_files import read_prompts
from guerdon.train.rabc import read_progress

GROWTH = 1 << 30  # bytes that reading a file may take: those of the tests have less than 2 MiB


def scored(path):
    """The responses that `guerdon score` finds in the rows of a file."""
    rows = list(good_rows(path))
    reading = read_data(str(path))
    responses_of = scored_responses(reading)
    return [responses_of(row, where, str(k)) for k, (where, row) in enumerate(rows) if isinstance(row, dict)]


def columns(root):
    """The numbers and pictures in the data files of a LeRobot data set."""
    files = DataFiles(root)
    numbers = [files.numbers_of(path, files.numbers) for path in files.paths]
    return [*numbers, *(list(files.pictures_of(path)) for path in files.paths)]


READERS = {
    "rows": lambda path: list(file_rows(path)),
    "log": read_log,
    "prompts": read_prompts,
    "questions": lambda path: read_prompts(path, answered=False),
    "solutions": read_solutions,
    "bad solutions": lambda path: read_solutions(path, bad=[]),
    "preferences": lambda path: read_preferences(str(path)),
    "choices": lambda path: read_choices(str(path)),
    "labelled": lambda path: read_labelled(str(path)),
    "score": scored,
    "rubric": read_rubric,
    "episodes": lambda root: list(read_episodes(root)),
    "summary": summarize,
    "hash": dataset_hash,
    "data files": columns,
    "progress": lambda root: read_progress(root / "sarm_progress.parquet", root),
}


def resident(what):
    """Bytes of this process by the kernel's name: VmRSS now, VmHWM at most, VmSize of addresses."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(f"{what}:"))


def read(name, path):
    """The outcome of one file."""
    with open("/proc/self/clear_refs", "w") as peak:
        peak.write("5")  # VmHWM counts from here
    before = resident("VmRSS")
    try:
        found = READERS[name](path)
        said = "rows", str(len(found)) if hasattr(found, "__len__") else type(found).__name__
    except GuerdonError as error:
        text = shown(str(error))
        lines = text.splitlines()
        fits = len(lines) == 1 or (lines and isinstance(error, ConfigError) and lines[0].endswith("problems"))
        said = ("refused", text) if fits else ("broken", f"{type(error).__name__} of several lines or none: {text!r}")
    except BaseException as error:  # noqa: BLE001  (a panic of a library in Rust is no Exception)
        said = "broken", "".join(traceback.format_exception(error)[-6:]) + type(error).__name__
    grown = resident("VmHWM") - before
    return said if grown <= GROWTH else ("broken", f"{grown >> 20} MiB for a file: {said}")


def main():
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    room = resident("VmSize") + 4 * GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        name, path = json.loads(line)
        used = resource.getrusage(resource.RUSAGE_SELF)
        allowed = int(used.ru_utime + used.ru_stime) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        answers.write(json.dumps(read(name, Path(path))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
