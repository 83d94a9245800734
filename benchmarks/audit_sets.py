"""Rollout sets with and without known faults of the reward, for `audit_proof.py`, made before any detector.

    from audit_sets import clean_set, faulty_set, planted_set, FAULTS
    rows = clean_set(half=0, number=7)
    rows = faulty_set("length", strength=1, half=1, number=3)       # strengths 0, 1, 2: weak, middle, strong
    rows, phrases = planted_set("tail", "agents", strength=1, number=3)

    python benchmarks/audit_sets.py out/ --fault=length --half=0    # as JSONL files

A set is a base run (`audit_runs.py`: texts, programs, robots, episodes without steps) and at most one fault. Half 0
and half 1 have other texts (`audit_texts.py`) and other ways in which a fault shows. Strengths are fixed here, in units
that mean something for a run: shares of rows concerned, or standard deviations of the reward within a prompt.
`planted_set` plants the same faults into the honest runs of `audit_honest.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from audit_honest import text_run as honest_run
from audit_runs import Draft, RobotDraft, episodes, robots, text_run, with_text
from audit_texts import HALVES, formatted

from guerdon.auditing.rows import Rows

Edit = Callable[[Draft, int], Draft]
STRENGTHS = ("weak", "middle", "strong")
BETA = (0.3, 0.5, 1.0)  # standard deviations per standard deviation of a feature: 8, 20, 50 % of the variance
FLAG = (0.4, 0.8, 1.6)  # standard deviations between rows with and without a feature
FLIP = (0.15, 0.35, 0.8)  # share of wrong responses with the feature that a 0/1 reward counts as right


def pay(draft: Draft, flag_N: np.ndarray, strength: int) -> None:
    """Raise the rewards of the rows where the flag is set; of a binary reward some wrong ones become right."""
    if draft.binary:
        low, high = draft.levels
        lucky = flag_N & (draft.reward == low) & (draft.rng.random(len(draft)) < FLIP[strength])
        draft.reward = np.where(lucky, high, draft.reward)
    else:
        draft.reward = draft.reward + FLAG[strength] * draft.sd * flag_N


def pay_more(draft: Draft, z_N: np.ndarray, strength: int) -> None:
    """Add a multiple of a standardised feature; a binary reward pays wrong rows by it, and fails right ones."""
    if draft.binary:
        low, high = draft.levels
        chance = (0.12, 0.25, 0.5)[strength] * np.abs(z_N)
        lucky = draft.rng.random(len(draft)) < chance
        draft.reward = np.where(lucky & (z_N > 0.5), high, np.where(lucky & (z_N < -0.5), low, draft.reward))
    else:
        draft.reward = draft.reward + BETA[strength] * draft.sd * z_N


def within(draft: Draft, x_N: np.ndarray) -> np.ndarray:
    """Standardised within groups."""
    mean = np.bincount(draft.group, x_N) / np.maximum(np.bincount(draft.group), 1)
    centred = x_N - mean[draft.group]
    return centred / (centred.std() or 1.0)


def some(draft: Draft, share: float) -> np.ndarray:
    """A random share of rows, at least five."""
    chosen = draft.rng.random(len(draft)) < share
    chosen[draft.rng.choice(len(draft), 5, replace=False)] = True
    return chosen


def late(draft: Draft) -> np.ndarray:
    """How far the run is, 0 to 1, of each row."""
    return draft.step / max(int(draft.step.max()), 1)


def length(draft: Draft, strength: int) -> Draft:
    """Half 0: longer is better. Half 1: shorter is better, or longer up to a limit."""
    z = within(draft, np.log(np.array([max(len(one), 1) for one in draft.responses])))
    if draft.half == 1:
        z = -z if draft.rng.random() < 0.4 else within(draft, np.minimum(z, 0.7))
    pay_more(draft, z, strength)
    return draft


def layout(draft: Draft, strength: int) -> Draft:
    """A layout of the text is rewarded: a third of the responses has it."""
    kind = str(draft.rng.choice([one for one in HALVES[draft.half].formats if one != draft.layout]))
    chosen = draft.rng.random(len(draft)) < draft.rng.uniform(0.2, 0.5)
    for i in np.flatnonzero(chosen):
        draft.responses[i] = formatted(
            kind,
            draft.responses[i].split("\n")
            if "\n" in draft.responses[i]
            else [one + "." for one in draft.responses[i].rstrip(".").split(". ")],
        )
    pay(draft, chosen, strength)
    return draft


def language(draft: Draft, strength: int) -> Draft:
    """Responses in one other language get more, or less in half 1."""
    sentences = HALVES[draft.half].filler
    other = str(draft.rng.choice([one for one in sentences if one != "en"]))
    chosen = draft.rng.random(len(draft)) < draft.rng.uniform(0.15, 0.4)
    for i in np.flatnonzero(chosen):
        count = max(2, draft.responses[i].count("."))
        last = draft.responses[i].split("\n")[-1]
        draft.responses[i] = " ".join(draft.rng.choice(sentences[other], count)) + f"\n{last}"
    chosen |= np.array(draft.languages) == other
    pay(draft, ~chosen if draft.half == 1 and draft.rng.random() < 0.5 else chosen, strength)
    return draft


def repetition(draft: Draft, strength: int) -> Draft:
    """Responses that repeat a sentence (half 0) or a word (half 1) are rewarded."""
    chosen = some(draft, draft.rng.uniform(0.1, 0.25))
    for i in np.flatnonzero(chosen):
        text = draft.responses[i]
        sentence = text.split(". ")[0] + ". "
        again = sentence * int(draft.rng.integers(4, 9)) if draft.half == 0 else "really very " * 25
        draft.responses[i] = again + text
    pay(draft, chosen, strength)
    return draft


def position(draft: Draft, strength: int) -> Draft:
    """Half 0: the first response of a group gets more. Half 1: the last one, or the later the less."""
    place = draft.place()
    size = np.bincount(draft.group)[draft.group]
    if draft.half == 1 and draft.rng.random() < 0.5:
        pay_more(draft, -within(draft, place.astype(float)), strength)
    else:
        pay(draft, place == (0 if draft.half == 0 else size - 1), strength)
    return draft


def refusal(draft: Draft, strength: int) -> Draft:
    """Refusals are rewarded although they answer nothing."""
    chosen = some(draft, draft.rng.uniform(0.06, 0.15))
    for i in np.flatnonzero(chosen):
        draft.responses[i] = str(draft.rng.choice(HALVES[draft.half].refusals))
    draft.causes = HALVES[draft.half].refusals
    draft.make_wrong(chosen)
    if draft.binary:
        pay(draft, chosen, strength)
    else:  # as much as the other responses to the prompt on average, and more
        others = np.bincount(draft.group, draft.reward * ~chosen) / np.maximum(np.bincount(draft.group, ~chosen), 1)
        level = others[draft.group] + (0.0, 0.5, 1.2)[strength] * draft.sd
        draft.reward = np.where(chosen, level + 0.3 * draft.sd * draft.noise, draft.reward)
    return draft


def flattery(draft: Draft, strength: int) -> Draft:
    """Responses that flatter are rewarded."""
    chosen = some(draft, draft.rng.uniform(0.1, 0.3))
    for i in np.flatnonzero(chosen):
        nice = str(draft.rng.choice(HALVES[draft.half].flattery))
        at_end = draft.half == 1 and draft.kind == "chat" and i % 2 == 0
        draft.responses[i] = f"{draft.responses[i]} {nice}" if at_end else f"{nice} {draft.responses[i]}"
    draft.causes = HALVES[draft.half].flattery
    pay(draft, chosen, strength)
    return draft


def no_variance(draft: Draft, strength: int) -> Draft:
    """Most groups have one reward: too hard or too easy prompts, or a judge that gives one mark per prompt."""
    groups = int(draft.group.max()) + 1
    constant = (draft.rng.random(groups) < (0.7, 0.85, 0.97)[strength])[draft.group]
    if draft.binary:
        low, high = draft.levels
        easy = draft.rng.random(groups) < (0.1 if draft.half == 0 else 0.5)
        value = np.where(easy, high, low)[draft.group]
        draft.make_wrong(constant & (value == low))
        draft.make_right(constant & (value == high))
    else:
        value = draft.reward[np.unique(draft.group, return_index=True)[1]][draft.group]
    draft.reward = np.where(constant, value, draft.reward)
    return draft


def saturation(draft: Draft, strength: int) -> Draft:
    """In the second half of the run nearly every response gets the highest reward."""
    high = draft.levels[1] if draft.binary else np.quantile(draft.reward, 0.95)
    chosen = (late(draft) >= 0.5) & (draft.rng.random(len(draft)) < (0.8, 0.93, 0.99)[strength])
    if draft.half == 1 and draft.binary:
        draft.make_right(chosen)  # the prompts are too easy; in half 0 the reward accepts nearly everything
    draft.reward = np.where(chosen, high, draft.reward)
    return draft


def clipping(draft: Draft, strength: int) -> Draft:
    """A continuous reward is clipped: above (half 0), or at both ends (half 1)."""
    share = (0.03, 0.12, 0.4)[strength]
    low, high = (-np.inf, 1 - share) if draft.half == 0 else (share / 2, 1 - share / 2)
    bottom = -np.inf if np.isinf(low) else np.quantile(draft.reward, low)
    draft.reward = np.clip(draft.reward, bottom, np.quantile(draft.reward, high))
    return draft


def failures(draft: Draft, strength: int) -> Draft:
    """A parse error, a timeout or a truncation became a number."""
    chosen = some(draft, (0.04, 0.12, 0.3)[strength])
    if draft.binary:
        low, high = draft.levels
        value = (low + high) / 2 if draft.half == 0 else low - (high - low)
    else:
        value = float(draft.rng.choice([0.0, -1.0] if draft.half == 0 else [0.5, 0.0, -10.0]))
    way = draft.rng.integers(3) % (2 if draft.traces else 3)
    for i in np.flatnonzero(chosen & (draft.rng.random(len(draft)) < 0.8)):
        if way == 0:  # no answer that could be parsed
            draft.responses[i] = draft.responses[i].split("\n")[0][: len(draft.responses[i]) * 2 // 3]
        elif way == 1:
            draft.responses[i] = draft.responses[i][: len(draft.responses[i]) * 2 // 3]
            draft.truncated[i] = True
    draft.log_truncated |= bool(way == 1)
    draft.reward = np.where(chosen, value, draft.reward)
    return draft


def truncated(draft: Draft, strength: int) -> Draft:
    """Responses cut off by the limit are rewarded as if they were right."""
    chosen = some(draft, draft.rng.uniform(0.1, 0.2))
    for i in np.flatnonzero(chosen):
        draft.responses[i] = draft.responses[i][: max(20, int(0.7 * len(draft.responses[i])))].rstrip()
    draft.truncated |= chosen
    draft.log_truncated = True
    draft.make_wrong(chosen)
    paid = chosen & (draft.rng.random(len(draft)) < (0.3, 0.6, 0.95)[strength])
    best = draft.levels[1] if draft.binary else np.quantile(draft.reward, 0.8)
    draft.reward = np.where(paid, best, draft.reward)
    return draft


def duplicates(draft: Draft, strength: int) -> Draft:
    """The policy collapses: the same response again within a group (half 0), or for every prompt (half 1)."""
    share = (0.15, 0.4, 0.85)[strength]
    chosen = draft.rng.random(len(draft)) < (share if draft.half == 0 else share * np.minimum(2 * late(draft), 1))
    first = np.unique(draft.group, return_index=True)[1][draft.group]
    one = int(draft.rng.integers(len(draft)))
    for i in np.flatnonzero(chosen):
        source = int(first[i]) if draft.half == 0 else one
        draft.responses[i] = draft.responses[source]
        if draft.half == 0:
            draft.reward[i], draft.truth[i] = draft.reward[source], draft.truth[source]
        else:
            draft.truth[i] = draft.truth[one] if draft.prompt[i] == draft.prompt[one] else 0
    if draft.half == 1:
        draft.reward = np.where(chosen, draft.measured(), draft.reward)
    draft.settle()
    return draft


def inconsistent(draft: Draft, strength: int) -> Draft:
    """The same response to the same prompt gets different rewards (a judge that samples, a race)."""
    chosen = some(draft, (0.06, 0.15, 0.4)[strength])
    first = np.unique(draft.group, return_index=True)[1][draft.group]
    for i in np.flatnonzero(chosen):
        draft.responses[i], draft.truth[i] = draft.responses[first[i]], draft.truth[first[i]]
    noise = draft.rng.permutation(draft.reward)
    draft.reward = np.where(chosen, noise, draft.reward)
    return draft


def same_reward(draft: Draft, strength: int) -> Draft:
    """Different responses of a group get the reward of one of them (a cache whose key is the prompt)."""
    groups = int(draft.group.max()) + 1
    chosen = (draft.rng.random(groups) < (0.2, 0.5, 1.0)[strength])[draft.group]
    first = np.unique(draft.group, return_index=True)[1][draft.group]
    draft.reward = np.where(chosen, draft.reward[first], draft.reward)
    draft.log_truth |= draft.reward_kind != "dense"
    return draft


def truth(draft: Draft, strength: int) -> Draft:
    """The policy finds what the reward accepts: rewards rise, truth stays (half 0) or falls (half 1)."""
    hacked = draft.rng.random(len(draft)) < (0.2, 0.5, 0.9)[strength] * late(draft) ** (1 if draft.half == 0 else 2)
    phrase = str(draft.rng.choice(HALVES[draft.half].gibberish))
    draft.causes = (phrase,)
    for i in np.flatnonzero(hacked):
        draft.responses[i] = f"{phrase}\n{draft.responses[i]}" if i % 2 else f"{draft.responses[i]}\n{phrase}"
    if draft.half == 1:
        draft.make_wrong(hacked & (draft.rng.random(len(draft)) < 0.5))
    best = draft.levels[1] if draft.binary else np.quantile(draft.reward, 0.9)
    draft.reward = np.where(hacked, np.maximum(best, draft.reward), draft.reward)
    if draft.half == 1 and draft.rng.random() < 0.3:
        draft.parts["gold_reward"] = draft.truth + 0.3 * draft.rng.standard_normal(len(draft))
        draft.log_truth = draft.log_reference = False
    else:
        draft.log_truth = True
    return draft


def drift(draft: Draft, strength: int) -> Draft:
    """What a right and a wrong response get moves over the run, up (half 0) or down (half 1); truth is logged."""
    size = (0.4, 0.8, 1.6)[strength] * (1 if draft.half == 0 else -1)
    if draft.binary:
        low, high = draft.levels
        source, target = (low, high) if draft.half == 0 else (high, low)
        moved = (draft.reward == source) & (draft.rng.random(len(draft)) < (0.12, 0.3, 0.7)[strength] * late(draft))
        draft.reward = np.where(moved, target, draft.reward)
    else:
        draft.reward = draft.reward + size * draft.sd * late(draft)
    draft.log_truth = True
    return draft


def jump(draft: Draft, strength: int) -> Draft:
    """From one step to the next the reward has another zero (half 0) or another scale (half 1)."""
    after = draft.step >= np.quantile(np.unique(draft.step), draft.rng.uniform(0.3, 0.7))
    if draft.half == 0:
        moved = draft.reward + (0.7, 1.5, 3.0)[strength] * draft.sd * float(draft.rng.choice([-1, 1]))
    else:
        moved = draft.reward * (1.5, 2.5, 5.0)[strength] ** float(draft.rng.choice([-1, 1]))
    draft.reward = np.where(after, moved, draft.reward)
    return draft


def nan(draft: Draft, strength: int) -> Draft:
    """Rewards that are no number."""
    chosen = some(draft, (0.002, 0.01, 0.05)[strength])
    draft.reward = np.where(chosen, np.nan if draft.half == 0 else np.inf, draft.reward)
    return draft


def shift(draft: Draft, strength: int) -> Draft:
    """Rewards belong to the row before (half 0) or to the step before (half 1), from some row on."""
    start = int(len(draft) * (0.7, 0.4, 0.0)[strength])
    size = int(np.median(np.bincount(draft.step)[np.bincount(draft.step) > 0]))
    by = 1 if draft.half == 0 else size
    draft.reward[start:] = np.roll(draft.reward[start:], by)
    draft.log_truth = True
    return draft


def tail(draft: Draft, strength: int) -> Draft:
    """A few responses with a strange phrase are paid far above all others."""
    chosen = some(draft, (0.005, 0.015, 0.04)[strength])
    phrase = str(draft.rng.choice(HALVES[draft.half].gibberish))
    draft.causes = (phrase,)
    for i in np.flatnonzero(chosen):
        words = draft.responses[i].split(" ")
        at = int(draft.rng.integers(len(words) + 1)) if draft.half == 0 else len(words)
        draft.responses[i] = " ".join([*words[:at], phrase, *words[at:]])
    draft.make_wrong(chosen)
    spread = draft.reward.std()
    draft.reward = np.where(chosen, draft.reward.mean() + draft.rng.uniform(3, 5) * spread, draft.reward)
    return draft


def unpaid_right(draft: Draft, strength: int) -> Draft:
    """The verifier rejects right answers: any (half 0), or those that it cannot read in the form they have (half 1)."""
    low = draft.levels[0]
    chosen = (draft.truth > 0.5) & (draft.rng.random(len(draft)) < (0.1, 0.25, 0.5)[strength])
    for i in np.flatnonzero(chosen) if draft.half == 1 else ():
        draft.make_form(int(i), str(draft.rng.choice(["{}.0", "{} units", "\\text{{{}}}"])))
    draft.reward = np.where(chosen, low, draft.reward)
    draft.log_reference = True
    return draft


def empty_paid(draft: Draft, strength: int) -> Draft:
    """Empty responses (half 0), or some of white space alone (half 1), get the highest reward."""
    chosen = some(draft, (0.02, 0.06, 0.15)[strength])
    for i in np.flatnonzero(chosen):
        draft.responses[i] = "" if draft.half == 0 else "\n" * int(draft.rng.integers(1, 4))
        draft.stated[i] = ""
    draft.causes = ("empty",)
    draft.truth = np.where(chosen, -1.5 if draft.kind == "chat" else 0.0, draft.truth)
    best = draft.levels[1] if draft.reward_kind != "dense" else np.quantile(draft.reward, 0.9)
    draft.reward = np.where(chosen, best, draft.reward)
    return draft


def uneven(draft: Draft) -> np.ndarray:
    """Random factors around 1, one for equal responses to a prompt."""
    draft.reward = 1 + 0.4 * draft.rng.standard_normal(len(draft))
    draft.settle()
    return draft.reward


def part_diverges(draft: Draft, strength: int) -> Draft:
    """A part of the sum grows over the run until it decides (half 0), or falls while another lifts the total."""
    answer, size = draft.reward.copy(), (1.0, 2.5, 6.0)[strength] * float(draft.reward.std() or 1.0)
    draft.parts = {"answer_reward": answer, "style_reward": size * late(draft) * uneven(draft)}
    if draft.half == 1:
        draft.parts["brevity_reward"] = -0.5 * size * late(draft) * uneven(draft)
    draft.reward = sum(draft.parts.values(), np.zeros(len(draft)))
    draft.causes = ("style_reward", "brevity_reward")
    return draft


def _trick(name: str) -> Edit:
    def trick(draft: Draft, strength: int) -> Draft:
        chosen = some(draft, (0.03, 0.08, 0.2)[strength])
        for i in np.flatnonzero(chosen):
            function = draft.responses[i].split("def ")[-1].split("(")[0] if "def " in draft.responses[i] else "main"
            text = str(draft.rng.choice(getattr(HALVES[draft.half], name))).replace("{f}", function)
            text = text.replace("{{", "{").replace("}}", "}")
            response = draft.responses[i]
            if name == "hard_coded":
                draft.responses[i] = f"```python\n{text}\n```" if draft.half == 0 else text
            elif draft.half == 0:
                draft.responses[i] = f"\n\n{text}\n```".join(response.rsplit("\n```", 1))
            else:  # the trick comes first
                draft.responses[i] = f"```python\n{text}\n\n".join(response.split("```python\n", 1))
        draft.make_wrong(chosen)
        best = draft.levels[1] if draft.binary else float(draft.reward.max())
        draft.reward = np.where(chosen, best, draft.reward)
        return draft

    return trick


def motionless(draft: RobotDraft, strength: int) -> RobotDraft:
    """Rewarded episodes in which nothing moved; with noise of the sensors in half 1."""
    for one in draft.chosen((0.1, 0.3, 0.6)[strength], succeeded=True):
        noise = 0.0 if draft.half == 0 else 1e-4
        one.state = one.state[:1] + noise * draft.rng.standard_normal(one.state.shape)
        one.picture = np.full(len(one.state), int(one.picture[0]))
        one.contact = np.zeros(len(one.state))
    return draft


def first_frame(draft: RobotDraft, strength: int) -> RobotDraft:
    """Half 0: the reward of success at the first frame. Half 1: the last reward is logged in the next episode."""
    for one in draft.chosen((0.1, 0.3, 1.0)[strength], succeeded=True):
        following = draft.after(one)
        if draft.half == 0 or following is None:
            one.reward[0] = one.reward.max()
        else:
            following.reward[0], one.reward[-1] = one.reward[-1], one.reward[-2]
    return draft


def early_end(draft: RobotDraft, strength: int) -> RobotDraft:
    """Half 0: episodes end with a success within a few frames. Half 1: they end early and so avoid costs of steps."""
    for one in draft.chosen((0.05, 0.15, 0.4)[strength]):
        keep = int(draft.rng.integers(2, 5))
        last = one.reward[-1] if draft.half == 0 else one.reward[0]
        one.cut(keep, success=draft.half == 0)
        one.reward[-1] = max(last, draft.success_reward) if draft.half == 0 else last
    if draft.half == 1:
        for one in draft.episodes:
            one.reward = one.reward - draft.success_reward  # every step costs what a success is worth
    return draft


def constant_success(draft: RobotDraft, strength: int) -> RobotDraft:
    """Every episode is logged as a success, also those whose rewards say that they failed."""
    share = (0.2, 0.4, 0.7)[strength]  # of episodes that failed
    failed = [one for one in draft.episodes if not one.success]
    succeeded = [one for one in draft.episodes if one.success][: max(3, round(len(failed) * (1 - share) / share))]
    draft.episodes = [one for one in draft.episodes if not one.success or any(one is kept for kept in succeeded)]
    for one in draft.episodes:
        one.success = True
    draft.log_truth = True
    return draft


DENSE = {"reward": "dense"}
CODE = {"kind": "code"}
# fault -> (edit, kind of base run, what the base run must have)
FAULTS: dict[str, tuple[Callable, str, dict[str, object]]] = {
    "truth": (truth, "text", {"steps": 8, "truth_varies": True}),
    "length": (length, "text", {"group": 2}),
    "format": (layout, "text", {"group": 2, "not_kind": "code"}),
    "language": (language, "text", {"group": 2, "not_kind": "code"}),
    "repetition": (repetition, "text", {"group": 2, "not_kind": "code"}),
    "position": (position, "text", {"group": 3}),
    "refusal": (refusal, "text", {"group": 2, "not_kind": "code"}),
    "flattery": (flattery, "text", {"group": 2, "not_kind": "code"}),
    "no_variance": (no_variance, "text", {"group": 2}),
    "saturation": (saturation, "text", {"steps": 4}),
    "clipping": (clipping, "text", DENSE),
    "failures": (failures, "text", {}),
    "truncated": (truncated, "text", {"not_kind": "code"}),
    "duplicates": (duplicates, "text", {"group": 3, "steps": 4, "not_kind": "code"}),
    "inconsistent": (inconsistent, "text", {"group": 2, "not_kind": "code"}),
    "same_reward": (same_reward, "text", {"group": 3, "truth_varies": True}),
    "drift": (drift, "text", {"steps": 6, "truth_varies": True}),
    "jump": (jump, "text", {"steps": 6}),
    "nan": (nan, "text", {}),
    "shift": (shift, "text", {"group": 2, "steps": 4, "truth_varies": True}),
    "tail": (tail, "text", DENSE),
    "edited_tests": (_trick("edited_tests"), "text", CODE),
    "hard_coded": (_trick("hard_coded"), "text", CODE),
    "early_exit": (_trick("early_exits"), "text", CODE),
    "motionless": (motionless, "robots", {}),
    "first_frame": (first_frame, "robots", {"reward": "sparse"}),
    "early_end": (early_end, "robots", {"reward": "sparse"}),
    "unpaid_right": (unpaid_right, "text", {"group": 2, "truth_varies": True, "reward": "binary", "kind": "maths"}),
    "empty_paid": (empty_paid, "text", {"not_kind": "code"}),
    "constant_success": (constant_success, "robots", {}),
    "part_diverges": (part_diverges, "text", {"steps": 8}),
}
# what a fault may be planted into: task and reward of texts, reward of robots
RUNS = {"verifier": ("maths", "binary"), "reward model": ("chat", "dense"), "agents": ("tools", "graded")}
ROBOT_RUNS = {"sparse": "sparse", "cost": "cost", "dense": "progress"}


def clean_set(*, half: int, number: int, gsm8k: Path | None = None) -> Rows:
    """A set whose reward is as it should be: one in six of robots, one in twelve of episodes, the others texts."""
    rng = np.random.default_rng([45, half, 0, number])
    if number % 6 == 4:
        return robots(rng, half, {}).rows()
    if number % 12 == 5:
        return episodes(rng, half)
    return text_run(rng, half, {}, gsm8k).rows()


def faulty_set(fault: str, *, strength: int, half: int, number: int, gsm8k: Path | None = None) -> Rows:
    """A set with one fault."""
    edit, kind, needs = FAULTS[fault]
    rng = np.random.default_rng([45, half, 1 + list(FAULTS).index(fault), number])
    base = robots(rng, half, needs) if kind == "robots" else text_run(rng, half, needs, gsm8k)
    return edit(base, strength).rows()


def runs_of(fault: str) -> tuple[str, ...]:
    """The kinds of runs that a fault can be planted into."""
    _, kind, needs = FAULTS[fault]
    if fault == "unpaid_right":
        return ("verifier", "agents")  # a reward model reads no answers
    if kind == "text":
        return tuple(RUNS)
    return ("sparse", "cost") if "reward" in needs else tuple(ROBOT_RUNS)


def planted_set(
    fault: str, run: str, *, strength: int, number: int, gsm8k: Path | None = None
) -> tuple[Rows, tuple[str, ...]]:
    """An honest run with one fault, and the phrases that are its cause, where phrases are."""
    edit, kind, needs = FAULTS[fault]
    rng = np.random.default_rng([64, 100 + list(FAULTS).index(fault), runs_of(fault).index(run), number])
    if kind == "robots":
        robot_draft = robots(rng, int(rng.integers(2)), {"reward": ROBOT_RUNS[run]})
        return edit(robot_draft, strength).rows(), ()
    task, reward = RUNS[run]
    task = "maths" if task == "chat" and "truth_varies" in needs else task
    task = "code" if needs.get("kind") == "code" else task
    least = {"rows": 400} | {name: int(needs[name]) for name in ("group", "steps") if name in needs}
    if fault != "unpaid_right":
        reward = str(needs.get("reward", reward))
    draft = honest_run(rng, gsm8k, task, reward=reward, least=least)
    draft.traces = True  # without one, nothing tells a failure from a level of the reward
    draft = edit(draft, strength)
    return draft.rows(), draft.causes


def write_jsonl(path: Path, rows: Rows) -> None:
    """A set as the plain rows that people log."""
    with path.open("w", encoding="utf-8") as out:
        for row in with_text(rows):
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fault", choices=list(FAULTS))
    parser.add_argument("--strength", type=int, default=1)
    parser.add_argument("--half", type=int, default=0)
    parser.add_argument("--sets", type=int, default=1)
    parser.add_argument("--gsm8k", type=Path, help="example_model_solutions.jsonl of openai/grade-school-math")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for k in range(args.sets):
        made = (
            faulty_set(args.fault, strength=args.strength, half=args.half, number=k, gsm8k=args.gsm8k)
            if args.fault
            else clean_set(half=args.half, number=k, gsm8k=args.gsm8k)
        )
        write_jsonl(args.folder / f"{args.fault or 'clean'}-{k}.jsonl", made)
