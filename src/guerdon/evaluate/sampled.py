"""Several solutions per question by the study's own policy: what best-of-n and voting choose from.

Unlike `guerdon label`, which wants solutions to learn from, nothing is left out here: repetitions are votes, and a
solution that the length limit cut is a sample without an answer. Generated tasks tell where each goes wrong first.
Texts are kept on disk by content, so a second evaluation writes none. This module does not know reward models.

    solutions = sampled_solutions(study, questions=128, n=16, folder=Path("runs/prm/samples"))
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError
from guerdon.labels.append_log import Cache
from guerdon.labels.completions import Ask, Completer, Sampling
from guerdon.labels.labeler import ExactLabeler, StepLabels, Written
from guerdon.labels.solving import checked_solution
from guerdon.labels.splitters import split
from guerdon.policies.text_files import load_policy
from guerdon.policies.tokens import prompt_ids
from guerdon.settings.label import Splitter
from guerdon.settings.study import Study
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.reasoning import family_of, is_generated
from guerdon.worlds.verifier import verifier_from


def sampled_solutions(
    study: Study, *, questions: int, n: int, folder: Path, temperature: float = 1.0, splitter: Splitter | None = None
) -> list[Solution]:
    """`n` solutions to each of the first validation questions, with checked answers.

    Args:
        study: a language study.
        questions: how many.
        n: solutions per question.
        folder: keeps the texts.
        temperature: of the samples.
        splitter: where steps end; None: as `guerdon label` does, at the task's own separator or at blank lines.

    Raises:
        ConfigError: the study has no prompts.
        DataError: a question does not fit the model.
    """
    if study.data is None:
        raise ConfigError("best_of_n without samples needs a data section: which questions the policy answers")
    _, validation = load_prompts(study.data)
    prompts = validation[:questions]
    policy = load_policy(study.text_policy.model_copy(update={"lora": None}), seed=study.runner.seed)
    with closing(Cache(folder / "completions.jsonl")) as cache:
        completer = Completer(policy, study.generation, cache, seed=study.runner.seed)
        asks = [Ask(prompt_ids(policy.tokenizer, prompt.messages)) for prompt in prompts]
        drawn = completer.complete(
            asks, n=n, limit=study.data.max_response_length, sampling=Sampling(temperature), purpose="choose from",
            narrate=True,
        )  # fmt: skip
    rows = [(prompt, k, one.text) for prompt, own in zip(prompts, drawn, strict=True) for k, one in enumerate(own)]
    with verifier_from(study.data) as verifier:
        judgements = verifier.check_batch([text for _, _, text in rows], [prompt for prompt, _, _ in rows])
    found, exact = [], ExactLabeler()
    for (prompt, k, text), judgement in zip(rows, judgements, strict=True):
        cut: Splitter = splitter or ("separator" if is_generated(prompt) else "blank_line")
        steps = split(text, cut, separator=family_of(prompt).separator if is_generated(prompt) else "")
        made_by = {"model": study.text_policy.path, "splitter": cut}
        solution = checked_solution(f"{prompt.id}-{k}", prompt, steps, judgement, study.data, made_by)
        labels = exact.label([Written(solution, prompt)])[0]
        meta = {**solution.meta, "subset": "samples"}
        known = labels.values if isinstance(labels, StepLabels) else ()
        found.append(replace(solution, labels=known, meta=meta))
    return found
