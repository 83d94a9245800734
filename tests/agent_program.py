"""A program that leads a conversation, for tests of agents of type command."""

import json
import os
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def program(how):
    """A program that leads a conversation with nothing but the standard library."""
    row = json.loads(sys.stdin.readline())
    messages = row["messages"]

    def ask(**more):
        body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, **more}
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
        request = Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urlopen(request) as reply:
                return json.load(reply)["choices"][0]
        except HTTPError as error:
            return json.load(error)["error"]

    if how == "exit":
        sys.exit("broken on purpose")
    if how == "hang":
        time.sleep(600)
    said = []
    turns = {"two": 2, "many": 9, "complains": 9}.get(how, 1)
    for _ in range(turns):
        time.sleep(float(row["id"][-1]) / 100 if how == "two" else 0.0)
        choice = ask()
        if "code" in choice:
            print(json.dumps({"error": choice["code"]}) if how == "complains" else "")
            sys.exit(choice["code"])
        said.append(choice["message"]["content"])
        messages += [choice["message"], {"role": "user", "content": "b"}]
    print("a line that is no result")
    if how == "two":
        rewards = [float(text.startswith("1")) for text in said]
        print(json.dumps({"reward": sum(rewards) / 2, "rewards": rewards, "success": rewards == [1.0, 1.0]}))
    if how == "unknown":
        print(json.dumps({"rewards": [None]}))
    if how == "leaves":
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(os.environ["LEFT"], "w", encoding="ascii") as file:
            file.write(str(left.pid))
        print(json.dumps({"reward": 0.5}))


if __name__ == "__main__":
    program(sys.argv[1])
