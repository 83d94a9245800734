"""Traces of verifiers, made without a model, and scored by verifiers itself."""

import asyncio

import verifiers.v1 as vf
from verifiers.v1.errors import TaskError
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import AgentInfo, TraceTask

from guerdon.integrations.verifiers import reward_function, trace_reward


def trace_of(question, response, token_ids=(), prompt_ids=(), key=None):
    data = vf.TaskData(prompt=question)
    asked = MessageNode(message=vf.UserMessage(content=question), token_ids=list(prompt_ids),
                        mask=[False] * len(prompt_ids))  # fmt: skip
    answer = MessageNode(parent=0, message=vf.AssistantMessage(content=response), sampled=True,
                         token_ids=list(token_ids), mask=[True] * len(token_ids))  # fmt: skip
    task = TraceTask(type="T", data=data, key=key or question)
    return vf.Trace(task=task, agent=AgentInfo(config=vf.AgentConfig()), nodes=[asked, answer])


def scored(scorer, question, response):
    """By a method of the task."""

    class Maths(vf.Task):
        @vf.reward(weight=1.0)
        async def prm(self, trace: vf.Trace) -> float:
            return await trace_reward(scorer, trace)

    return run(Maths(vf.TaskData(prompt=question)), trace_of(question, response))


def scored_by_config(scorer, question, response, module):
    """By the configuration `task.rewards.prm.fn`, where `module` is a module that can be imported."""
    module.prm = reward_function(scorer)
    config = vf.TaskConfig(rewards={"prm": {"fn": f"{module.__name__}:prm", "weight": 0.5}})
    return run(vf.Task(vf.TaskData(prompt=question), config), trace_of(question, response))


def run(task, trace):
    try:
        asyncio.run(task.score(trace))
    except TaskError as error:  # as verifiers records it at the end of a rollout
        trace.info["error"] = str(error)
    return trace
