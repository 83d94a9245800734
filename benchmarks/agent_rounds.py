"""What rounds of conversations cost: through the endpoint next to in this process, and with tools that take time.

    python benchmarks/agent_rounds.py --what=endpoint --pairs=5
    python benchmarks/agent_rounds.py --what=tools --seeds=5

A model with random weights (made in code) writes all tokens of every reply. *endpoint*: the same conversations of four
turns, byte for byte, once by a world in this process and once by a program for each, which calls the address; from the
first request of a round to the last reply, so that starting the programs does not count. *tools*: 64 conversations, in
which each turn calls a function that sleeps for 0 to 2 seconds; the time next to the largest sum of sleeps in one
conversation plus the time with a function that answers at once. Targets: 1.1 and 1.3.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from agent_turns import TURNS, model
from harness import Stopwatch

if TYPE_CHECKING:  # the processes of the tool import this file, and nothing that is large
    from guerdon.collect.agents import Agent
    from guerdon.collect.conversations import Conversation
    from guerdon.policies.language.generate import Generation
    from guerdon.settings.agent import AgentSettings
    from guerdon.tasks.prompts import Prompt

LONGEST = 2.0  # seconds of a sleep
PROGRAM = """
import json, os, sys, urllib.request
messages = json.loads(sys.stdin.readline())["messages"]
for turn in range({turns}):
    body = json.dumps({{"model": os.environ["OPENAI_MODEL"], "messages": messages}}).encode()
    head = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)
    reply = json.load(urllib.request.urlopen(asked))["choices"][0]["message"]
    messages += [reply, {{"role": "user", "content": "r" * 17}}]
print(json.dumps({{"reward": 0.0}}))
"""


class Watched:
    """An engine that writes every token, and notes when it first began and last ended.

    Args:
        policy: that writes.
        calls: sleeps by conversation and turn; what is written is replaced by calls of `wait`. None: it is kept.
    """

    def __init__(self, policy: Any, calls: np.ndarray | None = None) -> None:
        from guerdon.policies.language.generate import LocalEngine
        from guerdon.settings.text_policy import LocalGenerationSettings

        self._engine = LocalEngine(policy, LocalGenerationSettings())
        self._engine._is_stop_V.zero_()
        self._tokenizer, self._calls = policy.tokenizer, calls
        self.clock: Stopwatch | None = None
        self.ended: dict[str, float] = {}

    def generate(self, prompts: Sequence[np.ndarray], n_per_prompt: int, **given: Any) -> Generation:
        """As the engine."""
        self.clock = self.clock or Stopwatch()
        found = self._engine.generate(prompts, n_per_prompt, **given)
        if self._calls is not None:
            found = self._calling(prompts, found)
        self.ended = self.clock.read()
        return found

    def _calling(self, prompts: Sequence[np.ndarray], found: Generation) -> Generation:
        """Calls in place of what was written: of the conversation that the question names, and its turn."""
        from guerdon.policies.batches.tokens import decode

        assert self._calls is not None
        rows = found.batch.responses_B_T
        for k, ids in enumerate(prompts):
            asked = decode(self._tokenizer, ids)
            conversation, turn = int(asked.rpartition("number ")[2].split("?")[0]), asked.count("slept")
            call = {"name": "wait", "arguments": {"seconds": round(float(self._calls[conversation, turn]), 3)}}
            said = f"<tool_call>{json.dumps(call)}</tool_call>"
            written = self._tokenizer.encode(said.ljust(rows.shape[1]), add_special_tokens=False)
            rows[k] = written[: rows.shape[1]]
        found.batch.finished_B[:] = True
        return found


def wait(seconds: float) -> str:
    """Sleep.

    Args:
        seconds: how long
    """
    time.sleep(seconds)
    return "slept"


class Talk:
    """A world that says the same message after every reply; it never ends an episode."""

    def reset(self, row: dict[str, Any]) -> Any:
        """The prompt."""
        from guerdon.collect.agents import WorldStep

        return WorldStep(row["messages"])

    def step(self, message: dict[str, Any]) -> Any:
        """A few letters."""
        from guerdon.collect.agents import WorldStep

        return WorldStep(({"role": "user", "content": "r" * 17},))


def led(
    policy: Any, engine: Watched, agent: Agent, settings: AgentSettings, rows: Sequence[Prompt], reply: int
) -> list[Conversation]:
    """Conversations of the rows, with replies of `reply` tokens."""
    from guerdon.collect.conversations import ConversationLoop
    from guerdon.settings.data import PromptsDataSettings

    data = PromptsDataSettings(path="none", max_response_length=reply)
    none = np.zeros(0, dtype=np.int64)
    return ConversationLoop(policy.tokenizer, engine, agent, settings, data, stops=none, room=None).lead(rows, root=1)


def endpoint(given: argparse.Namespace) -> None:
    """Print the times of the same conversations by a world and by programs."""
    from guerdon.collect.agents import WorldAgent
    from guerdon.collect.command_agent import CommandAgent
    from guerdon.settings.agent import CommandAgentSettings, OwnAgentSettings
    from guerdon.tasks.prompts import Prompt

    policy = model(given)
    rows = [Prompt(f"{k}", ({"role": "user", "content": "q" * 64},), "", "none") for k in range(given.rows)]
    world = OwnAgentSettings(type=f"{__name__}:Talk", max_turns=TURNS)
    program = CommandAgentSettings(
        type="command", command=(sys.executable, "-c", PROGRAM.format(turns=TURNS)), max_turns=TURNS,
        processes_at_once=given.rows,
    )  # fmt: skip
    pairs = []
    for _ in range(given.pairs + 1):
        sides, said = [], []
        for settings in (world, program):
            engine = Watched(policy)
            agent: Agent = (
                WorldAgent(settings)
                if isinstance(settings, OwnAgentSettings)
                else CommandAgent(settings, temperature=1.0)
            )
            found = led(policy, engine, agent, settings, rows, given.reply)
            agent.close()
            assert all(one.failure is None and len(one.calls) == TURNS for one in found)
            said.append([[call.ids.tolist() for call in one.calls] for one in found])
            sides.append(engine.ended)
        assert said[0] == said[1], "both sides write the same tokens"
        pairs.append(sides)
    for unit in ("seconds", "core_seconds"):
        ratios = [own[unit] / other[unit] for other, own in pairs[1:]]  # the first pair warms up
        here, there = (statistics.median(side[unit] for side in sides) for sides in zip(*pairs[1:], strict=True))
        print(
            f"| {unit} | {here:.2f} | {there:.2f} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |"
        )


def tools(given: argparse.Namespace) -> None:
    """Print the time with tools that sleep next to what cannot be avoided."""
    from guerdon.collect.agents import ToolAgent
    from guerdon.settings.agent import ToolAgentSettings
    from guerdon.tasks.prompts import Prompt

    policy = model(given)
    settings = ToolAgentSettings(
        tools=("agent_rounds:wait",), max_turns=TURNS, calls_at_once=given.rows, call_timeout=10 * LONGEST
    )
    asked = "Which number "
    rows = [Prompt(f"{k}", ({"role": "user", "content": f"{asked}{k}?"},), "", "none") for k in range(given.rows)]
    agent, ratios = ToolAgent(settings), []
    none = np.zeros((given.rows, TURNS))

    def seconds(calls: np.ndarray) -> float:
        engine, begun = Watched(policy, calls), time.perf_counter()
        found = led(policy, engine, agent, settings, rows, given.reply)
        assert all(one.failure is None and len(one.calls) == TURNS for one in found)
        assert sum(one.counts["calls"] - one.counts["bad_calls"] for one in found) == given.rows * TURNS
        return time.perf_counter() - begun

    seconds(none)  # starts the processes of the tool
    for seed in range(given.seeds):
        sleeps = np.random.default_rng(seed).uniform(0, LONGEST, (given.rows, TURNS))
        at_once, whole = seconds(none), seconds(sleeps)
        longest = float(sleeps.sum(1).max())
        ratios.append(whole / (longest + at_once))
        print(f"| {seed} | {longest:.2f} | {at_once:.2f} | {whole:.2f} | {ratios[-1]:.2f} |", flush=True)
    agent.close()
    if ratios:
        print(f"mean ratio {statistics.mean(ratios):.2f}")


def main() -> None:
    """Measure one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("endpoint", "tools"), required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=64, help="conversations")
    parser.add_argument("--reply", type=int, default=80, help="tokens of each reply")
    parser.add_argument("--hidden", type=int, default=384)
    given = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {given}")
    {"endpoint": endpoint, "tools": tools}[given.what](given)


if __name__ == "__main__":
    main()
