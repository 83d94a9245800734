"""Golden metrics: short runs of every kind of RL loop, recorded at full precision, so that a refactor can be compared.

    python tests/rl/golden/record.py                 write all records again
    python tests/rl/golden/record.py --check         run everything and compare, without writing
    python tests/rl/golden/record.py ppo_native ...  only these runs
    python tests/rl/golden/record.py --key KEY       these metrics alone, also new ones; an error where another differs

A record holds every row of a run's `metrics.jsonl` (it has no times) and a hash of the final weights of the policy and
of each reward model that learned. `control.json` and `text.json` keep the records beside the machine that made them; a
run that was recorded again elsewhere has a machine of its own.

The rule of comparison, which `compare` applies:

- Same processor model, torch and numpy as in the record: every row and every hash must be equal, bit for bit. Runs use
  one thread.
- Any other machine: floats differ in their last bits, and sampling amplifies that. There only the metrics of the first
  update are compared: to 1e-4 relative, and 1e-6 absolute for numbers that are zero but for rounding. Image reward
  models compute in float32 here, also where the processor has bfloat16, which is too coarse for that.
- Runs of `REFIT_FIRST` train an image reward model before it scores the first update. Adam's first step has the size of
  the learning rate whatever the gradient, so the last bit of a gradient near zero decides its sign: between AVX-512 of
  two makers returns differ by 3e-3, between AVX-512 and SSE by 1e-2. No tolerance is true there. On any other machine
  these runs promise what is measured before that step; what follows from it (`AFTER_REFIT`) is only there or not.

When a change alters numbers on purpose, say in the commit which runs and why, and record these again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent.parent, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
import conftest  # noqa: E402, F401  (one thread per library: before numpy and torch)

# isort: split
import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

import guerdon  # noqa: E402
import rl_models  # noqa: E402
from guerdon.files import provenance  # noqa: E402
from guerdon.models.text.text_card import TextModelCard  # noqa: E402
from guerdon.models.text.text_heads import OutcomeModel, StepwiseModel  # noqa: E402
from guerdon.policies.language.text_files import load_policy  # noqa: E402
from guerdon.rl.run import run, run_folder  # noqa: E402
from guerdon.settings.study import Study  # noqa: E402
from guerdon.settings.text_policy import TextPolicySettings  # noqa: E402
from text_rl import LORA, SUMS, letter_study, prime, sum_study, tiny  # noqa: E402

Make = Callable[[Path], Study]  # from a folder that holds what the runs share: models, replays, prompts

# Control: a dot that should reach the right edge, and a walk whose episodes end at success.

DOT = {
    "type": "gymnasium", "task": "tiny_world:Dot-v1", "num_envs": 2, "frame_size": 24, "max_episode_steps": 10,
    "native_reward": "dense", "kwargs": {"bound": float("inf")},
}  # fmt: skip
CORRIDOR = {**DOT, "task": "corridor:guerdon-tests/Corridor-v0", "max_episode_steps": 8}
PPO = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2}
GRPO = {"adv_estimator": "grpo", "group_size": 2, "minibatch_size": 8, "num_epochs": 2}
CNN = {"type": "cnn", "channels": [4, 4, 4], "hidden": [8]}
PIXELS = {"observation": "pixels", "frame_size": 40}


def control(
    *, algorithm: dict[str, Any] = PPO, reward: Any = None, policy: Any = None, steps: int | None = None, **env: Any
) -> Make:
    """Three updates, or `steps` environment steps. `reward` is a section, or makes one from the shared folder."""
    world = {**DOT, **env}

    def make(shared: Path) -> Study:
        return Study.model_validate(
            {
                "runner": {
                    "total_steps": steps or (60 if algorithm["adv_estimator"] == "grpo" else 72),
                    "eval_every": 1000, "eval_episodes": 2, "checkpoint_every": 1000, "film_frames": 2, "seed": 3,
                    "logger": {"log_path": str(shared), "experiment_name": "run", "tensorboard": False},
                },
                "env": world,
                "policy": policy or {"type": "mlp", "hidden": [8]},
                "algorithm": algorithm,
                "reward": (reward(shared) if callable(reward) else reward) or {},
            }
        )  # fmt: skip

    algorithm = {"adv_estimator": "gae", **algorithm}
    return make


def source(shared: Path, kind: str, *, update: str = "none", every: int = 1, **given: Any) -> dict[str, Any]:
    """The section of one image reward model, written to the shared folder once."""
    folder = shared / kind
    if not folder.exists():
        rl_models.write_image_model(folder, kind)
    model: dict[str, Any] = {"model_type": kind, "checkpoint_path": str(folder / "model")}
    if update != "none":
        refits = {"steps": 2, "batch_size": 8, "replay_size": 30, "every": every}
        model |= {"update": update, "replay_path": str(folder / "replay"), "update_params": refits}
    return {"model": model, **given}


def image(kind: str, *, combine_mode: str = "replace", env_reward_weight: float | None = None, **given: Any) -> Any:
    """A reward section with one image reward model."""
    weight = {} if env_reward_weight is None else {"env_reward_weight": env_reward_weight}
    reward = {"use_reward_model": True, "combine_mode": combine_mode, **weight}
    return lambda shared: {**reward, "sources": {kind: source(shared, kind, **given)}}


def two_images(shared: Path) -> dict[str, Any]:
    """Two models with discounts, weights and modes of their own, one of them refitted, and the native reward."""
    resnet = source(shared, "resnet", update="after", reward_mode="per_step", score_every=2, shaping="raw",
                    gamma=0.9, reward_weight=0.5)  # fmt: skip
    progress = source(shared, "progress", reward_mode="per_step", shaping="relative", reward_coef=2.0)
    return {"use_reward_model": True, "combine_mode": "add", "sources": {"resnet": resnet, "progress": progress}}


STEPS = {"reward_mode": "per_step", "score_every": 3}
RAW = {"reward_mode": "per_step", "score_every": 2, "shaping": "raw"}
CONTROL: dict[str, Make] = {
    "ppo_native": control(),
    "ppo_native_sparse_ends_on_success": control(native_reward="sparse", end_on_success=True),
    "ppo_native_corridor": control(**CORRIDOR),
    "ppo_native_next_step": control(**{**CORRIDOR, "autoreset_mode": "next_step"}),
    "ppo_native_same_step": control(**{**CORRIDOR, "autoreset_mode": "same_step"}),
    "ppo_native_success_reported_at_times": control(
        **{**CORRIDOR, "kwargs": {**DOT["kwargs"], "reports": "every other"}}
    ),
    "ppo_knobs": control(
        algorithm={
            **PPO, "normalize_rewards": True, "clip_range_high": 0.28, "clip_range_value": 0.2, "target_kl": 0.02,
            "entropy_coef": 0.01, "lr_schedule": "linear", "num_epochs": 4, "gamma": 0.9, "gae_lambda": 0.8,
        }
    ),
    "ppo_plain": control(
        algorithm={**PPO, "normalize_advantages": False, "lr_schedule": "cosine"},
        policy={"type": "mlp", "hidden": [8, 8], "activation": "relu", "normalize_observations": False},
    ),
    "ppo_pixels": control(policy=CNN, **PIXELS),
    "grpo_native": control(algorithm=GRPO),
    "grpo_native_no_std": control(algorithm={**GRPO, "grpo_std": False}, num_envs=4),
    "grpo_corridor": control(algorithm=GRPO, **{**CORRIDOR, "num_envs": 4}),
    "grpo_pixels": control(algorithm=GRPO, policy=CNN, **PIXELS),
    "ppo_constant": control(
        reward={"use_reward_model": True, "combine_mode": "add", "reward_mode": "per_step", "shaping": "raw",
                "model": {"model_type": "constant", "value": 0.5}}
    ),
    "ppo_resnet_per_step_replace": control(reward=image("resnet", **RAW)),
    "ppo_resnet_per_step_weighted": control(
        reward=image("resnet", combine_mode="weighted", env_reward_weight=0.3, **RAW, reward_weight=2.0)
    ),
    "ppo_resnet_terminal_add": control(
        reward=image("resnet", combine_mode="add", reward_mode="terminal", use_negative_reward=True)
    ),
    "ppo_resnet_episode_replace": control(
        reward=image("resnet", reward_mode="episode", score_every=3, shaping="raw"), **CORRIDOR
    ),
    "ppo_resnet_bonus_add": control(
        reward=image("resnet", combine_mode="add", **STEPS, shaping="bonus", reward_threshold=0.3, confirm_frames=2)
    ),
    "ppo_progress_relative": control(reward=image("progress", **STEPS, shaping="relative")),
    "ppo_progress_potential_add": control(
        reward=image("progress", combine_mode="add", **STEPS, shaping="potential"), **CORRIDOR
    ),
    "ppo_progress_terminal_weighted": control(
        reward=image("progress", combine_mode="weighted", env_reward_weight=0.5, reward_mode="terminal",
                     shaping="raw", gamma=0.9)
    ),
    "ppo_resnet_refit_before": control(steps=48, reward=image("resnet", update="before", **RAW)),
    "ppo_resnet_refit_after": control(reward=image("resnet", update="after", every=2, **RAW)),
    "ppo_progress_refit_before": control(
        steps=48, reward=image("progress", update="before", **STEPS, shaping="potential"), **CORRIDOR
    ),
    "ppo_progress_refit_after": control(
        steps=48, reward=image("progress", update="after", **STEPS, shaping="relative")
    ),
    "ppo_pixels_resnet_refit_after": control(
        steps=48, policy=CNN, **PIXELS, reward=image("resnet", update="after", **RAW)
    ),
    "ppo_two_sources": control(steps=48, algorithm={**PPO, "normalize_rewards": True}, reward=two_images),
    "grpo_resnet_terminal": control(
        algorithm=GRPO, reward=image("resnet", reward_mode="terminal", shaping="raw")
    ),
    "grpo_progress_per_step_add_refit_after": control(
        algorithm=GRPO, num_envs=4,
        reward=image("progress", combine_mode="add", update="after", **STEPS, shaping="relative"),
    ),
    "grpo_resnet_episode_refit_before": control(
        algorithm=GRPO, **{**CORRIDOR, "num_envs": 4},
        reward=image("resnet", update="before", reward_mode="episode", score_every=2, shaping="raw"),
    ),
}  # fmt: skip

# Language models: a letter that chance finds now and then, and sums, whose steps a judge can read.


def letters(**given: Any) -> Make:
    """Three updates of a task that is solved by chance."""
    return lambda shared: letter_study(shared, **{**given, "runner": _runner(given)})


def sums(**given: Any) -> Make:
    """Three updates of a task with steps, which chance does not solve."""
    return lambda shared: sum_study(shared, **{**given, "runner": _runner(given)})


def _runner(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "total_steps": 48, "eval_every": 1000, "checkpoint_every": 1000, "seed": 3, **given.get("runner", {})
    }  # fmt: skip


def judge(shared: Path, kind: str = "steps", **given: Any) -> dict[str, Any]:
    """The section of a reward model of text, written to the shared folder once: of steps, or of whole responses."""
    folder = shared / f"judge_{kind}"
    if not folder.exists():
        policy = load_policy(TextPolicySettings.model_validate(tiny(SUMS)), seed=7)
        if kind == "steps":
            StepwiseModel(policy, TextModelCard("stepwise", "chat", "bce", bf16=False)).write(folder, training={})
        else:
            card = TextModelCard("outcome", "chat", "bradley_terry", threshold=None, bf16=False)
            OutcomeModel(policy, card).write(folder, training={})
    return {"model": {"model_type": "text", "checkpoint_path": str(folder)}, **given}


def judged(
    *,
    estimator: str = "rloo",
    combine: dict[str, Any] | None = None,
    kind: str = "steps",
    algorithm: dict[str, Any] | None = None,
    reward_model: dict[str, Any] | None = None,
    **given: Any,
) -> Make:
    """Sums with a judge as a source of reward."""

    def make(shared: Path) -> Study:
        sources = {"judge": judge(shared, kind, **given)}
        reward = {"use_reward_model": True, **(combine or {}), "sources": sources}
        section = {"adv_estimator": estimator, **(algorithm or {})}
        return sums(algorithm=section, reward=reward, reward_model=reward_model)(shared)

    return make


def two_judges(shared: Path) -> Study:
    """Steps and whole responses, with discounts and weights of their own, and the outcome."""
    sources = {
        "steps": judge(shared, "steps", reward_mode="per_step", shaping="relative", gamma=0.9, reward_weight=0.5),
        "whole": judge(shared, "whole", reward_mode="terminal", shaping="raw"),
    }
    reward = {"use_reward_model": True, "combine_mode": "weighted", "env_reward_weight": 2.0, "sources": sources}
    return sums(reward=reward, algorithm={"minibatch_size": 8})(shared)


def primed(*, estimator: str = "rloo", mini: int = 16, micro: int = 8, algorithm: Any = None, **given: Any) -> Make:
    """Letters with the implicit process reward model; `given` is its section, without the keys that a run sets."""
    run_keys = {k: given.pop(k) for k in ("policy", "data", "runner") if k in given}
    section = {"adv_estimator": estimator, **(algorithm or {})}
    return letters(algorithm=section, reward_model=prime(mini=mini, micro=micro, **given), **run_keys)


def verified(estimator: str, **algorithm: Any) -> Make:
    """Letters with the verifier alone."""
    runner = GREEDY_RIGHT if estimator == "remax" else {}
    return letters(algorithm={"adv_estimator": estimator, **algorithm}, runner=runner)


GREEDY_RIGHT = {"seed": 6}  # greedy answers of this policy are right at times, so that ReMax has a baseline
MINI = {"minibatch_size": 8, "num_epochs": 2}
WARM = {"warm_up": {"rollouts": 16, "epochs": 2}}
TEXT: dict[str, Make] = {
    "rloo": verified("rloo"),
    "rloo_minibatches": verified("rloo", **MINI, micro_batch_size=4, clip_range_high=0.28, lr_schedule="linear"),
    "rloo_normalized_discounted": verified("rloo", normalize_advantages=True, gamma=0.9, loss_agg="sequence"),
    "rloo_kl_in_reward": verified("rloo", kl_coef=0.1, kl_in="reward", **MINI),
    "rloo_kl_in_loss": verified("rloo", kl_coef=0.1, kl_in="loss", kl_type="k2", entropy_coef=0.01),
    "rloo_lora_dropout": letters(policy={"dropout": True, "lora": {**LORA, "dropout": 0.1}}, algorithm=MINI),
    "rloo_lora_kl": letters(policy={"lora": LORA}, algorithm={"kl_coef": 0.1}),
    "rloo_filters": letters(
        data={"filter_accuracy": True, "accuracy_lower_bound": 0.1, "accuracy_upper_bound": 0.9},
        runner={"total_steps": 160},
    ),
    "rloo_temperature_top_p": letters(generation={"temperature": 0.8, "top_p": 0.9, "top_k": 6}),
    "grpo": verified("grpo"),
    "grpo_minibatches_kl": verified("grpo", **MINI, kl_coef=0.1),
    "grpo_gspo": verified("grpo", **MINI, loss="gspo"),
    "grpo_cispo": verified("grpo", **MINI, loss="cispo"),
    "dr_grpo": verified("dr_grpo", **MINI),
    "reinforce": verified("reinforce"),
    "reinforce_kl": verified("reinforce", kl_coef=0.1),
    "reinforce_pp": verified("reinforce_pp", **MINI),
    "reinforce_pp_kl": verified("reinforce_pp", kl_coef=0.1),
    "remax": verified("remax"),
    "remax_kl": verified("remax", kl_coef=0.1),
    "gae": verified("gae"),
    "gae_minibatches_kl": verified("gae", **MINI, gamma=0.95, gae_lambda=0.9, kl_coef=0.1, value_coef=0.2),
    "rloo_prime_none": primed(prime_model={"update": "none", **WARM}),
    "rloo_prime_before": primed(prime_model={"update": "before"}),
    "rloo_prime_after": primed(),
    "rloo_prime_after_epochs": primed(mini=8, micro=4, prime_model={"optim": {"lr": 1e-2, "epochs": 2}, **WARM}),
    "rloo_prime_compat": primed(algorithm={"rloo_form": "prime_compat", **MINI}),
    "rloo_prime_ref_policy": primed(prime_model={"ref_type": "policy"}),
    "rloo_prime_lora": primed(policy={"lora": LORA}),
    "rloo_prime_lora_before_kl": primed(
        policy={"dropout": True, "lora": {**LORA, "dropout": 0.1}}, prime_model={"update": "before"},
        algorithm={"kl_coef": 0.1},
    ),
    "rloo_prime_step": lambda shared: sum_study(
        shared, runner=_runner({}), reward_model=prime(prime_granularity="step")
    ),
    "rloo_prime_whole": primed(prime_granularity="whole"),
    "rloo_prime_no_norm": primed(prime_norm="none", rm_coef=1.0, rm_coef_schedule="linear_decay"),
    "rloo_prime_norm_shards": primed(prime_norm_shards=2, algorithm={"normalize_advantages": True}),
    "rloo_prime_replay": primed(prime_model={"replay_size": 32, "replay_ratio": 0.5}),
    "rloo_prime_dpo": primed(prime_model={"loss_type": "dpo"}),
    "rloo_prime_alone": primed(verifier_coef=0.0),
    "rloo_prime_discounts": primed(
        algorithm={"adv_params": {"verifier_gamma": 1.0, "reward_model_gamma": 0.9}, **MINI}
    ),
    "grpo_prime_before": primed(estimator="grpo", prime_model={"update": "before"}),
    "remax_prime_after": primed(estimator="remax", runner=GREEDY_RIGHT),
    "remax_prime_ref_policy_kl": primed(
        estimator="remax", prime_model={"ref_type": "policy"}, algorithm={"kl_coef": 0.1}, runner=GREEDY_RIGHT
    ),
    "gae_prime_after": primed(estimator="gae", algorithm=MINI),
    "gae_prime_lora": primed(estimator="gae", policy={"lora": LORA}),
    "rloo_judge_per_step": judged(reward_mode="per_step", shaping="raw"),
    "rloo_judge_per_step_signed_min_form": judged(
        reward_mode="per_step", shaping="signed", algorithm={"credit": "min_form"}
    ),
    "rloo_judge_per_token_relative_add": judged(
        combine={"combine_mode": "add"}, reward_mode="per_token", shaping="relative"
    ),
    "rloo_judge_terminal": judged(reward_mode="terminal", aggregation="min", shaping="raw"),
    "rloo_judge_whole": judged(kind="whole", reward_mode="terminal", shaping="raw"),
    "rloo_two_judges": two_judges,
    "rloo_judge_beside_prime": judged(reward_mode="per_step", shaping="raw", reward_model=prime()),
    "grpo_judge_per_step": judged(estimator="grpo", reward_mode="per_step", shaping="raw", algorithm=MINI),
    "grpo_judge_terminal": judged(estimator="grpo", reward_mode="terminal", aggregation="prod", shaping="raw"),
    "remax_judge_terminal": judged(estimator="remax", reward_mode="terminal", aggregation="mean", shaping="raw"),
    "remax_judge_per_step": judged(estimator="remax", reward_mode="per_step", shaping="relative"),
    "reinforce_pp_judge_per_step": judged(
        estimator="reinforce_pp", combine={"combine_mode": "add"}, reward_mode="per_step", shaping="threshold"
    ),
    "gae_judge_per_step": judged(estimator="gae", reward_mode="per_step", shaping="signed", gamma=0.9),
}  # fmt: skip

RUNS = {"control": CONTROL, "text": TEXT}
QUICK = (  # repeated by every test run; `pytest -m slow` repeats all
    "ppo_pixels", "grpo_corridor", "ppo_resnet_terminal_add", "rloo_minibatches", "rloo_prime_lora",
    "gae_judge_per_step",
)  # fmt: skip

REFIT_FIRST = ("ppo_resnet_refit_before", "ppo_progress_refit_before", "grpo_resnet_episode_refit_before")
AFTER_REFIT = re.compile(
    r"return/(?!env$).+|reward_success_correlation.*|hacking_alarm|reward_model/.+/loss|"
    r"policy_loss|value_loss|grad_norm|entropy|clip_fraction|approx_kl"
)  # metrics of an update that follow from scores of the model after its refit


def measured(name: str, shared: Path) -> dict[str, Any]:
    """The record of one run, whose folder is removed.

    Args:
        name: of `CONTROL` or `TEXT`.
        shared: holds models and prompts that runs share; `run/` in it is this run's.
    """
    study = (CONTROL | TEXT)[name](shared)
    folder = run_folder(study)
    float32 = {**torch.cpu.get_capabilities(), "avx512_bf16": False, "amx_bf16": False}
    with (
        mock.patch.object(torch.cpu, "get_capabilities", return_value=float32),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        run(study)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    models = [folder / "policy", *sorted((folder / "reward_models").glob("*"))]
    record = {"metrics": rows, "weights": {str(m.relative_to(folder)): weights_hash(m) for m in models}}
    shutil.rmtree(folder)
    return record


def weights_hash(folder: Path) -> str:
    """Of every tensor in a folder, whatever it and its file are called."""
    tensors = [t for path in folder.rglob("*.safetensors") for t in load_file(path).values()]
    assert tensors, folder
    parts = sorted(f"{t.dtype} {tuple(t.shape)} {hashlib.sha256(_bytes(t)).hexdigest()}" for t in tensors)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def signature() -> dict[str, str]:
    """What decides the last bit of a float: processor, torch, numpy."""
    cpu = f"{provenance.machine()['processor']}, {torch.backends.cpu.get_cpu_capability()}"
    described = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    for name in ("cpu family", "model", "stepping"):  # a virtual machine may call several generations the same
        cpu += "".join(f", {name} {n}" for n in re.findall(rf"^{name}\s*: (\d+)$", described, re.M)[:1])
    return {"cpu": cpu, "torch": torch.__version__, "numpy": np.__version__}


def recorded(kind: str) -> dict[str, Any]:
    """The file of all records of a kind: `machine` and `runs`."""
    path = HERE / f"{kind}.json"
    return json.loads(path.read_text()) if path.exists() else {"machine": {}, "runs": {}}


def made_here(stored: dict[str, Any], name: str) -> bool:
    """Whether this machine made the record of a run, as far as the last bit of a float goes."""
    return bool(stored["runs"].get(name, {}).get("machine", stored["machine"]) == signature())


def compare(found: dict[str, Any], golden: dict[str, Any], *, exact: bool, refit_first: bool = False) -> list[str]:
    """Differences, one line each; none where a run repeats its record by the rule above.

    Args:
        found: the record of a run, as `measured` returns it.
        golden: the stored record.
        exact: whether this machine is the one of the stored record.
        refit_first: whether the run is one of `REFIT_FIRST`.
    """
    if not exact:
        found, golden = ({"metrics": r["metrics"][:1], "weights": {}} for r in (found, golden))
    problems = [
        f"weights of {k}: {found['weights'].get(k)}, recorded {golden['weights'].get(k)}"
        for k in sorted(found["weights"].keys() | golden["weights"].keys())
        if found["weights"].get(k) != golden["weights"].get(k)
    ]
    if len(found["metrics"]) != len(golden["metrics"]):
        problems.append(f"{len(found['metrics'])} rows of metrics, recorded {len(golden['metrics'])}")
    for number, (row, wanted) in enumerate(zip(found["metrics"], golden["metrics"], strict=False)):
        for key in sorted(row.keys() | wanted.keys()):
            a, b = row.get(key, "absent"), wanted.get(key, "absent")
            if a == b:
                continue
            if not exact and _near(a, b):
                continue
            if not exact and refit_first and AFTER_REFIT.fullmatch(key) and "absent" not in (a, b):
                continue
            problems.append(f"row {number}, {key}: {a}, recorded {b}")
    return problems


def _near(a: Any, b: Any) -> bool:
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float))
    return numbers and abs(a - b) <= max(1e-6, 1e-4 * max(abs(a), abs(b)))


def with_keys(
    stored: dict[str, Any], fresh: dict[str, Any], keys: list[str], *, refit_first: bool = False
) -> dict[str, Any]:
    """A stored record with the values that some metrics have now: nothing else differs from the stored record.

    The fresh run must repeat what is kept by the rule for any machine: last bits may be others here.

    Args:
        stored, fresh: records of a run.
        keys: names of metrics, also new ones; one that ends with "/" stands for those of every source.
        refit_first: see `compare`.

    Raises:
        AssertionError: something else does.
    """

    def again(name: str) -> bool:
        return any(name == key or (key.endswith("/") and name.startswith(key)) for key in keys)

    rows = []
    for old, new in zip(stored["metrics"], fresh["metrics"], strict=True):
        kept = {name: value for name, value in old.items() if not again(name)}
        assert kept.keys() == {name for name in new if not again(name)}, (old, new)
        rows.append({name: new[name] if again(name) else kept[name] for name in new})
    changed = {**stored, "metrics": rows}
    problems = compare(fresh, changed, exact=False, refit_first=refit_first)
    assert not problems, problems
    return changed


def write(kind: str, runs: dict[str, Any], machine: dict[str, str] | None = None) -> Path:
    """All records of a kind as JSON with a line per row, in the order of their definitions."""
    lines = ["{", f'"machine": {json.dumps(machine or signature())},', '"runs": {']
    kept = [name for name in RUNS[kind] if name in runs]
    for name in kept:
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in runs[name]["metrics"])
        rest = {key: value for key, value in runs[name].items() if key != "metrics"}
        lines += [f'"{name}": {{"metrics": [', rows, "], " + json.dumps(rest)[1:]]
        lines[-1] += "," if name != kept[-1] else ""
    path = HERE / f"{kind}.json"
    path.write_text("\n".join([*lines, "}}", ""]))
    return path


def main() -> int:
    """Record, or check, and print the processor time of each run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="runs; all where none is given")
    parser.add_argument("--check", action="store_true", help="compare with the records, without writing")
    parser.add_argument(
        "--key", action="append", help="record these metrics alone again (NAME/: of every source); refused where "
        "anything else differs",
    )  # fmt: skip
    asked = parser.parse_args()
    print(f"guerdon from {Path(guerdon.__file__).parent}")
    unknown = set(asked.names) - (CONTROL | TEXT).keys()
    if unknown:
        parser.error(f"there is no run {', '.join(sorted(unknown))}")
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        for kind, runs in RUNS.items():
            before = recorded(kind)
            names = [name for name in runs if not asked.names or name in asked.names]
            fresh = {}
            for name in names:
                start = time.process_time()
                fresh[name] = measured(name, Path(temporary))
                problems = ["new"]
                if asked.key:
                    fresh[name] = with_keys(
                        before["runs"][name], fresh[name], asked.key, refit_first=name in REFIT_FIRST
                    )
                if name in before["runs"]:
                    exact, first = made_here(before, name), name in REFIT_FIRST
                    problems = compare(fresh[name], before["runs"][name], exact=exact, refit_first=first)
                wrong += bool(problems)
                what = "as recorded" if not problems else problems[0]
                print(f"{name}: {time.process_time() - start:.1f} s, {what}", flush=True)
            if names and not asked.check:
                kept = before["runs"] if asked.key or len(names) < len(runs) else {}
                machine = before["machine"] if kept else signature()
                if machine != signature() and not asked.key:
                    fresh = {name: {**one, "machine": signature()} for name, one in fresh.items()}
                print(write(kind, {**kept, **fresh}, machine))
    return 1 if asked.check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
