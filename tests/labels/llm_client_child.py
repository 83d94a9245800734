"""A process that asks a judge and gets killed: `python llm_client_child.py FOLDER URL N CONCURRENCY MAX_USD`.

Ends with status 0 when all N requests have an answer, 3 when the budget is spent before.
"""

import signal
import sys
from contextlib import closing
from pathlib import Path

from guerdon.endpoints.llm_client import BUDGET, HttpLLMClient, LLMRequest
from guerdon.files.append_log import Cache, Ledger
from guerdon.network.retry import Clock
from guerdon.settings.label import OpenAIJudgeSettings
from guerdon.types import Failure

PRICES = {"usd_per_million_in": 10.0, "usd_per_million_out": 100.0}


def request(i):
    """Request number i: long enough that the 100 tokens a reply reports are below its bound."""
    return LLMRequest(({"role": "user", "content": f"question {i:04}: " + "how much is it? " * 8},), 50, None)


def check(reply):
    return Failure("unusable_reply") if reply.text == "nonsense" else reply.text


def main(folder, url, n, concurrency, max_usd):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    settings = OpenAIJudgeSettings(model="m", base_url=url + "/v1", concurrency=int(concurrency), **PRICES)
    with (
        closing(Cache(Path(folder) / "replies.jsonl")) as cache,
        closing(Ledger(Path(folder) / "calls.jsonl", prices=settings.prices, max_usd=float(max_usd))) as ledger,
    ):
        client = HttpLLMClient(settings, cache, ledger, Clock())
        answers = dict(client.complete([request(i) for i in range(int(n))], [check] * int(n), role="judge"))
    return 3 if any(isinstance(a, Failure) and a.reason == BUDGET for a in answers.values()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
