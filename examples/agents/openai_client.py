"""OpenAI's client: ask, call the tool, ask again, until there is an answer. See docs/agents.md."""

import json
import os
import sys

from openai import BadRequestError, OpenAI

MULTIPLY = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def result(arguments: str) -> str:
    """What a call of the tool returns."""
    try:
        given = json.loads(arguments)
        return str(int(given["a"]) * int(given["b"]))
    except (KeyError, TypeError, ValueError) as error:
        return f"error: {error}"


row = json.loads(sys.stdin.readline())
client, messages, answer = OpenAI(), row["messages"], ""
try:
    while True:
        reply = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, tools=[MULTIPLY])
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            answer = message.content or ""
            break
        for call in message.tool_calls:
            content = result(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
except BadRequestError as error:  # no turn left, or no room in the context
    if error.code != "context_length_exceeded":
        raise
print(json.dumps({"reward": float(row["extra_info"]["answer"] in answer)}))
