"""An agent of smolagents. It rewrites its history at each step, so a conversation has several contexts."""

import json
import os
import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a * b


row = json.loads(sys.stdin.readline())
model = OpenAIModel(
    os.environ["OPENAI_MODEL"], api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
agent = ToolCallingAgent([multiply], model, max_steps=4, verbosity_level=0)
answer = agent.run(row["messages"][-1]["content"])
print(json.dumps({"reward": float(row["extra_info"]["answer"] in str(answer))}))
