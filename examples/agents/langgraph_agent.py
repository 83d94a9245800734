"""A graph of LangGraph with a tool. It only adds messages, so a conversation is one context. See docs/agents.md."""

import json
import os
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


row = json.loads(sys.stdin.readline())
model = ChatOpenAI(model=os.environ["OPENAI_MODEL"]).bind_tools([multiply])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([multiply]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
last = graph.compile().invoke({"messages": row["messages"]})["messages"][-1]
print(json.dumps({"reward": float(row["extra_info"]["answer"] in last.text)}))
