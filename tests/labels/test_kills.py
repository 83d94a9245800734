"""The bill of a judge and the ledger, over processes that are killed at random moments."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing

import llm_client_child
import pytest
import yaml
from judge_server import judge_server, judgements, steps_asked
from label_studies import DATA, TINY

from guerdon.endpoints.llm_client import request_key
from guerdon.files.append_log import Ledger
from guerdon.settings.label import OpenAIJudgeSettings
from tables import sample

pytestmark = pytest.mark.hostile("kills")

PRICE = 100 * 10 / 1e6 + 20 * 100 / 1e6  # of a reply of the judge server, in dollars
CONCURRENCY = 8
KILLS = 2  # before it is asked to end
MODEL = OpenAIJudgeSettings(model="m")


class Billing:
    """Counts what the judge bills, and signals the process that asks at random moments.

    Args:
        answer: the reply to the user's text, given how often it was asked before.
        seed: of the moments.
    """

    def __init__(self, answer, seed):
        self.answer, self.random = answer, random.Random(seed)
        self.billed, self.lock = Counter(), threading.Lock()
        self.child, self.signal, self.left = None, None, 0

    def arm(self, child, number):
        """Send the signal at one of the next requests."""
        with self.lock:
            self.child, self.signal, self.left = child, number, self.random.randint(2, 30)

    def __call__(self, text):
        with self.lock:
            before = self.billed[text]
            self.billed[text] += 1
            self.left -= 1
            if self.left == 0 and self.child is not None:
                self.child.send_signal(self.signal)
        return self.answer(text, before)

    @property
    def usd(self):
        return sum(self.billed.values()) * PRICE

    @property
    def repeated(self):
        return sum(n - 1 for n in self.billed.values())


def run(command, billing=None, number=None, cwd=None):
    """The exit status of a process, which gets a signal at a random request."""
    child = subprocess.Popen(command, cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
    if billing is not None:
        billing.arm(child, number)
    error = child.communicate()[1].decode()
    if billing is not None:
        billing.arm(None, None)
    return child.returncode, error


def spent(folder):
    with closing(Ledger(folder / "calls.jsonl", prices=(10.0, 100.0))) as ledger:
        return ledger.spent


def stored(folder):
    """Keys of the replies that are kept; a line that a kill cut off does not count."""
    path = folder / "replies.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return {key for line in lines for key, value in json.loads(line).items() if "text" in value}


@pytest.mark.parametrize("max_usd", sample([10.0, 0.25], 0.25))
def test_kills_lose_no_cost_and_pay_for_no_stored_reply_again(tmp_path, max_usd):
    n = 150
    unusable = {llm_client_child.request(i).messages[0]["content"] for i in range(0, n, 10)}
    texts = {request_key(MODEL, llm_client_child.request(i)): llm_client_child.request(i).messages[0]["content"]
             for i in range(n)}  # fmt: skip
    billing = Billing(lambda text, before: "nonsense" if text in unusable and not before else "fine", seed=1)
    with judge_server(billing) as server:
        command = [
            sys.executable,
            llm_client_child.__file__,
            tmp_path,
            server.url,
            str(n),
            str(CONCURRENCY),
            str(max_usd),
        ]
        for number in [signal.SIGKILL] * KILLS + [signal.SIGTERM]:
            before = {key: billing.billed[texts[key]] for key in stored(tmp_path)}
            status, error = run(list(map(str, command)), billing, number)
            assert status in (-number, 143, 3), error
            assert {key: billing.billed[texts[key]] for key in before} == before
            assert billing.usd <= spent(tmp_path) <= max_usd
        status, error = run(list(map(str, command)))
    assert status == (0 if max_usd == 10 else 3), error
    assert billing.usd <= spent(tmp_path) <= max_usd
    assert billing.repeated - len(unusable) <= KILLS * CONCURRENCY
    if max_usd == 10:
        assert stored(tmp_path) == set(texts)


@pytest.mark.slow
def test_guerdon_label_over_twenty_kills(tmp_path):
    n, max_usd = 400, 20.0
    study = {
        "policy": {"type": "text", "tiny": TINY, "bf16": False},
        "data": {**DATA, "task": {"family": "chain", "steps": 2}, "train_size": n},
        "label": {
            "save_dir": str(tmp_path), "method": 2, "labeler": "judge", "mining": None, "num_samples": n,
            "num_rollouts": 1, "max_usd": max_usd, "judge": {
                "api": "openai", "model": "m", "max_tokens": 50, "concurrency": CONCURRENCY, **llm_client_child.PRICES,
            },
        },
    }  # fmt: skip

    def answer(text, before):
        steps = steps_asked(text)
        return judgements([1] * len(steps)) if steps else "1+1=2;2+2=4;"

    billing = Billing(answer, seed=2)
    records = tmp_path / "prm_dataset_method2_HE" / "records.jsonl"
    kills = 0
    with judge_server(billing) as server:
        study["label"]["judge"]["base_url"] = server.url + "/v1"
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
        command = [sys.executable, "-m", "guerdon", "label", str(tmp_path / "study.yaml")]
        for number in [signal.SIGKILL] * 10 + [signal.SIGTERM] + [signal.SIGKILL] * 10:
            status, error = run(command, billing, number)
            assert status in (-signal.SIGKILL, 130), error
            kills += status == -signal.SIGKILL
            assert billing.usd <= spent(tmp_path / "cache") <= max_usd
            assert not records.exists()
        status, error = run(command)
        assert status == 0, error
        requests = sum(billing.billed.values())
        assert run(command)[0] == 0
        assert sum(billing.billed.values()) == requests  # the second time, nobody is asked
    assert kills == 20
    assert len(records.read_text().splitlines()) == n
    assert requests == billing.repeated + 2 * n
    assert billing.repeated <= kills * CONCURRENCY
    assert billing.usd <= spent(tmp_path / "cache") <= max_usd
    print(f"{kills} kills: {requests} replies, {billing.repeated} of them twice; "
          f"billed ${billing.usd:.3f}, ledger ${spent(tmp_path / 'cache'):.3f}")  # fmt: skip
