"""A process that makes many calls at once: `python calls_child.py FOLDER URL N CONCURRENCY OPEN_FILES`.

Prints how many replies are right and, after a line on its input, how many files are open that were not before.
"""

import os
import resource
import signal
import sys
from contextlib import closing
from pathlib import Path

from guerdon.endpoints.llm_client import HttpLLMClient, LLMRequest
from guerdon.files.append_log import Cache, Ledger
from guerdon.settings.label import OpenAIJudgeSettings


def main(folder, url, n, concurrency, open_files):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(open_files), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    settings = OpenAIJudgeSettings(model="m", base_url=url + "/v1", concurrency=int(concurrency), retries=0)
    requests = [LLMRequest(({"role": "user", "content": f"question {i}"},), 50, 0.0) for i in range(int(n))]
    with (
        closing(Cache(Path(folder) / "replies.jsonl")) as cache,
        closing(Ledger(Path(folder) / "calls.jsonl", prices=(0.0, 0.0))) as ledger,
    ):
        client = HttpLLMClient(settings, cache, ledger)
        before = len(os.listdir("/dev/fd"))
        answers = dict(client.complete(requests, [lambda reply: reply.text] * len(requests), role="judge"))
    print(sum(text == "ok" for text in answers.values()), flush=True)
    sys.stdin.readline()
    print(len(os.listdir("/dev/fd")) - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
