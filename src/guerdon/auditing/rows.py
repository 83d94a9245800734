"""What a log says of rewards, whatever wrote it: a column for each kind of fact, in the order of the files.

Numbers are kept of every row and texts of a sample, so that a log of gigabytes fits into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Codes = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Texts:
    """The texts of M sampled rows; groups are sampled whole.

    Attributes:
        row_M: which rows they are, ascending.
        prompts: what was asked, conversations written out.
        responses: what was answered.
        messages: the conversation as role and content, where the log has one.
        tokens: the tokens of each response, where the log has them.
        token_rewards: a reward for each token, where the log has them.
        truths: the reference answer or the tests, where the log has them.
    """

    row_M: Codes
    prompts: list[str]
    responses: list[str]
    messages: list[list[dict[str, str]]] | None = None
    tokens: list[list[str]] | None = None
    token_rewards: list[list[float]] | None = None
    truths: list[str] | None = None

    def only(self, keep_N: Flags) -> Texts:
        """The texts of the rows that are kept, numbered as these."""
        kept = np.flatnonzero(keep_N[self.row_M])
        lists = {name: value for name, value in vars(self).items() if name != "row_M" and value is not None}
        chosen = {name: [values[m] for m in kept] for name, values in lists.items()}
        number_N = np.cumsum(keep_N) - 1
        return replace(self, row_M=number_N[self.row_M[kept]], **chosen)


@dataclass(frozen=True)
class RobotSteps:
    """What rows of robots say: a row is one step of an episode.

    Attributes:
        episode_N: number of the episode.
        frame_N: number of the step within its episode, from 0.
        state_N_D: joint angles or other numbers of the robot; NaN is missing.
        done_N: whether the episode ended after this step.
        contact_N: a force or a flag of contact.
        picture_N: a hash of the step's picture; equal hashes are equal pictures.
    """

    episode_N: Codes
    frame_N: Codes
    state_N_D: Numbers | None = None
    done_N: Flags | None = None
    contact_N: Numbers | None = None
    picture_N: Codes | None = None


@dataclass(frozen=True)
class Rows:
    """N rows of a log: a response, an episode, or a step of a robot each. A column that the log lacks is None.

    Attributes:
        layout: what was recognised, in words.
        files: names of the files, relative to the log.
        file_N: which of the files a row is in.
        line_N: its line or row number there, from 1.
        reward_N: the reward that the trainer used; NaN is missing.
        rewards: further rewards by the log's names (parts of the sum, a second reward); NaN is missing.
        truth_N: success or correctness that the log names as such; NaN is missing.
        step_N: step of training.
        prompt_N: equal numbers are equal prompts.
        prompt_key_N: a hash of the prompt: equal numbers are equal prompts, also in another log.
        group_N: equal numbers are responses that were compared with each other.
        grouped_by: where the groups come from, in words; empty without groups.
        length_N: tokens of the response where the log counts them, else characters.
        truncated_N: whether the response was cut off by the limit.
        failed_N: whether the log says that the reward could not be measured.
        advantage_N: the advantage that the trainer logged.
        texts: of a sample of rows.
        steps: of robots.
        curves: logged scalars by name: steps and values; a log of scalars alone has no rows.
        bad: rows that could not be read, by reason.
        notes: what a reader of the page should know of how the log was read.
        read_as: what its columns were taken for, as `guerdon.reading.reader.read_as` says it.
        run_N: the place in `runs` of the run that a row is of, -1 where it names none; None without such a column.
        runs: names in the column `run`.
    """

    layout: str
    files: tuple[str, ...]
    file_N: Codes
    line_N: Codes
    reward_N: Numbers
    rewards: dict[str, Numbers] = field(default_factory=dict)
    truth_N: Numbers | None = None
    step_N: Codes | None = None
    prompt_N: Codes | None = None
    group_N: Codes | None = None
    grouped_by: str = ""
    length_N: Numbers | None = None
    truncated_N: Flags | None = None
    failed_N: Flags | None = None
    advantage_N: Numbers | None = None
    texts: Texts | None = None
    steps: RobotSteps | None = None
    curves: dict[str, tuple[Codes, Numbers]] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    read_as: tuple[Mapping[str, Any], ...] = ()
    prompt_key_N: Codes | None = None
    run_N: Codes | None = None
    runs: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.reward_N)

    def records(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Rows as maps under the names of roles, which `guerdon audit` and `guerdon score` read again.

        What the log lacks is left out; of a row that is not in the sample, the texts.

        Args:
            numbers: of the rows.
        """
        texts = self.texts
        place = {} if texts is None else {int(row): m for m, row in enumerate(texts.row_M)}
        given = {
            "step": self.step_N, "group": self.group_N, "reward": self.reward_N, "truth": self.truth_N,
            "length": self.length_N, "truncated": self.truncated_N, "failed": self.failed_N,
            "advantage": self.advantage_N,
        }  # fmt: skip
        columns = {name: values for name, values in {**given, **self.rewards}.items() if values is not None}
        for row in map(int, numbers):
            record: dict[str, Any] = {"row": row, "file": self.files[self.file_N[row]], "line": int(self.line_N[row])}
            if texts is not None and row in place:
                record |= {"prompt": texts.prompts[place[row]], "response": texts.responses[place[row]]}
                if texts.truths is not None and texts.truths[place[row]]:
                    record["reference"] = texts.truths[place[row]]
            for name, values in columns.items():
                value = values[row].item()
                record[name] = None if value != value else value
            yield record

    def only(self, keep_N: Flags) -> Rows:
        """Some of the rows as a log of their own, in the same order; logged scalars are those of the whole log.

        Args:
            keep_N: which rows; the log is none of robots.
        """
        columns = {
            name: value[keep_N] for name, value in vars(self).items() if name.endswith("_N") and value is not None
        }  # fmt: skip
        rewards = {name: values[keep_N] for name, values in self.rewards.items()}
        texts = None if self.texts is None else self.texts.only(keep_N)
        return replace(self, **columns, rewards=rewards, texts=texts)

    def without_texts(self) -> Rows:
        """The same log without what was asked and said, also without examples of cells."""
        read_as = tuple({**one, "example": "left out"} for one in self.read_as)
        return replace(self, texts=None, read_as=read_as, notes=(*self.notes, "texts are left out, as was asked for"))
