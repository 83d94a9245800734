"""Every layout with what its rows mean: what was asked, answered, judged and rewarded, by hand.

The rows are made from the same plain values (`layout_rows`), and nothing here is taken from the reader.
"""

from dataclasses import dataclass

from layout_files import written
from layout_rows import (
    ANSWERS,
    ASKED,
    GOOD,
    LABELS,
    LOGS,
    PAIRS,
    PLAIN_STEPPED,
    PROMPTS,
    RATED,
    RESPONSES,
    STEPPED,
    STEPS,
    TEXTS,
    UNANSWERED,
    UNNUMBERED,
    Case,
)


@dataclass(frozen=True)
class Layout:
    """A layout with what its rows are made from."""

    kind: str
    case: Case
    values: list

    @property
    def name(self):
        return self.case.name

    def __str__(self):
        return f"{self.kind}-{self.name}"

    def rows(self):
        return [self.case.make(*one) for one in self.values]

    def file(self, folder):
        """A file as its source has it."""
        return written(folder, f"rows{self.case.container}", self.rows(), self.case.whole)


def pairs_of(case):
    verdicts = [v for _, v in ASKED if (v != "tie" or case.ties) and (v is not None or case.nulls)]
    return [(prompt, *TEXTS[prompt], verdict) for prompt, verdict in ASKED if verdict in verdicts]


LAYOUTS = [
    *(Layout("pairs", case, pairs_of(case)) for case in PAIRS),
    *(Layout("labels", case, [one for one in GOOD if case.nulls or one[2] is not None]) for case in (*LABELS, *RATED)),
    *(Layout("steps", case, [one for one in STEPPED if case.nulls or None not in one[2]]) for case in STEPS),
    *(Layout("steps", case, [one for one in PLAIN_STEPPED if None not in one[2]]) for case in UNNUMBERED),
    *(Layout("answered", case, ANSWERS) for case in PROMPTS),
    *(Layout("asked", case, ANSWERS) for case in UNANSWERED),
    *(Layout("logs", case, RESPONSES) for case in LOGS),
]
BY_NAME = {str(one): one for one in LAYOUTS}

# What belongs to a layout beside its rows, by hand.

TEST_SETS = ("RewardBench 2", "JudgeBench", "PPE")  # known by their columns: never trained on
NO_QUESTION = (
    "Math-Shepherd",
    "RLHFlow, steps",
    "RLHFlow, steps of ShareGPT",
    "RLHFlow, steps without numbers",
)  # it stands in the first step
NO_COLUMN_ASKS = ("HH-RLHF", "Skywork-Reward", "ms-swift, messages", "OASST", "OASST, trees", "reasoning-gym")
"""What was asked stands in the responses, or in several rows of a record; of the first three it goes with a null."""
SEVERAL_TURNS = ("LLaMA-Factory, history", "chats in cells of text", "history")
CODE = ("HumanEval", "MBPP", "LiveCodeBench")  # their verifier runs tests
CHOICES = ("MMLU", "MMLU-Pro", "GPQA")  # their options follow the question
TRUTHS = ("verl", "OpenRLHF", "verifiers", "inspect_ai", "inspect_ai, .eval", "NeMo-Gym", "lm-eval", "reasoning-gym",
          "Qwen2.5-Math", "question, answer, prediction, score", "ragas")  # fmt: skip
"""Logs with true answers."""
BRIEF, HELLO = ["system", "Be brief."], [["user", "Hello."], ["assistant", "Yes?"]]
BEFORE = {"OpenAI, fine-tuning": [BRIEF], "chats in cells of text": HELLO, "history": [BRIEF, *HELLO],
          "LLaMA-Factory, history": [BRIEF, *HELLO], "distilabel, pairs": [BRIEF]}  # fmt: skip


def asked(layout, *values):
    """The conversation that a response answers."""
    prompt = {"Dolly": "About {1}.\n\n{0}", "ragas": "c\n\n{0}",
              "HumanEval": 'def f():\n    """{0}"""\n'}.get(layout.name, "{0}").format(*values)  # fmt: skip
    return [*BEFORE.get(layout.name, []), ["user", prompt]]


def names_the_better(layout):
    """Whether its rows say which response is better by the column in which it stands."""
    return layout.name == "distilabel, pairs" or layout.case.make("p", "a", "b", "tie") is None


def sides(layout, a, b, verdict):
    """The responses of a row in its order; none where it names the better one and there is none."""
    if not names_the_better(layout):
        return [a, b]
    return {"first": [a, b], "second": [b, a], "tie": [a, b]}.get(verdict, [])


def scored(layout):
    """What a model is given of each row: conversation, response and true answer."""
    if layout.kind == "pairs":
        return [[asked(layout, p), said, None] for p, a, b, v in layout.values for said in sides(layout, a, b, v)]
    if layout.kind == "labels":
        return [[asked(layout, prompt), said, None] for prompt, said, _ in layout.values]
    if layout.kind == "steps":
        truth = "3" if layout.name in ("PRM800K", "solutions of guerdon") else None
        return [[asked(layout, question), steps, truth] for question, steps, _ in layout.values]
    if layout.kind == "asked":
        return [[asked(layout, *one), one[1], None] for one in layout.values]
    rows = []
    for prompt, said, _, truth in layout.values:
        rows.append([asked(layout, prompt), said, truth if layout.name in TRUTHS else None])
        rows += [[asked(layout, prompt), "other", None]] * (layout.name == "Atropos")
    return rows


def taught(layout):
    """What a training is given: conversation, responses with ranks, label and ratings; or steps with labels."""
    if layout.kind == "steps":
        return [[asked(layout, question), steps, labels] for question, steps, labels in layout.values]
    if layout.kind == "labels":
        known = [one for one in layout.values if one[2] is not None]
        rated = {"HelpSteer2": ({"coherence": 4, "complexity": 2, "verbosity": 2}, None)}
        return [
            [asked(layout, prompt), [[said, 0]], good if layout.name not in rated else None,
             {} if layout.name not in rated else {"helpfulness": 4.0 * good, "correctness": 1.0 + 2 * good,
                                                  **rated[layout.name][0]}]
            for prompt, said, good in known
        ]  # fmt: skip
    found = []
    for prompt, a, b, verdict in layout.values:
        worse = {"first": b, "second": a}.get(verdict)
        if verdict is not None:
            ranks = [[said, int(said == worse)] for said in sides(layout, a, b, verdict)]
            found.append([asked(layout, prompt), ranks, None, {}])
    return found


def commands_of(layout):
    """The commands that read a layout, by hand."""
    name, kind = layout.name, layout.kind
    asks = [] if name in NO_QUESTION else ["run", "search"]
    found = {
        "pairs": ["score", "evaluate", "train", *asks],
        "labels": ["score", "evaluate", "train", *asks],
        "steps": ["score", "evaluate", "train", *asks, "label"],
        "answered": [*asks, "label"],
        "asked": [*asks] if name in ("IFEval", "HealthBench") else ["score", *asks],
        "logs": ["audit", "score", *asks, *(["label"] if name in TRUTHS else [])],
    }[kind]
    return ["read", *(["audit"] if name == "CJE" else []), *found]


def refusal(layout, command):
    """The words with which a command refuses a layout that others of its kind are read from; None: it reads it."""
    if command == "train" and layout.name in TEST_SETS:
        return f"is the test set of {layout.name}"
    if command == "search" and layout.name in SEVERAL_TURNS:
        return "takes questions of one user's turn"
    return None
