"""A guerdon reward model as a reward of a verifiers task, with a failure: python examples/verifiers_rewards.py."""

import asyncio

import numpy as np
import verifiers.v1 as vf
from verifiers.v1.errors import TaskError
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask

from guerdon import Episode, Failure, RewardInfo, Score
from guerdon.integrations.text import TextScorer
from guerdon.integrations.verifiers import trace_reward


class Lengths:
    """A value for each step: short ones are good. An answer with a question mark cannot be judged."""

    info = RewardInfo("lengths", (0.0, 1.0), granularity="step", modality="text", frames_needed=0)

    def score(self, episodes: list[Episode]) -> list[Score]:
        """One Score per answer."""
        failed = Score(failure=Failure("unreadable", "a question mark"))
        scores = [Score.from_values(np.array([1 / len(text) for text in e.texts])) for e in episodes]
        return [failed if "?" in "".join(e.texts) else one for e, one in zip(episodes, scores, strict=True)]


scorer = TextScorer(Lengths(), aggregation="min")


class Maths(vf.Task):
    """A question, rewarded by the model."""

    @vf.reward(weight=1.0)
    async def brevity(self, trace: vf.Trace) -> float:
        """The smallest value of the answer's steps."""
        return await trace_reward(scorer, trace)


def main() -> list[float | None]:
    """Score two answers as a rollout would; None where the reward is missing."""
    found: list[float | None] = []
    for answer in ("3+5=8\n\n8", "eight?"):
        task = Maths(vf.TaskData(prompt="3+5=?"))
        asked = MessageNode(message=vf.UserMessage(content="3+5=?"))
        said = MessageNode(parent=0, message=vf.AssistantMessage(content=answer), sampled=True)
        agent = AgentInfo(config=vf.AgentConfig())
        trace = vf.Trace(task=TraceTask(type="Maths", data=task.data), agent=agent, nodes=[asked, said])
        try:
            asyncio.run(task.score(trace))
        except TaskError as error:  # a rollout records it in the trace
            print(error)
        reward = trace.rewards["brevity"]
        found.append(None if reward is None else reward.score)
    return found


if __name__ == "__main__":
    print(main())
