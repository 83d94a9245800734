"""What a log says of rewards, whatever wrote it: a column for each kind of fact, in the order of the files.

Numbers are kept of every row and texts of a sample, so that a log of gigabytes fits into memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    def __len__(self) -> int:
        return len(self.reward_N)
