"""Copies of a model in processes of their own: the same answers, deaths that are told, and nothing left behind."""

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import processes  # noqa: F401  (puts this folder on the path, for us and for the copies)
import pytest
from toys import Toy

from guerdon.errors import ConfigError, GuerdonError
from guerdon.models.explained_score import JudgeOptions
from guerdon.serve.backends import Replicas, build_model, gpu_of, model_loader
from guerdon.serve.errors import ModelFailed, NotReady
from guerdon.serve.launch import serve_settings
from guerdon.settings.serve import ServedModelSettings
from guerdon.types import Episode
from tables import refuses


def replicas(count=2, factory="make", **options):
    settings = ServedModelSettings(custom_backend=f"toys:{factory}", options=options)
    return Replicas("toy", partial(build_model, "toy", settings), count=count, threads=1)


def episodes(*texts):
    return [Episode(id=str(i), task="q", texts=(text,)) for i, text in enumerate(texts)]


def alive(pid):
    """Whether there is such a process; one that has ended and waits to be asked counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, seconds=30):
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.01)
    return True


def test_copies_judge_as_the_model_does():
    texts = ["a" * n + "b" * (n % 3) + "mute" * (n % 5 == 4) for n in range(1, 12)]
    model, single = replicas(), Toy()
    try:
        for n in (0, 1, 2, 11):
            asked = episodes(*texts[:n])
            for ours, alone in zip(
                model.judge(asked, JudgeOptions()), single.judge(asked, JudgeOptions()), strict=True
            ):
                assert (ours.text, ours.tokens, ours.truncated) == (alone.text, alone.tokens, alone.truncated)
                assert (ours.score.total, ours.score.failure) == (alone.score.total, alone.score.failure)
                if alone.score.steps is not None:
                    assert ours.score.steps.tolist() == alone.score.steps.tolist()
        assert (model.info, model.card) == (single.info, None)
        assert [score.total for score in model.score(episodes("a", "b"))] == [1.0, 0.0]
    finally:
        model.close()


def ask_all(model, texts):
    """Each text from a thread of its own."""
    with ThreadPoolExecutor(len(texts)) as pool:
        asked = [pool.submit(model.judge, episodes(text), JudgeOptions()) for text in texts]
        return [future.result()[0] for future in asked]


def both_pids(model):
    """The processes behind a model of two copies: held at a gate, each takes one of two calls."""
    return {int(judged.text) for judged in ask_all(model, ["a", "aa"])}


@pytest.mark.hostile("parts")
def test_a_copy_that_dies_is_told_and_started_again(tmp_path):
    gate = tmp_path / "gate"
    model = replicas(factory="make_mortal", meet=str(gate))
    try:
        first = both_pids(model)
        assert len(first) == 2, "both copies judge at the same time"
        with pytest.raises(ModelFailed, match=r"copy \d of the model toy ended with status 9"):
            model.judge(episodes("b", "die"), JudgeOptions())
        second = both_pids(model)
        assert (len(second), len(first & second)) == (2, 1), "one is as before, the other new"
        again = ask_all(model, ["aaa", "b", "ab", "abb"])
        assert [judged.score.total for judged in again] == [1.0, 0.0, 0.5, 21 / 64]
    finally:
        model.close()
    assert gone(first | second)


def test_an_answer_that_nobody_waited_for_is_nobody_elses(monkeypatch):
    model = replicas(count=1)
    try:
        taken = []

        def interrupted(pipe):
            if not taken:
                taken.append(pipe)
                raise KeyboardInterrupt
            return recv(pipe)

        recv = Connection.recv
        monkeypatch.setattr(Connection, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.judge(episodes("a"), JudgeOptions())
        assert [judged.score.total for judged in model.judge(episodes("b"), JudgeOptions())] == [0.0]
    finally:
        model.close()


def test_closed_copies_are_not_started_again():
    model = replicas(count=1)
    model.close()
    with pytest.raises(NotReady):
        model.judge(episodes("a"), JudgeOptions())


@pytest.mark.hostile("parts")
@pytest.mark.slow
def test_a_copy_whose_restart_failed_is_started_at_the_next_call(tmp_path):
    fails = tmp_path / "fails"
    model = replicas(count=1, factory="make_mortal", fail_file=str(fails))
    try:
        fails.touch()
        with pytest.raises(ModelFailed, match="status 9"):
            model.judge(episodes("die", "a"), JudgeOptions())
        for _ in range(2):
            with pytest.raises(NotReady, match="cannot be started again"):
                model.judge(episodes("a"), JudgeOptions())
        fails.unlink()
        assert model.score(episodes("a"))[0].total == 1.0
    finally:
        model.close()


def test_a_model_with_processes_of_its_own():
    model = replicas(count=1, factory="make_parent")
    try:
        assert model.score(episodes("a"))[0].total == 1.0
    finally:
        model.close()


@pytest.mark.hostile("parts")
def test_a_model_that_raises_goes_on():
    model = replicas()
    try:
        with pytest.raises(ModelFailed, match="the model raised on 2 items: RuntimeError: secret"):
            model.judge(episodes("a", "poison"), JudgeOptions())
        assert [judged.score.total for judged in model.judge(episodes("b", "a"), JudgeOptions())] == [0.0, 1.0]
    finally:
        model.close()


@pytest.mark.hostile("parts")
@pytest.mark.slow
def test_a_model_that_cannot_be_built(tmp_path):
    (tmp_path / "fails").touch()
    with pytest.raises(GuerdonError, match="cannot load from"):
        replicas(fail_file=str(tmp_path / "fails"))
    source = model_loader("toy", ServedModelSettings(custom_backend="toys:absent", processes=2))
    with pytest.raises(ConfigError, match="absent"):
        source.load()


def test_copies_end_with_the_object(tmp_path):
    model = replicas(factory="make_mortal", meet=str(tmp_path / "gate"))
    pids = both_pids(model)
    assert [alive(pid) for pid in pids] == [True, True]
    del model
    gc.collect()
    assert gone(pids)


def test_copies_do_not_learn():
    with refuses("processes"):
        ServedModelSettings(custom_backend="toys:make_learner", update_dir="x", processes=2)
    with refuses("processes"):
        ServedModelSettings(backend="qwen_vl", tensor_parallel_size=2, processes=2)


@pytest.mark.slow
def test_a_signal_to_the_whole_group_lets_copies_finish(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    toy = {"custom_backend": "toys:make", "processes": 2, "options": {"gate": str(gate)}}
    running = server(models={"toy": toy})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(running.post, "/v1/rewards", {"items": [{"prompt": "q", "steps": ["a"]}]})
        end = time.monotonic() + 30
        while "guerdon_requests_in_flight 2.0" not in running.get("/metrics").text:
            assert time.monotonic() < end
        for pid in [running.process.pid, *copies(running)]:
            os.kill(int(pid), signal.SIGTERM)
        while running.get("/ready").status_code != 503:
            assert time.monotonic() < end
        gate.unlink()
        assert asked.result().json()["results"][0]["score"] == 1.0
    assert running.process.wait(30) == 0


def copies(running):
    """Processes of the copies of a server."""
    tasks = Path(f"/proc/{running.process.pid}/task").glob("*/children")
    pids = [pid for task in tasks for pid in task.read_text().split()]
    return [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_copy_has_one_gpu():
    given = {"backend": "qwen2_5_vl_vllm", "model_path": "some/model", "processes": 2}  # two GPUs unless told otherwise
    with refuses("models.judge.processes"):
        model_loader("judge", ServedModelSettings(**given))
    assert model_loader("judge", ServedModelSettings(**{**given, "tensor_parallel_size": 1})).lanes == 2


def test_copies_are_spread_over_the_gpus_that_are_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [gpu_of(copy) for copy in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert [gpu_of(copy) for copy in range(3)] == ["3", "5", "3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpu_of(1) is None, "it is the only one anyway"


@pytest.mark.slow
def test_a_single_episode_is_sent_once_more(tmp_path):
    once = tmp_path / "once"
    once.touch()
    model = replicas(count=1, factory="make_mortal", dies_once=str(once))
    try:
        assert model.score(episodes("a"))[0].total == 1.0
        assert not once.exists()
        with pytest.raises(ModelFailed, match="status 9"):
            model.judge(episodes("die"), JudgeOptions())
    finally:
        model.close()


@pytest.mark.hostile("parts")
@pytest.mark.slow
def test_copies_that_die_while_nobody_asks_fail_no_item(server):
    models = {"toy": {"custom_backend": "toys:make_mortal", "processes": 2}}
    running = server(models=models, batch={"cache_items": 0})
    for _ in range(2):
        killed = copies(running)
        assert len(killed) == 2
        for pid in killed:
            os.kill(int(pid), signal.SIGKILL)
        assert gone([int(pid) for pid in killed])
        for text, score in (("a", 1.0), ("b", 0.0), ("ab", 0.5)):
            results = running.post("/v1/rewards", {"items": [{"prompt": "q", "steps": [text]}]}).json()["results"]
            assert [(one["score"], one["failure"]) for one in results] == [(score, None)]
        running.post("/v1/rewards", {"items": [{"prompt": "q", "steps": ["a" * n]} for n in range(1, 40)]})
    assert running.stop() == 0


@pytest.mark.hostile("parts")
@pytest.mark.slow
def test_a_copy_that_cannot_be_started_again_is_the_servers_fault(server, tmp_path):
    fails = tmp_path / "fails"
    models = {"toy": {"custom_backend": "toys:make_mortal", "processes": 1, "options": {"fail_file": str(fails)}}}
    running = server(models=models, batch={"cache_items": 0})
    fails.touch()
    for pid in copies(running):
        os.kill(int(pid), signal.SIGKILL)
        gone([int(pid)])
    for _ in range(2):
        answer = running.post("/v1/rewards", {"items": [{"prompt": "q", "steps": ["a"]}]})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "secret" not in answer.text
    fails.unlink()
    answer = running.post("/v1/rewards", {"items": [{"prompt": "q", "steps": ["a"]}]})
    assert answer.json()["results"][0]["score"] == 1.0
    assert running.stop() == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_server_of_copies(server, end):
    models = {"toy": {"custom_backend": "toys:make_mortal", "processes": 2}}
    running = server(models=models, batch={"cache_items": 0})

    def ask(*texts):
        items = [{"prompt": "q", "steps": [text]} for text in texts]
        return running.post("/v1/rewards", {"items": items}).json()["results"]

    found = ask("a", "ab", "mute")
    assert [one["score"] for one in found] == [1.0, 0.5, None]
    assert found[2]["failure"]["reason"] == "mute"
    found = ask("a", "die", "b")
    assert [one["score"] for one in found] == [1.0, None, 0.0]
    assert found[1]["failure"]["reason"] == "model_error"
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    os.kill(running.process.pid, end)
    running.process.wait(30)
    assert gone([int(pid) for pid in children])


@pytest.mark.slow
def test_a_reload_ends_the_old_copies(server, tmp_path):
    version = tmp_path / "version"
    version.write_text("one")
    toy = {"custom_backend": "toys:make", "processes": 2, "options": {"version_file": str(version)}}
    running = server(models={"toy": toy})
    judged = running.post("/v1/rewards", {"items": [{"prompt": "q", "steps": ["a"]}]})
    assert judged.json()["results"][0]["score"] == 1.0
    version.write_text("two")
    assert running.post("/v1/reload", {"model": "toy"}).status_code == 200
    assert running.post("/v1/rewards", {"items": [{"prompt": "q", "steps": ["b"]}]}).status_code == 200

    end = time.monotonic() + 30
    while len([pid for pid in copies(running) if alive(pid)]) != 2:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_copies_by_a_flag():
    flags = {"model": ["prm=runs/prm"], "processes": 3, "threads": 6}
    settings = serve_settings(None, [], flags)
    assert (settings.models["prm"].processes, settings.threads) == (3, 6)
