"""How severe each finding is, and which part of guerdon would fix it."""

from __future__ import annotations

from guerdon.audit.finding import Severity

_SCORE = "`guerdon score` measures each response again"
_PROBES = "measure it on pairs that differ in this alone: the probes of `guerdon evaluate` (docs/evaluation.md)"
_SANDBOX = "guerdon runs tests out of the program's reach and counts only what they report (docs/language_models.md)"
REMEDIES: dict[str, tuple[Severity, str]] = {
    "truth": (
        "error",
        "compare rewards by true success: `guerdon compare`; `guerdon search` shows what a model accepts",
    ),
    "drift": ("error", f"{_SCORE}: compare the reward of both ends of the run with `guerdon audit --second`"),
    "jump": ("warning", f"{_SCORE}: compare the reward's versions on both sides with `guerdon audit --second`"),
    "shift": ("error", f"join rewards and responses by an id instead of their position; {_SCORE}"),
    "agreement": (
        "error",
        "`guerdon evaluate` measures a reward on labelled responses and forecasts its effect (docs/gate.md)",
    ),
    "nan": ("error", "keep a failed measurement as a Failure, which is masked and counted (docs/failures.md)"),
    "failures": (
        "error",
        f"a failed measurement is a Failure, not a number (docs/failures.md); {_SCORE} and keeps reasons",
    ),
    "no_variance": (
        "warning",
        "choose prompts by success rate (docs/curriculum.md) or reward steps (docs/process_reward.md)",
    ),
    "same_reward": ("error", f"look for a cache whose key is the prompt; {_SCORE}"),
    "saturation": ("warning", "harder prompts (docs/curriculum.md), or a graded reward (docs/rewards.md)"),
    "clipping": (
        "warning",
        "raise the limits, or divide by the running spread: `algorithm.normalize_rewards` (docs/rewards.md)",
    ),
    "truncated": ("warning", "leave truncated responses out: `data.filter_truncated` (docs/language_models.md)"),
    "length": ("warning", "measure it: the probe `length` of `guerdon evaluate` (docs/evaluation.md)"),
    "format": ("warning", "measure it: the probe `formatting` of `guerdon evaluate` (docs/evaluation.md)"),
    "language": ("warning", "evaluate the reward for each language on labelled pairs (docs/preferences.md)"),
    "repetition": (
        "warning",
        "the attack `repeated_step` of `guerdon evaluate` shows whether a model accepts it (docs/attacks.md)",
    ),
    "refusal": ("warning", "add refusals to what the reward is evaluated on (docs/attacks.md), or declare them wrong"),
    "flattery": ("warning", _PROBES),
    "position": ("warning", "a judge should see responses in both orders (docs/judges.md)"),
    "duplicates": ("warning", "raise the temperature or the entropy bonus, or add a KL term (docs/language_models.md)"),
    "inconsistent": ("error", f"average several marks of a judge that samples (docs/judges.md); {_SCORE}"),
    "tail": ("error", "`guerdon search` finds more of this kind; test a model with attacks (docs/attacks.md)"),
    "edited_tests": ("error", _SANDBOX),
    "early_exit": ("error", _SANDBOX),
    "hard_coded": ("error", "hold back tests that the prompt does not show (docs/language_models.md)"),
    "motionless": (
        "error",
        "`guerdon evaluate --attack` finds such episodes; train the reward on them as failures (docs/attacks.md)",
    ),
    "first_frame": (
        "error",
        "reward t belongs to row t + 1, and reset rows are masked (docs/data.md): look for an off-by-one",
    ),
    "early_end": (
        "error",
        "reward success only where an episode ends by itself (docs/rewards.md), and check what ends it",
    ),
}
