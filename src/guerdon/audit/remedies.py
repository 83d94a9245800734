"""How severe each finding is, and which part of guerdon would fix it."""

from __future__ import annotations

from guerdon.audit.finding import Severity

_SCORE = "`guerdon score` measures each response again"
_ATTACK = "`guerdon evaluate --attack`"
_VERSIONS = "with `guerdon audit --second`"
_PROBES = "measure it on pairs that differ in this alone: the probes of `guerdon evaluate` (docs/evaluation.md)"
_SANDBOX = "guerdon runs tests out of the program's reach and counts only what they report (docs/language_models.md)"
_ERRORS = {
    "truth": "compare rewards by true success: `guerdon compare`; `guerdon search` shows what a model accepts",
    "drift": f"{_SCORE}: compare the reward of both ends of the run {_VERSIONS}",
    "shift": f"join rewards and responses by an id instead of their position; {_SCORE}",
    "agreement": "`guerdon evaluate` measures a reward on labelled responses and forecasts its effect (docs/gate.md)",
    "nan": "keep a failed measurement as a Failure, which is masked and counted (docs/failures.md)",
    "failures": f"a failed measurement is a Failure, not a number (docs/failures.md); {_SCORE} and keeps reasons",
    "same_reward": f"look for a cache whose key is the prompt; {_SCORE}",
    "inconsistent": f"average several marks of a judge that samples (docs/judges.md); {_SCORE}",
    "tail": "`guerdon search` finds more of this kind; test a model with attacks (docs/attacks.md)",
    "edited_tests": _SANDBOX,
    "early_exit": _SANDBOX,
    "hard_coded": "hold back tests that the prompt does not show (docs/language_models.md)",
    "motionless": f"{_ATTACK} finds such episodes; train the reward on them as failures (docs/attacks.md)",
    "first_frame": "reward t belongs to row t + 1, and reset rows are masked (docs/data.md): look for an off-by-one",
    "early_end": "reward success only where an episode ends by itself (docs/rewards.md), and check what ends it",
}
_WARNINGS = {
    "jump": f"{_SCORE}: compare the reward's versions on both sides {_VERSIONS}",
    "no_variance": "choose prompts by success rate (docs/curriculum.md) or reward steps (docs/process_reward.md)",
    "saturation": "harder prompts (docs/curriculum.md), or a graded reward (docs/rewards.md)",
    "clipping": "raise the limits, or divide by the running spread: `algorithm.normalize_rewards` (docs/rewards.md)",
    "truncated": "leave truncated responses out: `data.filter_truncated` (docs/language_models.md)",
    "length": "measure it: the probe `length` of `guerdon evaluate` (docs/evaluation.md)",
    "format": "measure it: the probe `formatting` of `guerdon evaluate` (docs/evaluation.md)",
    "language": "evaluate the reward for each language on labelled pairs (docs/preferences.md)",
    "repetition": "the attack `repeated_step` of `guerdon evaluate` shows whether a model accepts it (docs/attacks.md)",
    "refusal": "add refusals to what the reward is evaluated on (docs/attacks.md), or declare them wrong",
    "flattery": _PROBES,
    "position": "a judge should see responses in both orders (docs/judges.md)",
    "duplicates": "raise the temperature or the entropy bonus, or add a KL term (docs/language_models.md)",
}
REMEDIES: dict[str, tuple[Severity, str]] = {
    **{name: ("error", remedy) for name, remedy in _ERRORS.items()},
    **{name: ("warning", remedy) for name, remedy in _WARNINGS.items()},
}
