"""`guerdon annotate` as a process: addresses, signals, restarts, and ten clients while it is killed."""

import json
import signal
import socket
import sys
import threading
import time
from dataclasses import replace

import httpx2 as httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from annotated import annotating
from judged import judging, lines, log_of
from typer.testing import CliRunner

from called import called
from guerdon import EpisodeWriter
from guerdon.cli import app
from guerdon.episodes.read import read_episodes


def guerdon(folder, *words):
    """The command in this process: exit status and what it says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = CliRunner().invoke(app, ["annotate", *map(str, words)])
    return getattr(done.exception, "exit_code", done.exit_code), f"{done.output}{done.exception or ''}"


def judge(url, headers, client, number):
    (one,) = client.get(f"{url}/api/next", headers=headers).json()["items"]
    content = {"key": f"key-{number:05}", "item": one["item"], "judgement": "right", "seconds": 1.0}
    answer = client.post(f"{url}/api/judgements", json=content, headers=headers)
    assert answer.status_code == 200, answer.text
    return content


def test_it_judges_ends_and_exports(tmp_path):
    data = log_of(tmp_path / "log.jsonl", 8)
    with httpx.Client(timeout=60) as client, annotating(tmp_path, data, "--port", "0") as running:
        judge(running.url, {}, client, 0)
        out = running.end(signal.SIGINT)
        assert running.process.returncode == 0, running.said
        assert "1 of 8 items have a label" in out
        assert out.splitlines()[-1] == "wrote log.jsonl.labels/labels.jsonl"
    summary = json.loads((tmp_path / "log.jsonl.labels" / "summary.json").read_text())
    assert summary["people"][0]["judgements"] == 1
    status, said = guerdon(tmp_path, data, "--people", "ann,bo")
    assert (status, "was begun by one person" in said) == (2, True)
    with judging(data, tmp_path / "log.jsonl.labels"):
        status, said = guerdon(tmp_path, data, "--export")
    assert (status, "another guerdon annotate works on" in said) == (6, True)
    status, said = guerdon(tmp_path, data, "--export")
    assert (status, "wrote log.jsonl.labels/labels.jsonl" in said) == (0, True), said


def test_what_is_refused_leaves_no_folder_and_is_refused_again(tmp_path):
    lines(tmp_path / "log.jsonl", [{"prompt": f"Q{k}", "response": f"A{k}", "reward": k} for k in range(4)])
    lines(tmp_path / "pairs.jsonl", [{"prompt": f"Q{k}", "chosen": "A", "rejected": "B"} for k in range(4)])
    status, said = guerdon(tmp_path, "log.jsonl", "--host", "0.0.0.0")
    assert (status, "name those who judge" in said, (tmp_path / "log.jsonl.labels").exists()) == (2, True, False)
    with judging(tmp_path / "log.jsonl", tmp_path / "log.jsonl.labels"):
        pass
    status, said = guerdon(tmp_path, "log.jsonl", "--show", "reference", "--port", "0")
    assert (status, "has no reference answers" in said) == (2, True), said
    status, said = guerdon(tmp_path, "pairs.jsonl", "--as", "steps", "--port", "0")
    assert (status, "4 x a row of no known format, found prompt, chosen, rejected" in said) == (2, True), said


def test_what_is_refused(tmp_path):
    data = log_of(tmp_path / "log.jsonl", 8)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, wanted in (
            (("--port", port), f"cannot listen on 127.0.0.1:{port}"),
            (("--host", "0.0.0.0"), "name those who judge, --people ann,bo"),
            (("--people", "ann,ann"), "ann comes twice"),
            (("--show", "truth"), "only the reference answer can be shown"),
            (("--export", "-o", "nothing"), "there are no judgements in nothing"),
        ):
            status, said = guerdon(tmp_path, data, *words)
            assert (status, wanted in said) == (2, True), said


def many_clients(folder, data, *, clients, each, kills):
    """Clients that judge, and repeat what was not answered, while the process is killed: answers and their times."""
    names = [f"p{k}" for k in range(clients)]
    words = ("--people", ",".join(names), "--overlap", "0", "--port")
    times, acknowledged, failures = [], [], []
    with annotating(folder, data, *words, "0", people=clients) as first:
        port, tokens = first.url.rpartition(":")[2], first.tokens
        done = threading.Event()

        def work(name):
            sent, headers = 0, {"Authorization": f"Bearer {tokens[name]}"}
            with httpx.Client(timeout=20, base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                pending = None
                while sent < each:
                    try:
                        if pending is None:
                            items = client.get("/api/next?count=1").json()["items"]
                            if not items:
                                break
                            pending = {"key": f"{name}-{sent:06}", "item": items[0]["item"], "judgement": "right"}
                        began = time.perf_counter()
                        answer = client.post("/api/judgements", json=pending)
                        times.append(time.perf_counter() - began)
                    except httpx.HTTPError:
                        time.sleep(0.05)
                        continue
                    if answer.status_code != 200:
                        failures.append(answer.text)
                        return
                    acknowledged.append((name, pending["item"]))
                    pending, sent = None, sent + 1

        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        running = first
        for kill in range(kills):
            while len(acknowledged) < clients * each * (kill + 1) // (kills + 1) and any(t.is_alive() for t in threads):
                done.wait(0.01)
            running.end(signal.SIGKILL)
            again = annotating(folder, data, *words, port, people=clients)
            running = again.__enter__()
        for thread in threads:
            thread.join()
        with open(f"/proc/{running.process.pid}/status", encoding="ascii") as status:
            peak = next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))
        running.end()
    assert not failures
    return times, acknowledged, peak


def check_stored_once(folder, acknowledged):
    log = [json.loads(line) for line in (folder / "log.jsonl.labels" / "judgements.jsonl").read_text().splitlines()]
    stored = [(row["person"], row["item"]) for row in log]
    assert len(stored) == len(set(stored))
    assert set(acknowledged) <= set(stored)
    assert len(acknowledged) == len(set(acknowledged))


def test_three_clients_while_it_is_killed(tmp_path):
    data = log_of(tmp_path / "log.jsonl", 45)
    _, acknowledged, _ = many_clients(tmp_path, data, clients=3, each=15, kills=1)
    assert len(acknowledged) == 45
    check_stored_once(tmp_path, acknowledged)


@pytest.mark.slow
def test_ten_clients_and_ten_thousand_judgements(tmp_path):
    """Prints what docs/annotate.md says."""
    rows = [
        {"prompt": f"Question {k}? " + "why " * 250, "response": f"{k} " * 250, "reward": k % 2} for k in range(10_000)
    ]
    data = lines(tmp_path / "log.jsonl", rows)
    times, acknowledged, peak = many_clients(tmp_path, data, clients=10, each=1000, kills=5)
    check_stored_once(tmp_path, acknowledged)
    assert len(acknowledged) == 10_000
    quick = float(np.quantile(times, 0.95))
    sys.stdout.write(f"95 % of answers in {1000 * quick:.0f} ms, memory {peak} MB\n")
    assert peak < 500


STUDY = """
env: {type: metaworld, task: window-close, num_envs: 4, max_episode_steps: 100, frame_size: 32}
collect: {save_dir: original, episodes: 8, mixture: [{type: expert}, {type: random}]}
train:
  success: {type: resnet, data_path: original, save_dir: model, max_epochs: 1, batch_size: 16, image_size: 32}
"""


@pytest.mark.slow
def test_window_close_labelled_by_its_truth_trains_the_same_model(tmp_path):
    """Without outcomes and labelled over HTTP: columns, and metrics of `train`, are those of the original."""
    (tmp_path / "study.yaml").write_text(STUDY)
    assert called("collect", "study.yaml", folder=tmp_path).returncode == 0
    truth = dict(enumerate(read_episodes(tmp_path / "original")))
    assert {one.outcome for one in truth.values()} == {True, False}
    with EpisodeWriter(tmp_path / "bare", fps=20, camera="corner") as writer:
        for one in truth.values():
            writer.add(replace(one, success=None, outcome=None))
    refused = called("train", "study.yaml", "train.success.data_path=bare", folder=tmp_path)
    assert "guerdon annotate" in refused.stderr
    with httpx.Client(timeout=60) as client, annotating(tmp_path, "bare", "--port", "0", "--overlap", "0") as running:
        while items := client.get(f"{running.url}/api/next", params={"count": 4}).json()["items"]:
            for one in items:
                known = truth[one["show"]["episode"]]
                said = {"judgement": "failure"}
                if known.outcome:
                    said = {"judgement": "success", "row": int(np.argmax(known.success))}
                body = {"key": f"key-{one['show']['episode']:04}", "item": one["item"], **said}
                assert client.post(f"{running.url}/api/judgements", json=body).status_code == 200
        running.end()
    original, labelled = (columns_of(tmp_path / name) for name in ("original", "bare.labels/labels"))
    assert original == labelled
    metrics = []
    for name in ("original", "bare.labels/labels"):
        given = [f"train.success.data_path={name}", f"train.success.save_dir=models/{len(metrics)}"]
        done = called("train", "study.yaml", *given, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        found = json.loads((tmp_path / given[1].partition("=")[2] / "metrics.json").read_text())
        metrics.append({name: value for name, value in found.items() if name not in ("seconds", "history")})
    assert metrics[0] == metrics[1]
    assert {"loss", "auroc"} <= metrics[0].keys()


def columns_of(root):
    """The rows of a data set by column."""
    tables = [pq.read_table(file) for file in sorted((root / "data").rglob("*.parquet"))]
    return {name: [one for table in tables for one in table[name].to_pylist()] for name in tables[0].column_names}
