"""The offline part of studies/prime.yaml: an implicit process reward model trained on the outcomes of many students.

Students are the start of the study's runs, and supervised policies of the same task with false beliefs, seeds and
lengths of training of their own. Each answers training prompts, the verifier says right or wrong, and nothing else is
known of a response. An implicit reward model (2412.01981) starts from the start of the runs, which is also its
reference, and learns from these outcomes: beta x the sum of its log-ratios to the reference is the logit of a right
answer. With `--hidden` the reference is a language model of that width, first trained to write what students write.
The result is what `reward_model.prime_model.path` and `ref_path` name, for all seeds of the task.

    python studies/prime_offline.py studies/prime.yaml --task chain

writes <sft.save_dir>/offline/model and cost.json beside it: responses, seconds of every part, and how well the model
separates sound steps from first errors on fresh responses of the study's own start (the truth about steps is used for
this number alone).
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

from guerdon.collect.text import TextCollector, TextRollout, join
from guerdon.comparison.study import plan_study
from guerdon.files import atomic
from guerdon.policies.language.text_files import load_policy
from guerdon.rewards.prime import PrimeReward
from guerdon.rewards.source import SourceTerms
from guerdon.settings.prime import PrimeSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import SFTSettings
from guerdon.train.sft import train_sft, train_sft_study


def main() -> None:
    """Students, their responses, the reference, the model."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("study", type=Path)
    ask.add_argument("overrides", nargs="*", help="dotted, as of guerdon compare")
    ask.add_argument("--task", required=True, help="one of compare.tasks")
    ask.add_argument("--students", type=int, nargs="*", default=[1200, 2000, 2800],
                     help="gradient steps of each student but the study's own start")  # fmt: skip
    ask.add_argument("--rollouts", type=int, default=8192, help="responses of all students together")
    ask.add_argument(
        "--hidden",
        type=int,
        default=0,
        help="width of a reference of its own (the policy: 128); 0: the study's start",
    )
    ask.add_argument("--reference-steps", type=int, default=800, help="gradient steps of the reference")
    ask.add_argument("--epochs", type=int, default=1)
    ask.add_argument("--batch", type=int, default=32, help="responses per gradient step")
    ask.add_argument("--beta", type=float, default=0.5)
    ask.add_argument("--lr", type=float, default=1e-3)
    ask.add_argument("--seed", type=int, default=1000, help="of the first student")
    given = ask.parse_intermixed_args()
    torch.set_num_threads(1)
    seconds: dict[str, float] = {}
    plan = plan_study(given.study, given.overrides)
    study = next(config for name, config in plan.configs.items() if name.startswith(f"{given.task}."))
    if not study.text or study.sft is None or study.data is None or study.sft.mistakes is None:
        raise SystemExit(f"{given.study}: a language study with data, sft and sft.mistakes is needed")
    folder, started = Path(study.sft.save_dir, "offline"), time.perf_counter()
    own, _ = train_sft_study(study, resume=True)
    students = [own, *(student(study, folder, given.seed + i, steps) for i, steps in enumerate(given.students))]
    seconds["students"], started = time.perf_counter() - started, time.perf_counter()
    each = given.rollouts // len(students) // study.data.n_samples
    answered = [answers(study, path, each, given.seed + 100 + i) for i, path in enumerate(students)]
    rollout = join([part for part, _ in answered])
    shares = [share for _, share in answered]
    seconds["responses"], started = time.perf_counter() - started, time.perf_counter()
    say(f"{len(rollout.inputs)} responses, right: {', '.join(f'{share:.2f}' for share in shares)}")
    reference = write_reference(study, folder, rollout, given) if given.hidden else own
    seconds["reference"], started = time.perf_counter() - started, time.perf_counter()
    model = fit(study, rollout, reference, given)
    model.save(folder / "model")
    seconds["model"] = time.perf_counter() - started
    found = judged(study, model, own, given)
    cost = {
        "responses": len(rollout.inputs),
        "students": given.students,
        "right": shares,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        **found,
        "arguments": {name: str(value) for name, value in vars(given).items()},
    }
    atomic.write_json(folder / "cost.json", cost)
    say(", ".join(f"{name}: {value}" for name, value in cost.items() if name != "arguments"))


def student(study: Study, folder: Path, seed: int, steps: int) -> Path:
    """A supervised policy with beliefs of its own."""
    assert study.sft is not None
    assert study.sft.mistakes is not None
    beliefs = study.sft.mistakes.model_copy(update={"seed": seed})
    place = {"save_dir": str(folder / f"student{seed}"), "seed": seed, "max_steps": steps, "mistakes": beliefs}
    path, _ = train_sft_study(study.model_copy(update={"sft": study.sft.model_copy(update=place)}), resume=True)
    say(f"student {seed}, {steps} gradient steps: done")
    return path


def answers(study: Study, path: Path, prompts: int, seed: int) -> tuple[TextRollout, float]:
    """Verified responses of a student to training prompts, and the share of right ones."""
    assert study.data is not None
    policy = load_policy(TextPolicySettings(path=str(path), bf16=study.text_policy.bf16), seed=seed)
    data = study.data.model_copy(update={"train_batch_size": prompts})
    collector = TextCollector(data, study.generation, policy, seed=seed)
    rollout = collector.sampler.draw()
    collector.close()
    return rollout, float(rollout.outcomes_B.mean())


def write_reference(study: Study, folder: Path, rollout: TextRollout, given: argparse.Namespace) -> Path:
    """A wider language model that writes what students write, right or wrong."""
    assert study.sft is not None
    start = study.sft.policy or study.text_policy
    assert start.tiny is not None
    wide = start.tiny.model_copy(update={"hidden_size": given.hidden, "intermediate": 3 * given.hidden})
    settings = SFTSettings(
        save_dir=str(folder / "reference"), max_steps=given.reference_steps, batch_size=study.sft.batch_size,
        learning_rate=study.sft.learning_rate, val_split=0, seed=given.seed, resume=True,
    )  # fmt: skip
    pairs = [(p.messages, text) for p, text in zip(rollout.inputs.prompts, rollout.inputs.texts, strict=True)]
    path, _ = train_sft(pairs, settings, start.model_copy(update={"tiny": wide}))
    return path


def fit(study: Study, rollout: TextRollout, reference: Path, given: argparse.Namespace) -> PrimeReward:
    """The implicit model, from the reference, on outcomes alone."""
    assert study.data is not None
    section = PrimeSettings.model_validate(
        {
            "mini_batch_size": given.batch,
            "micro_batch_size": given.batch,
            "prime_model": {"beta_train": given.beta, "optim": {"lr": given.lr}},
        }
    )
    policy = load_policy(TextPolicySettings(path=str(reference), bf16=study.text_policy.bf16), seed=given.seed)
    policy.temperature = study.generation.temperature
    limit = study.data.max_response_length
    model = PrimeReward(SourceTerms("prime"), section, policy, seed=given.seed, length_limit=limit)
    batch, rng = model.labelled(rollout), np.random.default_rng([given.seed, 9])
    for epoch in range(given.epochs):
        _, metrics = model.fit(batch.take(rng.permutation(len(rollout.inputs))))
        say(f"epoch {epoch + 1}: loss {metrics['prm_loss']:.3f}")
    return model


def judged(study: Study, model: PrimeReward, start: Path, given: argparse.Namespace) -> dict[str, object]:
    """AUROC of steps on fresh responses of the study's own start."""
    fresh, share = answers(study, start, 512 // (study.data.n_samples if study.data else 4), given.seed - 1)
    rewards = model.measure(fresh, learn=False)
    return {"start_right": share, "step_auroc_model": rewards.metrics["step_auroc"]}


def say(line: str) -> None:
    """A line on the terminal."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
