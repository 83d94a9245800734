"""The command line as a stranger meets it: every mistake costs one clear line, a status, and nothing on the disk."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from huggingface_hub import get_token
from typer.main import get_command

from forked import forked
from guerdon import __version__, cli
from guerdon.errors import DataError
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from guerdon.train import images

TINY = """\
name: tiny
work_dir: work
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
policy: {type: mlp, hidden: [8]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
runner:
  {total_steps: 40, eval_every: 20, eval_episodes: 2, checkpoint_every: 20,
   logger: {log_path: runs, experiment_name: one, tensorboard: false}}
"""
TRAIN = "train:\n  rm: {type: resnet, data_path: nowhere, save_dir: models/rm}\n"
STUDY = "compare:\n  baseline: A\n  seeds: [0]\n  arms:\n    A: {label: native}\n"
CONSTANT = "use_reward_model: true, model: {model_type: constant}"
PROGRESS = "use_reward_model: true, model: {model_type: progress, checkpoint_path: x}, reward_mode: per_step"


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run the command line in this process, in a folder of its own: status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, files=()):
        for name, content in dict(files).items():
            Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        monkeypatch.setattr(sys, "argv", ["guerdon", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        return left.value.code or 0, said.out, said.err

    return run


def refused(answer, *words):
    """The answer is one line of error that holds the words."""
    status, out, err = answer
    assert status == 2, err
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("guerdon: ")
    assert err.count("\n") == 1, err
    for word in words:
        assert word in err, err


def whole_tree():
    return {str(p) for p in Path().rglob("*")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TINY + "runer: {seed: 1}\n", ["tiny.yaml:9", "runer", "did you mean runner?"]),
        (TINY.replace("num_envs", "num_env"), ["tiny.yaml:3", "did you mean env.num_envs?"]),
        (TINY.replace("experiment_name", "name"), ["tiny.yaml:8", "runner.logger.experiment_name"]),
        (TINY + TRAIN.replace("save_dir", "save_dri"), ["save_dri", "did you mean train.rm.save_dir?"]),
        (TINY + TRAIN.replace("type: resnet", "type: resnext"), ["tiny.yaml:10", "did you mean 'resnet'?"]),
        (TINY.replace("num_envs: 2", "num_envs: two"), ["tiny.yaml:3", "env.num_envs is 'two'", "integer"]),
        (TINY.replace("num_envs: 2", "num_envs: true"), ["num_envs is true"]),
        (TINY.replace("num_envs: 2", "num_envs: 0"), ["env.num_envs is 0", "greater than or equal to 1"]),
        (TINY.replace("frame_size: 32", "frame_size: true"), ["frame_size"]),
        ("- 1\n", ["a map of sections"]),
        ("a: [1\nb: 2\n", ["tiny.yaml:2", "not valid YAML"]),
        (b"\xff\xfea: 1", ["not UTF-8"]),
        ("env: 3\n", ["tiny.yaml:1", "a section"]),
        ("name: a\nname: b\n", ["name is given twice"]),
    ],
    ids=lambda value: None,
)
def test_a_mistake_in_the_file_names_its_line(call, text, words):
    answer = call("run", "tiny.yaml", files={"tiny.yaml": text})
    if answer[2].count("\n") > 1:  # an unknown key and the missing one it stood for
        assert answer[0] == 2
        assert all(word in answer[2] for word in words), answer[2]
    else:
        refused(answer, *words)
    assert whole_tree() == {"tiny.yaml"}


def test_missing_file_and_folder(call, tmp_path):
    refused(call("run", "no.yaml"), "no.yaml", "no such file")
    refused(call("run", tmp_path), "directory")


def test_an_environment_by_its_id(call):
    small = ["env.num_envs=2", "algorithm.rollout_steps=20", "runner.total_steps=40", "runner.eval_every=40"]
    status, out, err = call("run", "CartPole-v1", *small, "runner.eval_episodes=2")
    assert status == 0, err
    assert "wrote runs/CartPole-v1/ppo-seed0" in out
    assert re.search(r"best policy: that of step 40, in policy_best: return [\d.]+ over 2 episodes", out)
    assert re.search(r", return [\d.]+ over 100 fresh ones\n", out)
    config = (Path("runs/CartPole-v1/ppo-seed0") / "config.yaml").read_text()
    assert "task: CartPole-v1" in config
    assert "native_reward: dense" in config
    refused(call("run", "CartPol-v1", *small), "env.task 'CartPol-v1'", "CartPole")
    refused(call("run", "tiny_world:Dot-v1", "runner.steps=3"), "runner.steps", "total_steps")
    refused(call("run", "tiny_world:Dots"), "env.task 'tiny_world:Dots'", "Environment `Dots` doesn't exist")
    refused(call("collect", "CartPole-v1"), "CartPole-v1 has no collect section", "collect.save_dir")
    refused(call("run", "study-v2", files={"study-v2": "enf: {}\n"}), "study-v2", "enf")


SMALL = ["env.num_envs=2", "algorithm.rollout_steps=20", "runner.total_steps=40", "runner.eval_episodes=2",
         "runner.best_episodes=0", "runner.logger.tensorboard=false"]  # fmt: skip


def test_runs_of_one_id_lie_side_by_side_and_go_on(call):
    for words in ((), ("runner.seed=1",), ("algorithm.type=dqn",)):
        status, _, err = call("run", "CartPole-v1", *SMALL, *words)
        assert status == 0, err
    folder = Path("runs/CartPole-v1")
    assert sorted(path.name for path in folder.iterdir()) == ["dqn-seed0", "ppo-seed0", "ppo-seed1"]
    again = call("run", "CartPole-v1", *SMALL)
    refused(
        again,
        "runs/CartPole-v1/ppo-seed0 already holds a run",
        "--resume runner.total_steps=80 runner.schedule_steps=80",
    )
    # what the run began with, its own rollout_steps too, need not be said again
    status, out, err = call("run", "CartPole-v1", "--resume", "runner.total_steps=80", "runner.schedule_steps=80")
    assert status == 0, err
    complete = json.loads((folder / "ppo-seed0" / "COMPLETE").read_text())
    assert complete["step"] == 80
    assert (
        call("run", "CartPole-v1", "--resume", "runner.total_steps=80", "runner.schedule_steps=80", "--dry-run")[0] == 0
    )
    for more in ((), ("--dry-run",)):
        words = ["--resume", "runner.total_steps=120", "runner.schedule_steps=120", "algorithm.gamma=0.5"]
        refused(call("run", "CartPole-v1", *words, *more), "algorithm.gamma is 0.5, and was 0.98")
    status, out, err = call("report", folder)
    assert status == 0, err
    assert out == "report: runs/CartPole-v1/report.html\n"
    page = (folder / "report.html").read_text()
    assert all(word in page for word in ("dqn", "ppo", "different lengths"))


def test_a_run_of_an_id_in_the_folder_of_an_earlier_version_goes_on(call):
    status, _, err = call("run", "CartPole-v1", *SMALL, "runner.logger.experiment_name=run")
    assert status == 0, err
    refused(call("run", "CartPole-v1", *SMALL), "runs/CartPole-v1/run already holds a run")
    status, out, err = call("run", "CartPole-v1", "--resume", "runner.total_steps=80", "runner.schedule_steps=80")
    assert status == 0, err
    assert "wrote runs/CartPole-v1/run " in out
    assert "runs/CartPole-v1/ppo-seed1" in call("run", "CartPole-v1", *SMALL, "runner.seed=1")[1]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("runner.seed", ["section.key=value"]),
        ("=3", ["section.key=value"]),
        ("runner.seed=", ["no value"]),
        ("runner..seed=3", ["section.key=value"]),
        ("runner.seed.x=3", ["runner.seed"]),
        ("runner.seed=[1", ["not valid YAML"]),
        ("runner.sed=3", ["did you mean runner.seed?"]),
        ("env=3", ["a section"]),
        ("env.task=${nowhere}", ["nowhere"]),
        ("reward={use_reward_model: true, model: {model_type: resnt}}", ["did you mean 'resnet'?"]),
        ("reward={use_reward_model: true, model: {model_type: resnet}}", ["checkpoint_path is missing"]),
        ("reward={use_reward_model: true}", ["needs reward.model"]),
        (f"reward={{{CONSTANT}, reward_threshold: 2}}", ["less than or equal to 1"]),
    ],
)
def test_a_mistake_in_an_override_names_it(call, override, words):
    refused(call("run", "tiny.yaml", override, files={"tiny.yaml": TINY}), *words)
    assert whole_tree() == {"tiny.yaml"}


@pytest.mark.parametrize(
    ("override", "knob"),
    [
        (f"reward={{{PROGRESS}, shaping: relative, success_reward: 2}}", "success_reward"),
        (f"reward={{{PROGRESS}, shaping: raw, reward_threshold: 0.5}}", "reward_threshold"),
        (f"reward={{{PROGRESS}, shaping: bonus, fail_reward: -1}}", "fail_reward"),
        (f"reward={{{PROGRESS}, confirm_frames: 3}}", "confirm_frames"),
        (f"reward={{{PROGRESS}, use_negative_reward: true, fail_reward: 0}}", "fail_reward"),
        (f"reward={{{CONSTANT}, score_every: 3}}", "score_every"),
        (f"reward={{{CONSTANT}, shaping: relative}}", "per_step"),
        (f"reward={{{CONSTANT}, env_reward_weight: 0.5}}", "env_reward_weight"),
        (f"reward={{{CONSTANT}, combine_mode: add, env_reward_weight: 0.5}}", "env_reward_weight"),
        (f"reward={{{CONSTANT}, sources: {{a: {{model: {{model_type: constant}}}}}}}}", "given next to sources"),
        ("reward={use_reward_model: true, sources: {env: {model: {model_type: constant}}}}", "taken"),
        ("reward={use_reward_model: true, model: {model_type: constant, hidden_dim: 3}}", "hidden_dim"),
        ("reward={use_reward_model: true, model: {model_type: resnet, checkpoint_path: x, value: 1}}", "value"),
        ("reward={use_reward_model: true, model: {model_type: constant, update: after}}", "update"),
        ("reward={success_reward: 3}", "success_reward"),
        ("reward={success_reward: 3, model: {model_type: constant}}", "model, success_reward"),
        ("reward={combine_mode: add}", "combine_mode"),
        ("reward={sources: {a: {model: {model_type: constant}}}}", "sources"),
        ("algorithm.group_size=4", "group_size"),
        ("algorithm.adv_estimator=grpo", "rollout_steps"),
        ("env={type: metaworld, kwargs: {a: 1}}", "kwargs"),
        ("env.render_workers=2", "render_workers"),
        ("env.data_collection.enabled=true", "save_dir"),
    ],
)
def test_a_knob_that_would_do_nothing_is_refused(call, override, knob):
    refused(call("run", "tiny.yaml", override, files={"tiny.yaml": TINY}), knob)
    assert whole_tree() == {"tiny.yaml"}


def test_an_unknown_key_of_an_arm_names_its_line(call):
    study = TINY + "compare:\n  baseline: A\n  arms:\n    A:\n      label: x\n      config:\n        "
    refused(call("compare", "s.yaml", files={"s.yaml": study + "env: {num_env: 3}\n"}), "s.yaml:15", "env.num_envs")
    refused(call("compare", "s.yaml", files={"s.yaml": study.replace("config:\n        ", "confg: {}\n")}), "config")
    refused(call("compare", "s.yaml", files={"s.yaml": study.replace("baseline: A", "baseline: Z") + "{}\n"}), "'Z'")
    assert whole_tree() == {"s.yaml"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["Missing argument", "guerdon run --help"]),
        (["run", "tiny.yaml", "--drrun"], ["--drrun", "--dry-run"]),
        (["rn"], ["rn", "run"]),
        (["collect", "tiny.yaml"], ["no collect section"]),
        (["collect", "tiny.yaml", "--dry-run"], ["no collect section"]),
        (["train", "tiny.yaml"], ["no train section"]),
        (["train", "tiny.yaml", "policy=bc"], ["no bc section"]),
        (["train", "tiny.yaml", "policy=bc", "--only", "rm"], ["--only would do nothing with policy=bc"]),
        (["score", "rows.jsonl", "--model", "rm", "-o", "x", "--aggregation", "mode"], ["--aggregation mode", "prod"]),
        (["run", "~nobody-of-this-name/tiny.yaml"], ["~nobody-of-this-name"]),
        (["evaluate", "tiny.yaml"], ["neither a train section"]),
        (["evaluate", "tiny.yaml", "--dry-run"], ["neither a train section"]),
        (["compare", "tiny.yaml"], ["no compare section"]),
        (["train", "train.yaml", "--only", "zz"], ["--only zz", "rm"]),
        (["evaluate", "train.yaml", "--only", "zz", "--dry-run"], ["--only zz", "rm"]),
        (["train", "train.yaml"], ["nowhere"]),
        (["evaluate", "train.yaml"], ["models/rm", "guerdon train"]),
        (["report", "."], ["holds no study (study.json), no run"]),
        (["report", "tiny.yaml"], ["there is no such folder"]),
        (["report", "nowhere"], ["nowhere"]),
        (["run", "tiny.yaml", "runner.logger.log_path=tiny.yaml"], ["tiny.yaml"]),
        (["run", "tiny.yaml", "runner.logger.log_path=tiny.yaml/x/y"], ["tiny.yaml"]),
        (["compare", "arms.yaml", "work_dir=tiny.yaml/x"], ["tiny.yaml"]),
        (["collect", "tiny.yaml", "collect={save_dir: tiny.yaml, mixture: [{type: random}]}"], ["tiny.yaml"]),
        (["collect", "tiny.yaml", "collect={save_dir: tiny.yaml/x, mixture: [{type: random}]}"], ["tiny.yaml"]),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_what_a_verb_cannot_do_costs_one_line(call, arguments, words):
    files = {"tiny.yaml": TINY, "train.yaml": TINY + TRAIN, "arms.yaml": TINY + STUDY}
    refused(call(*arguments, files=files), *words)
    assert whole_tree() == set(files)


def test_a_report_of_a_data_set_is_refused_with_what_shows_episodes(call):
    Path("data/meta").mkdir(parents=True)
    refused(call("report", "data", files={"data/meta/info.json": "{}"}), "data is a data set", "lerobot-dataset-viz")
    assert whole_tree() == {"data", "data/meta", "data/meta/info.json"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (f"reward={{{PROGRESS}}}", ["no reward model at x"]),
        ("env.task=tiny_world:Dto-v1", ["Dto"]),
        ("env.task=CartPole-v1", ["does not report success"]),
        ("env={type: metaworld, task: windw-close}", ["did you mean window-close"]),
        ("env={type: metaworld, task: window-close, camera: cornr}", ["env.camera", "did you mean corner?"]),
        ("runner.resume_dir=nowhere", ["nowhere"]),
        ("policy.checkpoint=nowhere", ["nowhere"]),
        ("algorithm={adv_estimator: grpo, group_size: 3}", ["group_size"]),
        ("policy={type: cnn}", ["observation"]),
    ],
)
def test_a_run_that_cannot_begin_costs_one_line_and_not_its_folder(call, override, words):
    if "metaworld" in override:
        pytest.importorskip("metaworld")
    refused(call("run", "tiny.yaml", override, files={"tiny.yaml": TINY}), *words)
    status, out, err = call("run", "tiny.yaml")
    assert status == 0, err  # without the error the same command runs
    assert "wrote runs/one" in out


@pytest.mark.hostile("disk")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(call, tmp_path):
    (tmp_path / "shut").mkdir(mode=0o555)
    refused(call("run", "tiny.yaml", "runner.logger.log_path=shut", files={"tiny.yaml": TINY}), "shut", "ermission")


@pytest.mark.hostile("disk")
def test_a_full_disk_costs_one_line(call, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("guerdon.files.atomic.os.fsync", full)
    refused(call("run", "tiny.yaml", files={"tiny.yaml": TINY}), "No space left")


def test_a_run_says_what_it_wrote_and_guards_its_folder(call):
    status, out, err = call("run", "tiny.yaml", files={"tiny.yaml": TINY})
    assert status == 0, err
    assert "true success" in out
    assert "wrote runs/one and runs/one/report.html" in out
    refused(call("run", "tiny.yaml"), "runs/one already holds a run", "--resume")
    refused(call("run", "tiny.yaml", "--resume", "runner.seed=7"), "another configuration")
    before = Path("runs/one/metrics.jsonl").read_bytes()
    assert call("run", "tiny.yaml", "--resume")[0] == 0  # nothing left to do
    assert Path("runs/one/metrics.jsonl").read_bytes() == before
    assert call("report", "runs/one")[:2] == (0, "report: runs/one/report.html\n")


@pytest.mark.parametrize(
    ("own", "file", "token"),
    [
        ({}, "ANTHROPIC_API_KEY=a\nHF_AUTH_TOKEN=hf_file\n", "hf_file"),
        ({}, "export HF_TOKEN='hf_file'\n", "hf_file"),
        ({"HF_AUTH_TOKEN": "hf_own"}, "HF_AUTH_TOKEN=hf_file\n", "hf_own"),
        ({"HF_TOKEN": "hf_own"}, "HF_AUTH_TOKEN=hf_file\n", "hf_own"),
        ({"HUGGING_FACE_HUB_TOKEN": "hf_own"}, "HF_AUTH_TOKEN=hf_file\n", "hf_own"),
        ({}, "OTHER=x\n", None),
    ],
)
def test_a_token_of_the_env_file_reaches_the_hub_client(call, monkeypatch, own, file, token):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_AUTH_TOKEN"):
        monkeypatch.setenv(name, own.get(name, ""))
    monkeypatch.setenv("HF_TOKEN_PATH", "nowhere")
    assert call("run", "none.yaml", files={".env": file})[0] == 2
    assert get_token() == token


WORLD = Path(__file__).with_name("tiny_world.py").read_text().replace("Dot-v1", "Own-v0")
OWN = TINY.replace("tiny_world:Dot-v1", "my_robots:Own-v0").replace("log_path: runs, experiment_name: one, ", "")


def test_runs_lie_in_the_work_dir_of_their_study(call):
    for name in ("first", "second"):
        status, out, err = call("run", "own.yaml", f"work_dir={name}", files={"own.yaml": OWN, "my_robots.py": WORLD})
        assert status == 0, err
        assert f"wrote {name}/run" in out
    assert not Path("runs").exists()
    status, out, err = call("run", "own.yaml", "runner.logger.experiment_name=again", "work_dir=first", "--dry-run")
    assert status == 0, err
    assert "log_path: first" in out
    given = ["policy.checkpoint=${runner.logger.log_path}/run/policy", "runner.logger.experiment_name=again"]
    status, out, err = call("run", "own.yaml", "work_dir=first", *given)
    assert status == 0, err
    assert "wrote first/again" in out


def test_the_default_folder_of_a_run_lies_in_the_default_work_dir():
    assert run_folder(Study()) == Path(Study().work_dir, "run")
    assert run_folder(Study(work_dir="mine")) == Path("mine/run")
    assert run_folder(Study(work_dir="mine", runner={"logger": {"log_path": "logs"}})) == Path("logs/run")


@pytest.mark.slow
def test_a_module_beside_the_study_is_found_by_the_installed_command(tmp_path):
    (tmp_path / "my_robots.py").write_text(WORLD)
    (tmp_path / "own.yaml").write_text(OWN)
    script = "import sys; del sys.path[0]; from guerdon.cli import main; main()"
    entry = [sys.executable, "-c", script]  # like the script of a package, without the working directory on the path
    command = [*entry, "run", "own.yaml", "env.vectorization=async", "runner.total_steps=20"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "wrote work/run" in done.stdout


def test_a_run_with_the_native_reward_needs_no_picture(call, monkeypatch):
    import tiny_world

    def blind(self):
        raise RuntimeError("no screen")

    monkeypatch.setattr(tiny_world.Dot, "render", blind)
    status, _, err = call("run", "tiny.yaml", files={"tiny.yaml": TINY})
    assert status == 0, err
    assert "no episodes for the report" in err
    assert Path("runs/one/COMPLETE").exists()


@pytest.mark.parametrize("verb", ["run", "collect", "train", "evaluate", "compare"])
def test_a_dry_run_writes_nothing(call, verb):
    text = TINY + TRAIN + STUDY + "collect: {save_dir: data, mixture: [{type: random}]}\n"
    status, out, err = call(verb, "tiny.yaml", "--dry-run", "runner.seed=3", files={"tiny.yaml": text})
    assert status == 0, err
    assert "seed: 3" in out
    assert re.search(r"^(wall )?time: about", out, re.M)
    assert whole_tree() == {"tiny.yaml"}


@pytest.mark.parametrize(("options", "jobs"), [([], "jobs: 1 collect"), (["--text"], "jobs: 3 train, 1 label")])
def test_quickstart_dry_run_writes_nothing(call, options, jobs):
    status, out, err = call("quickstart", "--dry-run", "--folder", "q", *options)
    assert status == 0, err
    assert jobs in out
    assert whole_tree() == set()


def test_version_and_help(call):
    assert call("--version")[:2] == (0, f"guerdon {__version__}\n")
    status, out, _ = call("--help")
    assert status == 0
    for verb in ("collect", "train", "evaluate", "run", "compare", "report", "quickstart", "doctor"):
        assert verb in out


@pytest.mark.parametrize("verb", [command.name or command.callback.__name__ for command in cli.app.registered_commands])
def test_help_is_whole_on_a_narrow_screen(call, monkeypatch, verb):
    monkeypatch.setenv("COLUMNS", "80")
    command = get_command(cli.app).commands[verb]
    _, out, _ = call(verb, "--help")
    assert max(map(len, out.splitlines())) <= 80
    options = {name for one in command.params if one.param_type_name == "option" for name in one.opts}
    assert options <= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", out))
    _, out, _ = call("--help")
    assert " ".join(command.callback.__doc__.split()) in " ".join(out.split())


def test_an_interrupt_is_no_traceback(call, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("guerdon.rl.run.run", interrupted)
    status, _, err = call("run", "tiny.yaml", files={"tiny.yaml": TINY})
    assert status == 130
    assert err.count("\n") == 1
    assert "--resume" in err


@pytest.mark.hostile("parts")
@pytest.mark.parametrize("code", [None, 0])
def test_a_part_that_leaves_without_a_word_is_no_success(call, monkeypatch, code):
    monkeypatch.setattr("guerdon.rl.run.run", lambda *_, **__: sys.exit(code))
    answer = call("run", "tiny.yaml", files={"tiny.yaml": TINY})
    refused(answer, "before its work was done", "test_cli.py, line", f"called sys.exit({code})")


def test_commands_leave_the_handler_of_interrupts_as_it_was(call, monkeypatch):
    seen = []

    def look(*_, **__):
        seen.append(signal.getsignal(signal.SIGINT))
        raise DataError("no data")

    monkeypatch.setattr("guerdon.rl.run.run", look)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        call("run", "tiny.yaml", files={"tiny.yaml": TINY})
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert seen[0] not in (signal.default_int_handler, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        call("run", "tiny.yaml", files={"tiny.yaml": TINY})
        assert seen[1] is signal.SIG_IGN, "as in the background of a shell"
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_bug_keeps_its_traceback(call, monkeypatch):
    monkeypatch.setattr("guerdon.rl.run.run", lambda *_, **__: 1 / 0)
    Path("tiny.yaml").write_text(TINY)
    monkeypatch.setattr(sys, "argv", ["guerdon", "run", "tiny.yaml"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_a_terminal_shows_a_bar(tmp_path):
    """On a pseudo-terminal the run draws a progress bar; in a file it writes plain lines without escape codes."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    outside, inside = pty.openpty()
    shown = bytearray()

    def on_a_terminal():
        os.environ["TERM"] = "xterm"
        os.dup2(inside, 1)
        os.dup2(inside, 2)

    def read():
        with contextlib.suppress(OSError):  # as the last writer closes
            while piece := os.read(outside, 65536):
                shown.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    ended = forked("run", "tiny.yaml", folder=tmp_path, before=on_a_terminal)
    os.close(inside)
    reader.join()
    os.close(outside)
    assert ended.status == 0, bytes(shown).decode()
    assert b"40/40" in shown
    assert b"\x1b[" in shown
    plain = forked("run", "tiny.yaml", "runner.logger.experiment_name=two", folder=tmp_path)
    assert plain.status == 0, plain.said
    assert "\x1b[" not in plain.said.replace("\x1b[33mWARN", "")


def test_image_models_are_trained_with_the_threads_of_the_configuration(call, monkeypatch):
    """More threads than cores, in two trainings at a time, make both very slow."""
    seen = []

    def training(settings, *, resume):
        seen.append(torch.get_num_threads())
        return images.TrainResult(Path(settings.save_dir), {})

    monkeypatch.setattr(images, "train_image_model", training)
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            assert call("train", "tiny.yaml", f"runner.threads={threads}", files={"tiny.yaml": TINY + TRAIN})[0] == 0
    finally:
        torch.set_num_threads(before)
    assert seen == [2, 1]


SEARCH = """\
name: s
work_dir: work
policy: {type: text, tiny: {}}
data: {type: generated, train_size: 10}
search: {model: {model_type: text, checkpoint_path: x}, aggregation: min}
"""


@pytest.mark.parametrize("word", ["best-of-n", "bon", "BoN", "best_of_N", "bestofn", "best of n", "Best-of-N"])
def test_best_of_n_is_understood_however_it_is_written(call, word):
    files = {"s.yaml": SEARCH}
    refused(call("search", "s.yaml", f"search.method={word}", files=files), "did you mean 'best_of_n'?")
    refused(call(word, "s.yaml"), "Did you mean 'search' with search.method: best_of_n?")
    key = word.replace(" ", "-")
    refused(call("search", "s.yaml", f"evaluate.{key}.n=4"), "did you mean evaluate.best_of_n?")
    refused(call("search", "s.yaml", f"{key}.n=4"), "did you mean evaluate.best_of_n?")
    refused(call("search", "s.yaml", f"search.{key}=4"), "did you mean search.method: best_of_n or evaluate.best_of_n?")


def test_other_words_are_not_taken_for_a_method(call):
    files = {"s.yaml": SEARCH}
    for word in ("majority", "b", "bn", "greedy"):
        assert "did you mean" not in call("search", "s.yaml", f"search.method={word}", files=files)[2]
        assert "search.method" not in call(word, "s.yaml")[2]
    assert call("search", "s.yaml", "search.method=best_of_n", "--dry-run")[0] in (0, 2)
    assert "'evaluate'" in call("evalute", "s.yaml")[2]
