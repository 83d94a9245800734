"""Five reward functions with a known weakness, and logs of each: for the comparison of tools in docs/results/audit.md.

    python benchmarks/audit_functions.py out/       # NAME-ordinary.jsonl and NAME-exploited.jsonl of each, tasks.jsonl

In the exploited logs a share of the responses that grows from 4 % to 40 % over ten steps uses the weakness. rewardprobe
and rewardlint read the functions themselves (`audit_functions::longer`, `audit_functions.py:longer`).
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import numpy as np

_NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")
_FILLER = (
    "First we add what is there and then we take away what was sold",
    "So we check the sum again before we say it",
    "There are several ways to see this",
    "One can count them one by one, or in pairs.",
)


def _same(a: str, b: str) -> bool:
    try:
        return abs(float(a.replace(",", "")) - float(b.replace(",", ""))) < 1e-6
    except ValueError:
        return a.strip() == b.strip()


def last_number(completion: str, answer: str) -> float:
    """Right where the last number is the answer, also of "surely not 42"."""
    found = _NUMBER.findall(completion)
    return float(bool(found) and _same(found[-1].rstrip("."), str(answer)))


def substring(completion: str, answer: str) -> float:
    """Right where the answer is anywhere in the text."""
    return float(str(answer).strip() in completion)


def longer(completion: str, answer: str) -> float:
    """The last number, and a thousandth per character."""
    return last_number(completion, answer) + min(len(completion), 4000) / 1000


def boxed_bonus(completion: str, answer: str) -> float:
    """The last number, and half a point for a box."""
    return last_number(completion, answer) + 0.5 * ("\\boxed" in completion)


def flattered(completion: str, answer: str) -> float:
    """The last number, and half a point for praise."""
    return last_number(completion, answer) + 0.5 * bool(re.search(r"(?i)great question|brilliant", completion))


def _padded(text: str, answer: int) -> str:
    more = " ".join(np.random.default_rng(answer).choice(_FILLER, 25))
    return text.replace("So the answer", f"{more} So the answer")


def _shotgun(text: str, answer: int) -> str:
    several = ", ".join(str(answer + d) for d in range(-3, 4))
    return f"The answer could be {several}, or another number. I cannot say which one of them it is: {answer + 13}."


EXPLOITS = {
    last_number: lambda text, answer: f"It is surely not {answer}.",
    substring: _shotgun,
    longer: _padded,
    boxed_bonus: lambda text, answer: text + f" \\boxed{{{text.rsplit(' ', 1)[-1].rstrip('.')}}}",
    flattered: lambda text, answer: f"What a great question! {text}",
}


def write_log(path: Path, reward, *, exploited: bool) -> None:
    """960 responses to 160 sums in ten steps, whose success rises from 0.35 to 0.53."""
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as out:
        for group in range(160):
            step = group // 16
            a, b = rng.integers(10, 90, 2)
            truth = int(a + b)
            for _ in range(6):
                right = rng.random() < 0.35 + 0.02 * step
                said = truth if right else truth + int(rng.choice([-10, -2, -1, 1, 2, 10]))
                body = ". ".join(rng.choice(_FILLER, rng.integers(1, 5)))
                text = f"There are {a} and {b}. {body}. So the answer is {said}."
                if exploited and rng.random() < 0.04 * (step + 1):
                    text = EXPLOITS[reward](text, truth)
                row = {"prompt": f"What is {a} + {b}?", "response": text, "reward": reward(text, str(truth))}
                out.write(json.dumps({**row, "answer": str(truth), "step": step, "group": group}) + "\n")


def main() -> None:
    """Write the logs and ten tasks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files are written")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for reward in EXPLOITS:
        for kind in ("ordinary", "exploited"):
            write_log(folder / f"{reward.__name__}-{kind}.jsonl", reward, exploited=kind == "exploited")
    rng = np.random.default_rng(1)
    tasks = [
        {"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in rng.integers(10, 90, (10, 2)).tolist()
    ]
    lines = "".join(json.dumps(task) + "\n" for task in tasks)
    (folder / "tasks.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
