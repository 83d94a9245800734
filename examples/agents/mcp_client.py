"""A client of an MCP server: its tools go to the model, and the model's calls to the server. See docs/agents.md.

`mcp_client.py serve` is the server, which the client starts; any other server of the Model Context Protocol does.
"""

import asyncio
import json
import os
import sys

from mcp import StdioServerParameters, stdio_client
from mcp.client import Client
from mcp.server.mcpserver import MCPServer
from openai import AsyncOpenAI, BadRequestError

server = MCPServer("products")


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


async def answer_of(messages: list[dict]) -> str:
    """The last reply of the model, after the calls that it made."""
    model, command = AsyncOpenAI(), StdioServerParameters(command=sys.executable, args=[__file__, "serve"])
    async with Client(stdio_client(command)) as client:
        tools = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": t.input_schema},
            }
            for t in (await client.list_tools()).tools
        ]
        while True:
            reply = await model.chat.completions.create(
                model=os.environ["OPENAI_MODEL"], messages=messages, tools=tools
            )
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                found = await client.call_tool(call.function.name, json.loads(call.function.arguments))
                text = "".join(part.text for part in found.content if part.type == "text")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def main() -> None:
    """Lead one conversation."""
    row = json.loads(sys.stdin.readline())
    try:
        answer = asyncio.run(answer_of(row["messages"]))
    except BadRequestError as error:  # no turn left, or no room in the context
        if error.code != "context_length_exceeded":
            raise
        answer = ""
    print(json.dumps({"reward": float(row["extra_info"]["answer"] in answer)}))


if __name__ == "__main__":
    server.run() if sys.argv[1:] == ["serve"] else main()
