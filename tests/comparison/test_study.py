"""`guerdon compare` through the real command line: arms, seeds and tasks on a world that costs nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from synthetic_study import comparison_table, write_run

from child import environment
from guerdon.comparison.study import CompareStage, plan_study
from guerdon.errors import ConfigError
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

TESTS = Path(__file__).parents[1]
STUDY = {
    "name": "Tiny study",
    "work_dir": "work",
    "env": {"type": "gymnasium", "task": "Dot-v1", "num_envs": 2, "max_episode_steps": 10,
            "native_reward": "dense", "frame_size": 32},
    "policy": {"type": "mlp", "hidden": [8]},
    "algorithm": {"rollout_steps": 10, "minibatch_size": 10, "num_epochs": 1},
    "runner": {"total_steps": 20, "eval_every": 20, "eval_episodes": 2, "checkpoint_every": 20,
               "logger": {"tensorboard": False}},
    "compare": {
        "baseline": "A",
        "seeds": [0, 1],
        "tasks": ["tiny_world:Dot-v1"],
        "parallel": 2,
        "arms": {
            "A": {"label": "native"},
            "K": {"label": "constant",
                  "config": {"reward": {"use_reward_model": True, "model": {"model_type": "constant", "value": 1.0}}}},
        },
    },
}  # fmt: skip
BAD = {
    "label": "no checkpoint",
    "config": {"reward": {"use_reward_model": True, "model": {"model_type": "resnet", "checkpoint_path": "nowhere"}}},
}


def write_study(folder, **changes):
    """The study file in `folder`, with some of its compare section changed."""
    study = {**STUDY, "compare": {**STUDY["compare"], **changes}}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "guerdon", "compare", "study.yaml", *arguments],
        cwd=folder, env=environment(TESTS), start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def compare(folder, *arguments):
    with start(folder, *arguments) as process:
        out, err = process.communicate(timeout=800)
    return process.returncode, out, err


def any_left(group):
    """Whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def times(folder):
    """When each file under a folder was last written."""
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def test_a_plan_has_every_run_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_study(tmp_path, tasks=["a", "b"])
    plan = plan_study(path, ["runner.total_steps=40"])
    assert sorted(job.name for job in plan.jobs) == sorted(
        f"{task}.{arm}.seed{seed}" for task in "ab" for arm in "AK" for seed in (0, 1)
    )
    one = plan.configs["b.K.seed1"]
    assert (one.env.task, one.runner.seed, one.runner.total_steps) == ("b", 1, 40)
    assert one.reward.use_reward_model
    assert not plan.configs["b.A.seed1"].reward.use_reward_model
    assert "4 run" in CompareStage().estimate(plan_study(path, ["compare.tasks=[a]"]))["jobs"]
    assert [p.name for p in tmp_path.iterdir()] == ["study.yaml"]


def test_overrides_choose_arms_and_tasks_of_the_file_by_name(tmp_path):
    tasks = {"near": {"runner": {"total_steps": 60}}, "far": {"runner": {"total_steps": 80}}}
    path = write_study(tmp_path, tasks=tasks)
    found = plan_study(path, ["compare.tasks=[far]"]).configs
    assert sorted(found) == ["far.A.seed0", "far.A.seed1", "far.K.seed0", "far.K.seed1"]
    assert found["far.K.seed1"].runner.total_steps == 80
    found = plan_study(path, ["compare.arms=[A]", "compare.tasks=[near]", "compare.seeds=[3]"]).configs
    assert list(found) == ["near.A.seed3"]
    for words in (["compare.arms.A.config.runner.total_steps=90", "compare.arms=[A]"],
                  ["compare.arms=[A]", "compare.arms.A.config.runner.total_steps=90"]):  # fmt: skip
        found = plan_study(path, [*words, "compare.tasks=[near]", "compare.seeds=[3]"]).configs
        assert {name: config.runner.total_steps for name, config in found.items()} == {"near.A.seed3": 90}
    with pytest.raises(ConfigError, match=r"override compare.arms: 'Z' is not in the file; it has A, K") as refused:
        plan_study(path, ["compare.arms.Z.config.runner.total_steps=90", "compare.arms=[A]"])
    assert refused.value.key == "compare.arms"
    with refuses("compare.tasks"):
        plan_study(path, ["compare.tasks=[nera]"])
    with refuses("compare.arms"):
        plan_study(path, ["compare.arms=[[A]]"])
    with pytest.raises(ConfigError, match=r"compare.baseline 'A' is not an arm; arms are K") as refused:
        plan_study(path, ["compare.arms=[K]"])
    assert refused.value.key == "compare.baseline"


def test_an_override_removes_arms_and_tasks_of_the_file_alone(tmp_path):
    path = write_study(tmp_path, tasks={"near": {"runner": {"total_steps": 60}}, "far": {}})
    found = plan_study(path, ["compare.arms.K=null", "compare.tasks.far=null", "compare.seeds=[3]"]).configs
    assert list(found) == ["near.A.seed3"]
    with refuses("compare.arms"):
        plan_study(path, ["compare.arms.Z=null"])
    with refuses("compare.tasks"):
        plan_study(path, ["compare.tasks.fra=null"])
    with pytest.raises(ConfigError, match=r"override compare.tasks: 'a' is not in the file; it has none") as refused:
        plan_study(write_study(tmp_path, tasks=None), ["compare.tasks.a=null"])
    assert refused.value.key == "compare.tasks"
    for tasks in (None, [], ["b"]):  # names without values are replaced
        replaced = plan_study(write_study(tmp_path, tasks=tasks), ["compare.tasks=[a]", "compare.arms=[A]"]).configs
        assert list(replaced) == ["a.A.seed0", "a.A.seed1"]


def test_a_typo_is_refused_before_torch_or_a_simulator_is_imported(tmp_path):
    code = (
        "import sys; from pathlib import Path; from guerdon.comparison.study import plan_study\n"
        "from guerdon.errors import ConfigError\n"
        "try: plan_study(Path('study.yaml'), [sys.argv[1]])\n"
        "except ConfigError as error: print(error)\n"
        "print(sorted({'torch', 'scipy', 'gymnasium', 'jinja2'} & set(sys.modules)))"
    )
    write_study(tmp_path)
    for typo in ("algorithm.gama=1", "compare.arms.K.config.runner.sed=1"):
        command = [sys.executable, "-c", code, typo]
        done = subprocess.run(command, cwd=tmp_path, env=environment(TESTS), capture_output=True, text=True, check=True)
        assert "did you mean" in done.stdout
        assert done.stdout.endswith("[]\n")


COLLECTED = {
    "collect": {"save_dir": "${work_dir}/data/${env.task}", "mixture": [{"type": "random"}]},
    "train": {"rm": {"type": "resnet", "data_path": "${collect.save_dir}",
                     "save_dir": "${work_dir}/models/${env.task}/rm"}},
}  # fmt: skip


def test_preparation_is_per_task_and_comes_first(tmp_path):
    study = {**STUDY, **COLLECTED}
    model = {"model_type": "resnet", "checkpoint_path": "${train.rm.save_dir}"}
    arms = {"A": {"label": "a"}, "B": {"label": "b", "config": {"reward": {"use_reward_model": True, "model": model}}}}
    study["compare"] = {**STUDY["compare"], "arms": arms, "tasks": ["x", "y"], "seeds": [0]}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    jobs = {job.name: job for job in plan_study(path, []).jobs}
    assert set(jobs) == {f"{t}.{n}" for t in "xy" for n in
                         ("collect", "train.rm", "evaluate.rm", "A.seed0", "B.seed0")}  # fmt: skip
    assert jobs["y.train.rm"].needs == ("y.collect",)
    assert jobs["y.evaluate.rm"].urgent  # a run that begins after it can warn
    assert jobs["y.B.seed0"].needs == ("y.train.rm",)
    assert jobs["y.A.seed0"].needs == ()
    plan = plan_study(path, [])
    assert plan.configs["y.B.seed0"].reward.sources["resnet"].model.checkpoint_path == "work/models/y/rm"
    more = plan_study(path, ["compare.seeds=[0,1]", "compare.tasks=[x,y,z]"]).configs
    assert {name: more[name] for name in plan.configs} == plan.configs  # so that a finished study can be extended
    native = plan_study(path, ["compare.arms=[A]", "compare.tasks=[x]"]).jobs
    assert [job.name for job in native] == ["x.A.seed0"], "what no chosen arm needs is not made"


def test_runs_wait_for_demonstrations_and_for_the_clone_they_start_from(tmp_path):
    bc = {"data_path": "${collect.save_dir}", "save_dir": "${work_dir}/clones"}
    study = {**STUDY, **COLLECTED, "algorithm": {}, "bc": bc}
    sac = {"algorithm": {"type": "sac", "demonstrations": "${collect.save_dir}"}}
    start = {"policy": {"checkpoint": "${bc.save_dir}"}}
    arms = {"D": {"label": "d", "config": sac}, "C": {"label": "c", "config": start}, "N": {"label": "n"}}
    study["compare"] = {**STUDY["compare"], "baseline": "N", "arms": arms, "tasks": ["x"], "seeds": [0]}
    path = tmp_path / "study.yaml"

    def needs(*overrides, **changes):
        path.write_text(yaml.safe_dump({**study, **changes}, sort_keys=False))
        return {job.name.removeprefix("x."): job.needs for job in plan_study(path, overrides).jobs}

    runs = {"D.seed0": ("x.collect",), "C.seed0": ("x.bc",), "N.seed0": ()}
    models = {"train.rm": ("x.collect",), "evaluate.rm": ("x.train.rm",)}
    assert needs() == {"collect": (), "bc": ("x.collect",), **models, **runs}
    assert needs("compare.arms=[D,N]") == {"collect": (), "D.seed0": ("x.collect",), "N.seed0": ()}
    del arms["C"], runs["C.seed0"]
    assert needs() == {"collect": (), **models, **runs}, "no run starts from the clone"
    arms["N"]["config"] = {"policy": {"hidden": [4]}}
    assert needs(policy={**STUDY["policy"], **start["policy"]})["D.seed0"] == ("x.collect", "x.bc")
    clone = plan_study(path, []).configs["x.bc"]
    assert clone.policy.checkpoint is None
    assert needs(policy={**STUDY["policy"], **start["policy"]}, bc={**study["bc"], "data_path": "given"}) == {
        "collect": (), **models, "D.seed0": ("x.collect",), "N.seed0": (),
    }  # fmt: skip


def test_a_finished_job_keeps_its_configuration(tmp_path, monkeypatch):
    from guerdon.comparison.study import run_study

    monkeypatch.chdir(tmp_path)
    path = write_study(tmp_path)
    jobs = tmp_path / "work" / "jobs"
    jobs.mkdir(parents=True)
    (jobs / "tiny_world:Dot-v1.K.seed1.yaml").write_text("other: 1\n")
    (jobs / "tiny_world:Dot-v1.K.seed1.done").write_text("1\n")
    before = times(tmp_path)
    with pytest.raises(ConfigError, match=r"K\.seed1 was configured differently"):
        run_study(plan_study(path, []))
    assert times(tmp_path).keys() - before.keys() <= {str(tmp_path / "work" / ".lock")}
    assert before.items() <= times(tmp_path).items()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_from_end_to_end(tmp_path):
    """One bad arm does not stop the others; corrected and started again, only what is missing runs."""
    write_study(tmp_path, arms={**STUDY["compare"]["arms"], "B": BAD})
    status, out, err = compare(tmp_path, "--dry-run")
    assert status == 0, err
    assert "jobs: 6 run" in out
    assert not (tmp_path / "work").exists()

    status, out, err = compare(tmp_path)
    assert status == 4
    assert "Traceback" not in err
    assert "2 of 6 jobs did not finish" in err
    assert "no reward model at nowhere" in err
    work = tmp_path / "work"
    report = (work / "report.html").read_text()
    for word in ("native", "constant", "no checkpoint", "no reward model at nowhere"):
        assert word in report
    runs = work / "runs" / "tiny_world:Dot-v1"
    for arm in ("A", "K"):
        for seed in (0, 1):
            summary = json.loads((runs / arm / f"seed{seed}" / "COMPLETE").read_text())
            assert summary["step"] == 20
    assert json.loads((runs / "B" / "seed0" / "FAILED.json").read_text())["kind"] == "CheckpointError"
    card = json.loads((work / "study.json").read_text())
    assert (list(card["arms"]), card["seeds"], card["baseline"]) == (["A", "K", "B"], [0, 1], "A")

    before = times(runs / "A") | times(runs / "K")
    marks = {p: t for p, t in times(work / "jobs").items() if p.endswith((".done", ".log")) and ".B." not in p}
    good = {"label": "mended", "config": {"reward": {"use_reward_model": True, "model": {"model_type": "constant"}}}}
    write_study(tmp_path, arms={**STUDY["compare"]["arms"], "B": good})
    status, out, err = compare(tmp_path)
    assert status == 0, err
    assert "report: work/report.html" in out
    assert err.count("finished earlier") == 4
    assert times(runs / "A") | times(runs / "K") == before
    assert {p: t for p, t in times(work / "jobs").items() if p in marks} == marks

    status, _, err = compare(tmp_path, "runner.total_steps=40")
    assert status == 2
    assert "configured differently" in err


def test_jobs_that_may_use_a_gpu_get_one_each(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-b,5")
    cores = len(os.sched_getaffinity(0))

    def planned(policy=None, **changes):
        arms = {**STUDY["compare"]["arms"], "A": {"label": "native", "config": {"policy": policy or {}}}}
        plan = plan_study(write_study(tmp_path, arms=arms, **changes), [])
        return plan.parallel, plan.gpus

    assert planned(parallel=0) == (cores, ()), "no part of the study uses one"
    assert planned({"device": "auto"}, parallel=0) == (3, ("2", "GPU-b", "5"))
    assert planned({"device": "cuda"}, parallel=7) == (7, ("2", "GPU-b", "5"))
    assert planned({"device": "cuda:1"}, parallel=0) == (1, ()), "a job that names the second one sees them all"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert planned({"device": "auto"}, parallel=0) == (cores, ())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_that_is_told_to_end_leaves_no_process_and_goes_on(tmp_path):
    longer = {"total_steps": 20_000, "eval_every": 10_000, "checkpoint_every": 400}
    arms = {"A": {"label": "short"}, "K": {"label": "long", "config": {"runner": longer}}}
    write_study(tmp_path, seeds=[0], arms=arms, parallel=2)
    metrics = tmp_path / "work" / "runs" / "tiny_world:Dot-v1" / "K" / "seed0" / "metrics.jsonl"
    with start(tmp_path) as process:
        assert any("A.seed0: done" in line for line in process.stderr)
        while not (metrics.exists() and metrics.stat().st_size):  # the long run is in its middle
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=120)[1]
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    while any_left(process.pid):  # the kernel takes the last ones away; the test's time limit bounds this
        time.sleep(0.02)
    assert not metrics.with_name("COMPLETE").exists()
    assert not metrics.with_name("FAILED.json").exists()
    status, out, err = compare(tmp_path)
    assert status == 0, err
    assert err.count("finished earlier") == 1
    assert "report: work/report.html" in out
    assert json.loads(metrics.with_name("COMPLETE").read_text())["step"] == 20_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_that_is_killed_leaves_no_process_and_the_same_command_goes_on(tmp_path):
    longer = {"total_steps": 20_000, "eval_every": 10_000, "checkpoint_every": 400}
    arms = {"K": {"label": "long", "config": {"runner": longer}}}
    write_study(tmp_path, seeds=[0, 1], arms=arms, parallel=2, baseline="K")
    runs = [tmp_path / "work" / "runs" / "tiny_world:Dot-v1" / "K" / f"seed{seed}" for seed in (0, 1)]
    with start(tmp_path) as process:
        while not all((run / "checkpoints").is_dir() for run in runs):  # both are in their middle
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=120)  # its children held the same pipes
    status, out, err = compare(tmp_path)
    assert status == 0, err
    assert "report: work/report.html" in out
    for run in runs:
        assert json.loads((run / "COMPLETE").read_text())["step"] == 20_000
        assert not (run / "FAILED.json").exists()


def test_two_studies_do_not_share_a_folder(tmp_path, monkeypatch):
    import fcntl

    from guerdon.comparison.study import run_study

    monkeypatch.chdir(tmp_path)
    plan = plan_study(write_study(tmp_path), [])
    (tmp_path / "work").mkdir()
    with (tmp_path / "work" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another"):
            run_study(plan)
    assert sorted(p.name for p in (tmp_path / "work").iterdir()) == [".lock"]


@pytest.mark.parametrize(("rate", "comparable"), [(0.0, True), (0.2, False)])
def test_arms_that_fail_unequally_are_not_compared(tmp_path, rate, comparable):
    """A model that fails more often is judged on other moments than its rival: the table says so and nothing else."""
    steps = [0.0, 0.1, 0.2, 0.3, 0.4]
    for seed in range(3):
        write_run(tmp_path / "runs" / "t" / "A" / f"seed{seed}", success=steps)
        write_run(tmp_path / "runs" / "t" / "C" / f"seed{seed}", success=[2 * s for s in steps], sources=["c"],
                  failure_rate=rate)  # fmt: skip
    card = {"name": "s", "arms": {"A": {"label": "a"}, "C": {"label": "c"}}, "baseline": "A", "tasks": ["t"],
            "seeds": [0, 1, 2], "commands": [], "versions": {}, "machine": {}, "started": "",
            "wall_seconds": 1.0}  # fmt: skip
    (tmp_path / "study.json").write_text(json.dumps(card))
    conclusions = [row for row in comparison_table(tmp_path) if row.get("arm") == "C"]
    assert conclusions
    for row in conclusions:
        assert ("not comparable" in json.dumps(row)) != comparable
