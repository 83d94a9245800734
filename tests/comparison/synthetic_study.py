"""A study directory made in code: arms, tasks and seeds with curves that tests can compute by hand."""

import json
from pathlib import Path

import numpy as np
import yaml

from guerdon.comparison.results import comparison_rows, read_study
from guerdon.pages.formats import speed_text


def comparison_table(study_dir):
    """The numbers of a study as plain rows: all tasks pooled first, then task by task."""
    study = read_study(study_dir)
    return [plain(row) for row in comparison_rows(study)]


def plain(row):
    """A row of the comparison as plain numbers by name."""
    paired = None if row.difference is None else row.difference.interval
    ratio = None if row.speed is None else row.speed.interval
    intervals = {
        "final_success": row.final, "area": row.area, "p_above": row.p_above, "difference": paired, "steps_ratio": ratio
    }  # fmt: skip
    found = {"task": row.task, "arm": row.arm, "label": row.label, "conclusion": row.conclusion}
    for key, interval in intervals.items():
        for end, name in (("estimate", key), ("low", f"{key}_low"), ("high", f"{key}_high")):
            found[name] = None if interval is None else getattr(interval, end)
    return found | {
        "p_value": None if row.difference is None else row.difference.p_value,
        "difference_level": None if row.difference is None else row.difference.level,
        "n_pairs": None if paired is None else paired.n,
        "speed": None if row.speed is None else " ".join(part for part in speed_text(row.speed) if part),
        "never_reached": None if row.speed is None else row.speed.censored,
        "steps_to_50": row.to_half.median,
        "reached_50": row.to_half.reached,
        "steps_to_80": row.to_most.median,
        "reached_80": row.to_most.reached,
        "failure_rate": row.failure_rate,
        "n_runs": row.n_runs,
        "n_planned": row.n_planned,
        "wall_seconds": row.wall_seconds,
    }


STEPS = (0, 20_000, 40_000, 60_000, 80_000)
ARMS = {"A": "0/1 for success", "B": "ResNet success", "C": "learned progress + bonus"}
SOURCES = {"A": [], "B": ["resnet"], "C": ["progress", "bonus"]}


def rising(final):
    """A straight curve from 0 to `final` over STEPS."""
    return [final * step / STEPS[-1] for step in STEPS]


def write_run(
    path: Path,
    *,
    success,
    sources=(),
    complete=True,
    failure_rate=0.0,
    alarm_at=(),
    seconds_per_step=0.01,
    config=None,
    video=False,
    film_frames=40,
):
    """One run directory: evaluations at STEPS with this success, a training line at each step."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(len(str(path)) + sum(map(ord, path.parent.name + path.name)))
    lines = []
    for step, value in zip(STEPS, success, strict=False):
        time = 1 + step * seconds_per_step
        lines.append({"kind": "eval", "step": step, "wall_time": time, "success": value, "episodes": 20})
        for part in range(4):
            train = {
                "kind": "train",
                "step": step + 5000 * part,
                "wall_time": time + part,
                "success": min(max(value + float(rng.normal(0, 0.04)), 0.0), 1.0),
                "return/env": value,
                "return/combined": value * 10,
                "failure_rate": failure_rate,
                "hacking_alarm": int(step + 5000 * part in alarm_at),
                "reward_success_correlation": None if step == 0 else 0.8,
            }
            for source in sources:
                train[f"return/{source}"] = 10 * value + float(rng.normal(0, 0.8))
            lines.append(train)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "run.json").write_text(json.dumps({"task": path.parent.parent.name, "seed": 0}))
    (path / "config.yaml").write_text(yaml.safe_dump(config or {"seed": 0, "reward": {"sources": list(sources)}}))
    if complete:
        (path / "COMPLETE").write_text("{}")
    if video:
        write_video(path / "films" / "step80000_0.npz", sources=sources, step=80_000, n=film_frames)


def scene(t, n, *, size=128, success=False):
    """A drawn frame: a gripper that moves to a button on a table."""
    y, x = np.mgrid[0:size, 0:size] / size
    frame = np.stack([150 + 60 * y, 160 + 40 * y, 175 - 10 * y], axis=-1)
    frame[y > 0.62] = (134, 104, 76)
    frame[(abs(x - 0.72) < 0.09) & (abs(y - 0.6) < 0.07)] = (200, 60, 50) if not success else (70, 180, 90)
    cx, cy = 0.2 + 0.5 * min(1, t / (0.7 * n)), 0.25 + 0.25 * min(1, t / (0.7 * n))
    frame[(abs(x - cx) < 0.035) & (y < cy)] = (60, 62, 70)
    frame[(x - cx) ** 2 + (y - cy) ** 2 < 0.004] = (235, 235, 240)
    return frame.astype(np.uint8)


def write_video(path: Path, *, sources=("resnet",), step=80_000, n=40, success=True, missing_rows=(5, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    won = np.array([success and t > 0.75 * n for t in range(n)])
    progress = np.clip(np.arange(n) / (0.75 * n), 0, 1).astype(np.float32)
    arrays = {"frames": np.stack([scene(t, n, success=won[t]) for t in range(n)]), "rows": np.arange(n) * 3}
    arrays |= {"success": won, "reward/env": won.astype(np.float32), "missing/env": np.zeros(n, bool)}
    for k, source in enumerate(sources):
        arrays[f"reward/{source}"] = (progress ** (k + 1) + 0.03 * np.sin(np.arange(n))).astype(np.float32)
        arrays[f"missing/{source}"] = np.isin(np.arange(n), missing_rows)
    meta = json.dumps({"step": step, "task": "x", "success": success})
    np.savez_compressed(path, meta=np.array([meta]), **arrays)


def write_card(path: Path, *, name="resnet"):
    path.mkdir(parents=True)
    (path / "reliability.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 200 160">'
        '<path d="M20 140L180 15" stroke="#999" fill="none" stroke-dasharray="4 3"/>'
        '<path d="M20 140L60 120L100 85L140 50L180 18" stroke="#0072B2" stroke-width="3" fill="none"/></svg>'
    )
    metric = {"estimate": 0.97, "low": 0.94, "high": 0.99, "n": 400, "n_undefined": 0, "baseline": 0.5}
    content = {
        "model": {"name": name, "threshold": 0.5},
        "data": {"episodes": 40, "rows": 2000, "positives": 800},
        "metrics": {
            "auroc": metric,
            "ece": metric | {"estimate": 0.03, "low": 0.02, "high": 0.05, "baseline": None},
            "kendall_tau_b": metric | {"estimate": float("nan"), "low": None, "high": None, "n_undefined": 7},
        },
        "reliability": [],
        "probes": {
            "black_frame": {"applicable": True, "passed": True, "value": 0.01, "expected": "< 0.5"},
            "goal_pasted": {"applicable": True, "passed": False, "value": 0.98, "expected": "< 0.5"},
            "wrong_task": {"applicable": False, "passed": None, "value": None, "expected": None},
        },
        "failures": {"no_frames": 2},
        "pictures": {"reliability_diagram": "reliability.svg"},
    }
    (path / "evaluation.json").write_text(json.dumps(content))


def write_study(
    root: Path,
    finals,
    *,
    tasks=("window-close-v3", "door-close-v3"),
    seeds=(0, 1, 2),
    baseline="A",
    videos=True,
    cards=True,
    run_options=None,
    commands=("guerdon compare studies/demo.yaml",),
):
    """A study where `finals(task, arm, seed)` gives each run's final success; None: the run is missing."""
    root.mkdir(parents=True, exist_ok=True)
    arms = list(dict.fromkeys(arm for arm in ARMS))
    study = {
        "name": "Which reward teaches a robot?",
        "arms": {arm: {"label": ARMS[arm]} for arm in arms},
        "baseline": baseline,
        "tasks": list(tasks),
        "seeds": list(seeds),
        "commands": list(commands),
        "versions": {"guerdon": "0.1.0", "torch": "2.13.0", "python": "3.12.4"},
        "machine": {"cpu": "2 cores", "memory": "8 GB"},
        "started": "2025-11-21 02:14 UTC",
        "wall_seconds": 812.4,
    }
    (root / "study.json").write_text(json.dumps(study))
    compare = {"arms": study["arms"], "baseline": baseline, "seeds": list(seeds), "tasks": list(tasks)}
    (root / "study.yaml").write_text(yaml.safe_dump({"name": study["name"], "compare": compare}))
    for task in tasks:
        for arm in arms:
            for seed in seeds:
                final = finals(task, arm, seed)
                if final is None:
                    continue
                options = {
                    "sources": SOURCES[arm],
                    "video": videos,
                    "seconds_per_step": 0.004 + 0.003 * (arm != "A"),
                }
                options |= (run_options or (lambda *_: {}))(task, arm, seed)
                config = {
                    "seed": seed,
                    "task": task,
                    "reward": {"type": ARMS[arm], "use_reward_model": arm != "A"},
                }
                curve = options.pop("success", None) or rising(final)
                write_run(root / "runs" / task / arm / f"seed{seed}", success=curve, config=config, **options)
        if cards:
            write_card(root / "models" / task / "resnet")
    return root


TEXT_STEPS = tuple(range(512, 8193, 512))
TEXT_ARMS = {"rloo": "outcome only", "prime": "PRIME, online", "frozen": "PRIME, frozen PRM", "exact": "exact steps"}
TEXT_SPEED = {"rloo": 1.0, "prime": 2.5, "frozen": 1.2, "exact": 4.0}


def learning(final, speed, *, half=5000, steps=TEXT_STEPS):
    """A curve that rises to `final`, at another speed."""
    return [round(final * (step * speed) ** 2 / ((step * speed) ** 2 + half**2), 4) for step in steps]


def chain(rng, *, steps=4, wrong_from=None):
    """A chain of sums with one reduction per line: question, answer, lines written, their truth."""
    total, question, lines, truth = int(rng.integers(2, 9)), "", [], []
    said = total
    for k in range(steps):
        other, slip = int(rng.integers(2, 9)), int(rng.integers(1, 4))
        sign = "+-"[int(rng.integers(2))]
        question += f"{total}{sign}{other}=?;" if k == 0 else f"?{sign}{other}=?;"
        before, total = said, total + other if sign == "+" else total - other
        said = before + other if sign == "+" else before - other
        said += slip if k == wrong_from else 0
        lines.append(f"{before}{sign}{other}={said};")
        truth.append(said == total)
    return question, str(total), lines, truth


def write_answers(path: Path, *, step, sources=("prime",), trust=1.0, n_prompts=6, n_samples=4, broken=None):
    """Sampled answers whose rewards tell true steps from false ones as well as `trust` says."""
    rng = np.random.default_rng(step)
    responses = []
    for prompt in range(n_prompts):
        for sample in range(n_samples):
            wrong = None if sample == 0 else int(rng.integers(0, 4))
            question, answer, lines, truth = chain(np.random.default_rng(prompt), wrong_from=wrong)
            tokens = [c for line in lines for c in line] + ["<|eos|>"]
            ends = np.cumsum([len(line) for line in lines]) - 1
            rewards = {}
            for k, source in enumerate(sources):
                paid = rng.normal(0, 0.05, len(tokens))
                paid[ends] += np.where(truth, 0.3, -0.4) * trust
                paid[np.maximum(ends - 1, 0)] += np.where(truth, 0.15, -0.35) * trust
                rewards[source] = [round(float(p) * (1 + 4 * k), 5) for p in paid]
            responses.append(
                {
                    "prompt": question,
                    "answer": answer,
                    "tokens": tokens,
                    "rewards": rewards,
                    "outcome": bool(truth[-1]),
                    "step_ends": [int(e) for e in ends],
                    "steps_true": [bool(t) for t in truth],
                }
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"step": step, "responses": responses})
    path.write_text(content if broken is None else content[:broken])


def write_text_run(path: Path, *, arm, curve, steps=TEXT_STEPS, complete=True, collapse=False, unit="responses"):
    """One run of a language model: evaluations, training lines with the reward model's quality, answers."""
    path.mkdir(parents=True)
    rng = np.random.default_rng(sum(map(ord, str(path)[-20:])))
    sources = [] if arm == "rloo" else ["exact"] if arm == "exact" else ["prime"]
    lines = []
    for step, value in zip(steps, curve, strict=True):
        time = 2 + step * (0.01 if arm == "rloo" else 0.012)
        lines.append({"kind": "eval", "step": step, "wall_time": time, "success": value, "episodes": 128})
        for part in range(4):
            train = {"kind": "train", "step": step - 384 + 128 * part, "wall_time": time, "success": value}
            train |= {"failure_rate": 0.0, "hacking_alarm": 0, "return/verifier": value, "return/combined": value}
            train["reward_success_correlation"] = 0.4
            for source in sources:
                train[f"return/{source}"] = 2 * value + float(rng.normal(0, 0.2))
            if sources == ["prime"]:
                share = step / steps[-1]
                level = 0.55 + 0.3 * share - (0.6 * max(0.0, share - 0.4) if collapse else 0.0)
                noise = rng.normal(0, 0.03, 3)
                for k, metric in enumerate(("dpo_acc", "dpo_acc_abs", "step_auroc")):
                    undefined = part == 0 and k != 1
                    train[f"reward_model/prime/{metric}"] = None if undefined else float(level - 0.05 * k + noise[k])
            lines.append(train)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "run.json").write_text(json.dumps({"task": path.parent.parent.name, "seed": 0}))
    (path / "config.yaml").write_text(yaml.safe_dump({"policy": {"type": "text"}, "reward_model": {"arm": arm}}))
    if complete:
        (path / "COMPLETE").write_text(json.dumps({"step": steps[-1], "unit": unit} if unit else {}))
    for step in (1024, 4096, 8192):
        trust = (step / 8192) * (0.2 if arm == "frozen" else 1.0)
        write_answers(path / "films" / f"step_{step:012d}.json", step=step, sources=sources, trust=trust)


def write_text_study(root: Path, *, tasks=("chain", "mirror"), seeds=(0, 1, 2), arms=TEXT_ARMS, curves=None):
    """A study of language models; `curves(task, arm, seed)` gives success at TEXT_STEPS."""
    root.mkdir(parents=True, exist_ok=True)
    study = {
        "name": "What does a process reward buy?",
        "arms": {arm: {"label": label} for arm, label in arms.items()},
        "baseline": "rloo",
        "tasks": list(tasks),
        "seeds": list(seeds),
        "commands": ["guerdon compare configs/prime_math.yaml"],
    }
    (root / "study.json").write_text(json.dumps(study))
    for task in tasks:
        for arm in arms:
            for seed in seeds:
                speed = TEXT_SPEED[arm] * (1 + 0.08 * (seed - 1))
                curve = curves(task, arm, seed) if curves else learning(0.8 - 0.05 * (task == "mirror"), speed)
                path = root / "runs" / task / arm / f"seed{seed}"
                write_text_run(path, arm=arm, curve=curve, collapse=arm == "frozen")
    return root
