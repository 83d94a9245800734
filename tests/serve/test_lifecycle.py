"""Start, load, drain, end: what a server process promises around its requests. Real processes, real signals."""

import inspect
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
import yaml
from typer.testing import CliRunner

from guerdon.cli import app as cli
from guerdon.errors import ConfigError, GuerdonError
from guerdon.serve.backends import LEARNING, model_loader
from guerdon.serve.launch import serve_settings
from guerdon.settings.serve import ServedModelSettings, ServeSettings
from tables import cases, refuses


def rewards(text="a", **more):
    return {"items": [{"prompt": "q", "steps": [text]}], **more}


def toy(**options):
    return {"toy": {"custom_backend": "toys:make", "options": options}}


def until(condition):
    """Wait for something that another process does."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_sigterm_answers_what_was_accepted_and_takes_nothing_new(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    running = server(models=toy(gate=str(gate)), batch={"max_items": 2, "cache_items": 0})
    with ThreadPoolExecutor(13) as pool:
        accepted = [pool.submit(httpx.post, f"{running.url}/v1/rewards", json=rewards("a" * n)) for n in range(1, 13)]
        until(lambda: "guerdon_requests_in_flight 13.0" in running.get("/metrics").text)
        running.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=running.url) as newcomer:
            until(lambda: newcomer.get("/ready").status_code == 503)
            assert "shutting down" in newcomer.get("/ready").text
            refused = newcomer.post("/v1/rewards", json=rewards())
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert newcomer.get("/health").status_code == 200
        gate.unlink()
        answers = [future.result() for future in accepted]
    assert [answer.status_code for answer in answers] == [200] * 12
    assert all(answer.json()["results"][0]["score"] == 1.0 for answer in answers)
    assert running.process.wait(30) == 0


@pytest.mark.hostile("parts")
def test_a_model_that_hangs_does_not_keep_the_server(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    running = server(models=toy(gate=str(gate)), limits={"drain_s": 0.5})
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(httpx.post, f"{running.url}/v1/rewards", json=rewards())
        until(lambda: "guerdon_requests_in_flight 2.0" in running.get("/metrics").text)
        assert running.stop() == 0
        assert (hanging.result().status_code, hanging.result().headers["retry-after"]) == (503, "1")


def test_a_second_signal_is_obeyed_at_once(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    running = server(models=toy(gate=str(gate)), limits={"drain_s": 3600})
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(httpx.post, f"{running.url}/v1/rewards", json=rewards(), timeout=30)
        until(lambda: "guerdon_requests_in_flight 2.0" in running.get("/metrics").text)
        running.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=running.url) as newcomer:
            until(lambda: newcomer.get("/ready").status_code == 503)
        assert running.stop() == 0
        assert (hanging.result().status_code, hanging.result().headers["retry-after"]) == (503, "1")


def test_while_a_model_loads(server, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    running = server(models={"fast": {"backend": "constant"}, **toy(slow_load_gate=str(gate))}, wait=False)
    until(lambda: running.get("/health").json()["loaded_backends"] == ["fast"])
    health = running.get("/health")
    assert health.json() == {"status": "ok", "default_backend": "fast", "loaded_backends": ["fast"]}
    ready = running.get("/ready")
    assert ready.status_code == 503
    assert ready.json() == {"ready": False, "models": {"fast": "ready", "toy": "is being loaded"}}
    refused = running.post("/v1/rewards", rewards(model="toy"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
    assert refused.headers["retry-after"] == "1"
    assert running.post("/v1/rewards", rewards(aggregation="last")).status_code == 200
    assert not [line for line in running.lines if "serves" in line or running.url in line]
    gate.unlink()
    assert running.wait_for("^guerdon serves fast, toy at (.*)").group(1) == running.url
    assert running.get("/ready").json()["ready"] is True
    assert running.post("/v1/rewards", rewards(model="toy")).status_code == 200
    assert running.stop() == 0


def test_reloads_while_requests_come_lose_none_and_failures_keep_the_old(server, tmp_path):
    version, broken = tmp_path / "version", tmp_path / "broken"
    version.write_text("v0")
    running = server(models=toy(version_file=str(version), fail_file=str(broken)), batch={"max_items": 4})
    done = threading.Event()
    seen = [[] for _ in range(4)]

    def ask(worker):
        with httpx.Client(base_url=running.url) as client:
            n = 0
            while not done.is_set():
                n += 1
                answer = client.post("/v1/rewards", json=rewards("a" * (1 + n % 5) + str(worker)))
                assert answer.status_code == 200, answer.text
                seen[worker].append(answer.json()["results"][0]["text"].split(":")[0])

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, worker) for worker in range(4)]
        try:
            for k in range(1, 4):
                version.write_text(f"v{k}")
                assert running.post("/v1/reload", {"model": "toy"}).status_code == 200
                assert running.post("/v1/rewards", rewards()).json()["results"][0]["text"].startswith(f"v{k}")
            broken.touch()
            failed = running.post("/v1/reload", {})
            assert (failed.status_code, failed.json()["error"]["code"]) == (500, "reload_failed")
            assert "secret" not in failed.text
            assert "/home" not in failed.text
            until(lambda: all(texts and texts[-1] == "v3" for texts in seen))
        finally:
            done.set()
        for future in asking:
            future.result()
    assert all(texts == sorted(texts) for texts in seen), "an old model answered after a new one"
    running.wait_for("secret: cannot load")
    assert running.stop() == 0


@pytest.mark.hostile("parts")
@cases(
    ("settings", "key", "message"),
    [
        ({"model_path": "/nonexistent/prm"}, "model_path", "/nonexistent/prm"),
        ({"backend": "nonsense"}, "models.x.backend", "unknown backend 'nonsense'; known are"),
        ({"backend": "primo-r1"}, "models.x.backend", "did you mean 'PRIMO-R1'"),
        ({"backend": "text"}, "models.x.model_path", "backend text needs model_path"),
        ({"backend": "constant", "options": {"speed": 3}}, "models.x.options", ""),
        ({"custom_backend": "toys:nobody"}, "models.x.custom_backend", "custom_backend toys:nobody"),
        ({"custom_backend": "no_such_module:make"}, "models.x.custom_backend", "there is no module no_such_module"),
        ({"custom_backend": "toys:make_nothing"}, "models.x.custom_backend", "returned a int"),
        ({"custom_backend": "toys:TOKENS", "options": {}}, "models.x.custom_backend", ""),
    ],
)  # fmt: skip
def test_models_that_cannot_be_loaded(settings, key, message):
    with refuses(key) as refused:
        model_loader("x", ServedModelSettings(**settings)).load()
    assert message in str(refused.value)


def test_a_model_that_cannot_be_loaded_ends_the_server_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "guerdon", "serve", "--custom-backend", "nothing:here", "--port", "0"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    first, *_, last = done.stderr.strip().splitlines()
    assert first == "loading nothing"
    assert "serves" not in done.stderr
    assert last.startswith("guerdon: the custom_backend nothing:here: there is no module nothing")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backend", "resnett", "--model-path", "."), "unknown backend 'resnett'; did you mean 'resnet'"),
        (("--backend", "text", "--model-path", "./nope"), "model_path ./nope: there is no such folder"),
        (("--backend", "resnet", "--model-path", "nope"), "/nope: there is no such folder"),
        (("--backend", "constant", "--media-root", "nope"), "media_root: 'nope' is not a folder"),
        (("--backend", "constant", "--update-dir", "x"), "backend constant cannot learn while it is served"),
        (("--backend", "qwen_vl", "--model-path", "h/i", "models.qwen_vl.options.vlm.nframe=2"), "nframes"),
        (("--backend", "PRIMO-R1", "--model-path", "h/i", "models.PRIMO-R1.options.vlm.top_p=7"), "top_p"),
        (("--backend", "trend", "--model-path", "h/i", "models.trend.options.vlm.rows=last"), "rows would do nothing"),
        (("--backend", "qwen_vl", "--model-path", "h/i", "models.qwen_vl.options.vlm=2"), "must be keys and values"),
        (("--backend", "constant", "models.constant.options.valu=1"), "has no valu; did you mean value?"),
        (("--backend", "text", "--model-path", "h/i", "models.text.options.adaptr=trl"), "did you mean adapter?"),
        (("--backend", "text", "--model-path", "h/i", "models.text.options.adapter=trll"), "unknown adapter 'trll'"),
        (("--backend", "resnet", "--model-path", ".", "--update-dir", "u", "models.resnet.options.step=2"), "steps?"),
        (("--backend", "resnet", "--model-path", ".", "models.resnet.options.image_size=x"), "resnet.options: "),
        (("--model", "rm=.", "models.rm.options.bach=2"), "models.rm.options has no bach"),
    ],
)  # fmt: skip
def test_what_needs_no_loading_is_refused_before_the_server_listens(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # listening would be refused
        port = str(taken.getsockname()[1])
        for last in ((), ("--dry-run",)):
            done = CliRunner().invoke(cli, ["serve", *words, "--port", port, *last])
            assert isinstance(done.exception, ConfigError)
            assert message in str(done.exception)


def test_the_options_that_are_known_before_an_import_are_those_of_the_function():
    from guerdon.models.images.online import OnlineImageModel

    parameters = inspect.signature(OnlineImageModel).parameters.values()
    options = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert sorted(LEARNING) == sorted(["data_path", "device", "bf16", *options])


def test_a_dry_run_refuses_what_a_start_would(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for words, key, message in (
        (
            ("--backend", "constant", "models.constant.options.valu=1"),
            "models.constant.options",
            "has no valu; did you mean value?",
        ),
        (("--backend", "resnet", "--model-path", "empty"), None, "no reward model at empty"),
        (("--backend", "text", "--model-path", "./empty"), None, "no reward model can be read at ./empty"),
        (
            ("--backend", "text", "--model-path", "hub/id", "models.text.options.adapter=skyworck"),
            "models.text.options.adapter",
            "unknown adapter",
        ),
        (("--backend", "qwen_vl"), "models.qwen_vl.model_path", "backend qwen_vl needs model_path"),
        (
            ("--backend", "qwen_vl", "--model-path", "hub/id", "models.qwen_vl.options.vlm.nframe=2"),
            "models.qwen_vl.options.vlm.nframe",
            "did you mean vlm.nframes",
        ),
        (
            ("--backend", "qwen_vl", "--model-path", "hub/id", "models.qwen_vl.options.vlm.path=x"),
            "models.qwen_vl.options.vlm.path",
            "",
        ),
        (("--custom-backend", "toys:nobody"), "models.toys.custom_backend", "custom_backend toys:nobody"),
        (
            ("--custom-backend", "toys:__doc__"),
            "models.toys.custom_backend",
            "toys:__doc__ is a str and cannot be called",
        ),
        (("--backend", "constant", "--host", "0.0.0.0"), "host", "give a token"),
    ):
        with pytest.raises(GuerdonError) as refused:
            flags(*words)
        assert message in str(refused.value), words
        assert getattr(refused.value, "key", None) == key
    assert flags("--custom-backend", "toys:make").models["toys"].custom_backend == "toys:make"
    for path in ("hub/id", "http://127.0.0.1:9/v1/rewards?model=prm"):
        assert flags("--backend", "text", "--model-path", path).models["text"].model_path == path


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(cli, ["serve", "--backend", "constant", "--port", str(port)])
    assert isinstance(done.exception, ConfigError)
    assert f"cannot listen on 127.0.0.1:{port}" in str(done.exception)


@pytest.mark.parametrize("root", [None, "."])
def test_a_server_of_frames_says_at_its_start_that_it_opens_no_files(server, root):
    running = server(models={"old": {"custom_backend": "toys:make_old"}}, media={"root": root})
    assert ("no --media-root: old answers requests with a video_path with 400" in running.log) == (root is None)
    assert running.stop() == 0


def test_gpus_are_chosen_before_anything_looks_for_them(server):
    running = server(
        models={}, arguments=("--custom-backend-factory", "toys:make_gpu_witness", "--gpu-ids", "2,3"), wait=True
    )
    assert running.post("/v1/rewards", rewards()).json()["results"][0]["text"].startswith("gpus 2,3")


def test_the_state_routes_load_nothing_heavy():
    code = """
import sys
from fastapi.testclient import TestClient
from guerdon.serve.app import build_app
from guerdon.serve.backends import model_loader
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import ServedModelSettings, ServeSettings
settings = ServeSettings(models={"rm": ServedModelSettings(backend="resnet", model_path="nowhere")})
engine = ServedModels({name: model_loader(name, model) for name, model in settings.models.items()})
client = TestClient(build_app(engine, settings), base_url="http://localhost")
assert client.get("/health").json()["loaded_backends"] == []
assert client.get("/ready").status_code == 503
assert client.get("/metrics").status_code == 200
assert client.get("/openapi.json").status_code == 200
print([name for name in ("torch", "transformers", "vllm") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# the command line


def flags(*words):
    """The settings that a command line gives, as `--dry-run` shows them."""
    done = CliRunner().invoke(cli, ["serve", *words, "--dry-run"])
    if done.exception is not None:
        raise done.exception
    return ServeSettings.model_validate(yaml.safe_load(done.output))


def test_the_first_servers_command_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("m/qwen", "m/primo"):
        (tmp_path / folder).mkdir(parents=True)
    qwen = flags(
        "--backend", "qwen2_5_vl_vllm", "--model-path", "m/qwen", "--gpu-ids", "0,1", "--tensor-parallel-size", "2",
        "--max-model-len", "16384", "--port", "18080",
    )  # fmt: skip
    ((name, model),) = qwen.models.items()
    assert (name, model.model_path, model.tensor_parallel_size, model.max_model_len) == (
        "qwen2_5_vl_vllm", "m/qwen", 2, 16384,
    )  # fmt: skip
    assert (qwen.gpu_ids, qwen.port, qwen.host) == ("0,1", 18080, "127.0.0.1")
    primo = flags(
        "--backend", "PRIMO-R1", "--model-path", "m/primo", "--gpu-ids", "0,1", "--primo-tensor-parallel-size", "1",
    )  # fmt: skip
    ((name, model),) = primo.models.items()
    assert (name, model.tensor_parallel_size, primo.port) == ("PRIMO-R1", 1, 18080)
    assert model_loader(name, model).aliases == ("primo_r1_vllm",)
    assert flags("--backend", "qwen2_5_vl_vllm").models["qwen2_5_vl_vllm"].model_path == "Qwen/Qwen2.5-VL-7B-Instruct"


def test_several_models(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("default: b\nmodels:\n  a: {model_path: runs/a, aliases: [first]}\n  b: {backend: constant}\n")
    given = {
        "model": ["c=resnet:runs/c", "d=runs/d", "e=constant"], "media_root": "/data", "token": "a-long-secret",
        "host": "0.0.0.0",
    }  # fmt: skip
    got = serve_settings(file, ["batch.max_items=7"], given)
    assert list(got.models) == ["a", "b", "c", "d", "e"]
    assert (got.models["c"].backend, got.models["c"].model_path) == ("resnet", "runs/c")
    assert (got.models["d"].backend, got.models["d"].model_path) == (None, "runs/d")
    assert (got.models["e"].backend, got.models["e"].model_path) == ("constant", None)
    assert (got.default, got.batch.max_items, got.media.root) == ("b", 7, "/data")
    done = CliRunner().invoke(cli, ["serve", "--backend", "constant", "--token", "a-long-secret", "--dry-run"])
    assert ServeSettings.model_validate(yaml.safe_load(done.output)).token == "(hidden)"


def test_flags_of_one_model_are_about_the_one_that_is_named():
    given = {"model": ["prm=runs/prm"], "update_dir": "states"}
    got = serve_settings(None, [], given).models
    assert list(got) == ["prm"]
    assert (got["prm"].model_path, got["prm"].update_dir) == ("runs/prm", "states")
    primo = {"model": ["p=PRIMO-R1:m/primo"], "primo_tensor_parallel_size": 2, "temperature": 0.5}
    got = serve_settings(None, [], primo).models["p"]
    assert (got.backend, got.tensor_parallel_size, got.temperature) == ("PRIMO-R1", 2, 0.5)
    beside = serve_settings(None, [], {**given, "backend": "text", "model_path": "runs/b"}).models
    assert (beside["prm"].update_dir, beside["text"].update_dir) == (None, "states")
    wanted = r"--update-dir: which of prm, b\?.* models.prm.update_dir=states, or in a file: models: .prm: "
    with pytest.raises(ConfigError, match=wanted) as refused:
        serve_settings(None, [], {**given, "model": ["prm=runs/prm", "b=runs/b"]})
    assert refused.value.key == "--update-dir"
    two = serve_settings(None, ["models.prm.update_dir=states"], {"model": ["prm=runs/prm", "b=runs/b"]}).models
    assert [two[name].update_dir for name in ("prm", "b")] == ["states", None]


@cases(
    ("words", "key", "message"),
    [
        ((), "models", "no model to serve"),
        (("--temperature", "0.5"), "--temperature", "which model"),
        (("--model", "x"), "--model", "write name=path"),
        (("--backend", "constant", "--custom-backend", "m:f"), "models.constant.custom_backend", "both given"),
        (("--custom-backend", "module"), "models.module.custom_backend", "write module:factory"),
        (("--backend", "constant", "--gpu-ids", "a"), "gpu_ids", "not a list of GPU numbers"),
        (
            ("--backend", "constant", "--primo-tensor-parallel-size", "2"),
            "--primo-tensor-parallel-size",
            "would do nothing without --backend PRIMO-R1",
        ),
        (("--backend", "constant", "--default", "other"), "default", "default is 'other'"),
        (("--backend", "constant", "limits.max_items=2000"), "limits.max_items", "could never be accepted"),
        (("--backend", "constant", "nonsense=1"), "nonsense", ""),
        (("a.yaml", "b.yaml", "--backend", "constant"), None, "one file describes a server"),
    ],
)  # fmt: skip
def test_command_lines_that_cannot_be_meant(words, key, message):
    with pytest.raises(ConfigError) as refused:
        flags(*words)
    assert refused.value.key == key
    assert message in str(refused.value)


def test_knobs_that_would_do_nothing_are_refused():
    with refuses("models.x.max_model_len"):
        model_loader("x", ServedModelSettings(backend="constant", max_model_len=3))
    with pytest.raises(ConfigError, match="two models answer to the name 'y'") as refused:
        serve_settings(None, ["models={x: {backend: constant, aliases: [y]}, y: {backend: constant}}"], {})
    assert refused.value.key == "models"


def test_a_scorer_of_the_first_server(server):
    import base64
    import io

    import numpy as np

    running = server(models={"old": {"custom_backend": "toys:make_old"}})
    file = io.BytesIO()
    np.save(file, np.zeros((3, 32, 32, 3), np.uint8))
    frames = base64.b64encode(file.getvalue()).decode()

    def ask(task):
        body = {"items": [{"task": task, "npy_base64": frames}], "options": {"nframes": 8}}
        return running.post("/v1/rewards", body).json()["results"][0]

    good = ask("open")
    assert (good["score"], good["text"], good["step_scores"]) == (0.25, "open 3 200704", None)
    assert ask("bad")["failure"]["reason"] == "out_of_range"
    assert ask("nan")["failure"]["reason"] == "non_finite"
