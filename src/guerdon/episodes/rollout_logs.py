"""Logs of responses and rewards that trainers and evaluations write, recognised by content.

| layout | read in |
|---|---|
| TRL: `completions/completions_*.parquet` | trl 1.16 `GRPOTrainer.log` |
| verl: `<step>.jsonl` of `rollout_data_dir` and `validation_data_dir` | verl 0.9.1 `RayPPOTrainer._write_generations` |
| OpenRLHF: what its reward functions get, and tables of Weights & Biases | OpenRLHF 0.11 `reward_func`, `WandbLogger` |
| verifiers 0.4 and prime-rl: `traces.jsonl` | verifiers `Episode.to_record`, prime-rl `FileMonitor` |
| verifiers before 0.4: `results.jsonl` | verifiers `state_to_output` |
| inspect_ai: `.eval` and `.json` | inspect_ai 0.3.285 |
| NeMo-Gym: `rollouts.jsonl` | NeMo-Gym `BaseVerifyResponse` |

Any other file has its columns, under the names of `NAMES` or under those that are passed.

    for number, record in Part(Path("rollouts/10.jsonl")).rows():
        for row in layout_of(record).rows(record):          # columns: prompt, response, reward and others
            print(row["input"], row["output"], row["score"])
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from guerdon.reading.containers import has_rows
from guerdon.reading.roles import ROLES

NAMES: Mapping[str, tuple[str, ...]] = {  # what a column holds, and how it is usually called; the first that is there
    "prompt": (*ROLES["prompt"], "context", "history", "conversations", "conversation", "messages"),
    "response": ("response", "completion", "output", "generation", "generated_text", "responses", "answer", "text"),
    "reward": ("reward", "score", "total_reward", "reward_score", "rewards"),
    "truth": ("truth", "is_correct", "correct", "correctness", "acc", "accuracy", "success", "is_success", "passed"),
    "step": ("step", "global_step", "training_step", "train_step", "iteration"),
    "group": ("group", "group_id", "prompt_id", "uid", "example_id", "_ng_task_index", "question_id"),
    "length": ("length", "response_length", "completion_length", "completion_tokens", "output_tokens", "num_tokens"),
    "truncated": ("truncated", "is_truncated", "finish_reason", "stop_reason"),
    "failed": ("failed", "reward_failure", "failure", "_ng_failure_class", "error"),
    "advantage": ("advantage", "advantages"),
    "reference": ("reference", "ground_truth", "gts", "reference_answer", "expected_answer", "answer", "target",
                  "label", "tests"),
    "tokens": ("tokens",),
    "token_rewards": ("token_rewards", "token_level_scores", "token_level_rewards"),
}  # fmt: skip


PLAIN = "plain columns"  # the name of the layout that any other record has
RESCORED, FAILURE = "guerdon_reward", "guerdon_failure"  # columns that `guerdon score` adds to a log


PROMPTS = (*ROLES["prompt"], "problem", "context", "history", "conversations", "conversation", "messages")


def prompt_of(row: Mapping[str, Any]) -> Any:
    key = next((key for key in PROMPTS if row.get(key)), None)
    return None if key is None else row[key]


class LogLayout(NamedTuple):
    """How the records of a log are read.

    Attributes:
        name: of what wrote it.
        fits: whether a record is of this layout.
        rows: the responses of a record, as columns.
        names: columns by what they hold, where `NAMES` would find others.
        parts: further columns of numbers that are rewards: those named like one, or all; `sum`: all, and the reward is
            their sum. Of rows with a map `parts` it is these.
        rescored: a record with new rewards of its responses; None: they are a column of the record.
    """

    name: str
    fits: Callable[[Mapping[str, Any]], bool]
    rows: Callable[[Mapping[str, Any]], list[Mapping[str, Any]]]
    names: Mapping[str, str] = {}
    parts: Literal["named", "all", "sum"] = "named"
    rescored: Callable[[Mapping[str, Any], Sequence[float | None]], Mapping[str, Any]] | None = None


def log_files(path: Path, *more: str) -> list[Path]:
    """The files that may be a log, numbers in names in their order; those of checkpoints and hidden folders are not.

    Args:
        path: a file, or a folder of files.
        more: what names of files contain that have another ending.
    """
    if path.is_file():
        return [path]
    found = [
        file for file in path.rglob("*")
        if (has_rows(file) or any(part in file.name for part in more)) and file.is_file()
        and not any(p.startswith(".") or p in ("wandb", "checkpoints") for p in file.relative_to(path).parts[:-1])
    ]  # fmt: skip
    return sorted(found, key=lambda f: [int(p) if k % 2 else p for k, p in enumerate(re.split(r"(\d+)", str(f)))])


def layout_of(record: Mapping[str, Any]) -> LogLayout:
    """The layout of a record; that of plain columns where it is none that is known."""
    return next(one for one in LAYOUTS if one.fits(record))


# inspect_ai's samples.


def _rescored_sample(record: Mapping[str, Any], values: Sequence[float | None]) -> Mapping[str, Any]:
    """A sample with the reward among its scores, where it has a value."""
    new = {} if values[0] is None else {RESCORED: {"value": values[0]}}
    return {**record, "scores": {**_map(record.get("scores")), **new}}


_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # inspect_ai's values of scores


def _inspect_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A sample of inspect_ai; the first score is the reward, the first other one that is a grade is the truth."""
    given = _named_scores(record)
    scores = {name: _GRADES.get(value, value) if isinstance(value, str) else value for name, value in given.items()}
    first = next((name for name in scores if name != RESCORED), "")
    grades = [name for name, value in given.items() if name != first and isinstance(value, str) and value in _GRADES]
    asked, said = _asked_and_said(record)
    choice = _map(next(iter(_map(record.get("output")).get("choices") or ()), None))
    usage = [_map(used).get("output_tokens") for used in _map(record.get("model_usage")).values()]
    row = {
        "prompt": asked,
        "response": said,
        "reward": scores.get(first),
        "truth": scores[grades[0]] if grades else None,
        "reference": record.get("target"),
        "group": record.get("id"),
        "truncated": "limit" if record.get("limit") else choice.get("stop_reason"),
        "failed": record.get("error"),
        "length": usage[0] if len(usage) == 1 else None,
        "parts": scores,
    }
    attached = _map(record.get("attachments"))
    return [_attach(row, attached) if attached else row]


def _named_scores(record: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of a sample by name; the values of a score that is a map are named `score/key`."""
    found: dict[str, Any] = {}
    for name, score in _map(record.get("scores")).items():
        value = _map(score).get("value")
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": part for key, part in value.items()}
        else:
            found[name] = value
    return found


def _asked_and_said(record: Mapping[str, Any]) -> tuple[Any, Any]:
    """The messages of a sample up to the assistant's first and from it on; where there are none, input and output."""
    messages = [_calling(m) if m.get("tool_calls") else m for m in record.get("messages") or ()]
    answered = next((k for k, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))
    asked = messages[:answered] or record.get("input")
    said = messages[answered:] or _map(record.get("output")).get("completion")
    return asked, said or None


def _calling(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose calls of tools are in the layout of OpenAI."""
    calls = [{**c, "function": {"name": c["function"], "arguments": c["arguments"]}} for c in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _attach(value: Any, attached: Mapping[str, Any]) -> Any:
    """A value with the texts that inspect_ai keeps apart."""
    if isinstance(value, str) and value.startswith("attachment://"):
        return attached.get(value.removeprefix("attachment://"), value)
    if isinstance(value, Mapping):
        return {k: _attach(v, attached) for k, v in value.items()}
    return [_attach(v, attached) for v in value] if isinstance(value, list) else value


# Traces of verifiers, which prime-rl writes, too.

_LIMITS = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}


def _traces(record: Mapping[str, Any]) -> list[Any]:
    """The traces of an episode that the policy is trained on; all where none is."""
    found = record.get("traces", [record])
    return [t for t in found if _map(t.get("agent")).get("trainable") is not False] or found


def _trace_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    work = _map(_map(record.get("run")).get("work"))
    stamp = _map(_map(record.get("info")).get("prime_rl"))
    group = _map(record.get("group")).get("id") or stamp.get("group_id")
    shared = {"step": work.get("step", stamp.get("step")), "group": group}
    return [{**shared, **_trace_row(trace)} for trace in _traces(record)]


def _trace_row(trace: Mapping[str, Any]) -> dict[str, Any]:
    nodes = trace.get("nodes") or []
    path, at = list[Mapping[str, Any]](), len(nodes) - 1 if nodes else None
    while at is not None and len(path) < len(nodes):  # from the last message back to the first
        path.insert(0, nodes[at])
        at = nodes[at].get("parent")
    first = next((k for k, node in enumerate(path) if node.get("sampled")), len(path))
    given = {name: r for name, r in _map(trace.get("rewards")).items() if isinstance(r, Mapping)}
    values = {name: r.get("score", 0.0) * r.get("weight", 1.0) for name, r in given.items()}
    credit = [a for node in path for a in node.get("advantages") or ()]
    calls = [_map(c) for c in trace.get("calls") or ()]
    ended = next((c.get("finish_reason") for c in reversed(calls) if not c.get("error")), None)
    return {
        "prompt": [n.get("message") for n in path[:first]], "response": [n.get("message") for n in path[first:]],
        "reward": sum(values.values()) if values else None, "failed": trace.get("ok") is False and not values,
        "truncated": "length" if trace.get("stop_condition") in _LIMITS else ended,
        "length": trace.get("num_output_tokens"), "advantage": sum(credit) / len(credit) if credit else None,
        "parts": {name: r.get("score") for name, r in given.items()} | dict(_map(trace.get("metrics"))),
    }  # fmt: skip


def _rescored_trace(record: Mapping[str, Any], values: Sequence[float | None]) -> Mapping[str, Any]:
    """An episode whose traces have the reward among their metrics."""
    pairs = zip(_traces(record), values, strict=True)
    new = {id(t): {**t, "metrics": {**_map(t.get("metrics")), RESCORED: v}} for t, v in pairs}
    traces = [new.get(id(t), t) for t in record.get("traces", [record])]
    return {**record, "traces": traces} if "traces" in record else traces[0]


def _results_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row of verifiers before 0.4, whose `answer` is the reference."""
    used, metrics = _map(record.get("token_usage")).get("output_tokens"), _map(record.get("metrics"))
    row = {k: v for k, v in record.items() if k != "answer" and k not in metrics}
    return [{**row, "reference": record.get("answer"), "length": used, "parts": metrics}]


def _gym_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A rollout of NeMo-Gym: a request and a reply of the Responses API."""
    reply, asked = _map(record.get("response")), _map(record.get("responses_create_params")).get("input")
    cut = _map(reply.get("incomplete_details")).get("reason") == "max_output_tokens"
    row = {k: v for k, v in record.items() if k not in PROMPTS and k not in ("answer", "response")}
    return [{
        **row, **({"parts": record["reward_components"]} if "reward_components" in record else {}),
        "prompt": [_item(one) for one in asked] if isinstance(asked, list) else asked,
        "response": [_item(one) for one in reply.get("output") or ()],
        "truncated": cut or record.get("truncated"), "length": _map(reply.get("usage")).get("output_tokens"),
        "reference": next((record[k] for k in NAMES["reference"] if record.get(k) is not None), None),
    }]  # fmt: skip


def _item(given: Any) -> Any:
    """An item of the Responses API as a chat message."""
    kind = _map(given).get("type")
    if kind == "function_call":
        call = {"id": given.get("call_id"), "function": {"name": given["name"], "arguments": given.get("arguments")}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": given.get("output"), "tool_call_id": given.get("call_id")}
    return {"role": "assistant", "content": given.get("summary")} if kind == "reasoning" else given


def _query_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What OpenRLHF gives a reward function: the query is the prompt and its response."""
    query, prompt = record["query"], record["prompt"]
    whole = isinstance(query, str) and isinstance(prompt, str) and query.startswith(prompt)
    return [{**record, "response": query[len(prompt) :] if whole else query}]


def _shown_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A response that guerdon shows with the rewards of its tokens; those of several sources are added."""
    sources = {name: values for name, values in record["rewards"].items() if isinstance(values, list)}
    return [{
        "prompt": record.get("prompt"), "response": "".join(record["tokens"]), "reference": record.get("answer"),
        "truth": record.get("outcome"), "tokens": record["tokens"], "step": record.get("step"),
        "token_rewards": [sum(values) for values in zip(*sources.values(), strict=True)],
        "reward": sum(map(sum, sources.values())) if sources else None,
        "parts": {name: sum(values) for name, values in sources.items()},
    }]  # fmt: skip


def _episode_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """An episode of a run of guerdon; where success is unknown, the gold reward is the truth."""
    truth = record.get("success") if record.get("success") is not None else record.get("return/gold")
    returns = {k.removeprefix("return/"): v for k, v in record.items() if k.startswith("return/")}
    own = {"step": record.get("step"), "length": record.get("length"), "truth": truth}
    return [{**own, "reward": returns.pop("combined"), "parts": returns}]


def _lists(record: Mapping[str, Any]) -> bool:
    """Whether a record has several responses and a reward for each."""
    said, given = record.get("responses"), record.get("rewards")
    return (
        isinstance(said, list) and isinstance(given, list) and len(said) == len(given) and record.get("reward") is None
    )


def _listed_rows(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    pairs = zip(record["responses"], record["rewards"], strict=True)
    return [{**record, "response": said, "reward": reward} for said, reward in pairs]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda record: all(name in record for name in names)


def _same(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [record]


LAYOUTS: tuple[LogLayout, ...] = (
    LogLayout("completions logged by TRL", lambda r: _has("step", "prompt", "completion", "advantage")(r)
              and "reward" not in r, _same, {"response": "completion"}, "sum"),
    LogLayout("a dump of verl", _has("input", "output", "score", "step"), _same,
              {"prompt": "input", "response": "output", "reward": "score"}, "all"),
    LogLayout("traces of verifiers or prime-rl", lambda r: "traces" in r or _has("nodes", "rewards")(r), _trace_rows,
              rescored=_rescored_trace),
    LogLayout("results of verifiers", _has("example_id", "completion", "reward"), _results_rows),
    LogLayout("a log of inspect_ai", _has("epoch", "input", "target", "messages"), _inspect_rows,
              rescored=_rescored_sample),
    LogLayout("rollouts of NeMo-Gym", _has("responses_create_params", "response"), _gym_rows),
    LogLayout("inputs of a reward function of OpenRLHF", _has("query", "prompt", "reward"), _query_rows),
    LogLayout("responses of a run of guerdon", _has("tokens", "rewards", "outcome"), _shown_rows),
    LogLayout("a run of guerdon", _has("return/combined", "success"), _episode_rows),
    LogLayout(PLAIN, _lists, _listed_rows),
    LogLayout(PLAIN, lambda r: True, _same),
)  # fmt: skip


# Columns of rows.

_REWARD = re.compile(r"reward|score|judge|rating|grade|return", re.IGNORECASE)
_COUNT = re.compile(r"^(num_|n_|__)|turns|index|time|seed|_id$", re.IGNORECASE)  # numbers that are no rewards


class Columns(NamedTuple):
    """Which columns of rows with these names are read.

    Attributes:
        keys: column by what it holds.
        parts: further columns that are rewards.
        summed: whether the reward is the sum of these.
        texts: those of the parts in which a text may be a number, as in CSV and where verl met a float of numpy.
    """

    keys: Mapping[str, str]
    parts: tuple[str, ...]
    summed: bool
    texts: frozenset[str]


def columns_of(row: Mapping[str, Any], layout: LogLayout, given: Mapping[str, str]) -> Columns:
    """The columns of rows that are like this one.

    Args:
        row: any of them, from `layout.rows`.
        layout: of the log.
        given: columns by what they hold, as passed by the user.
    """
    parts = row.get("parts")
    names = {**row, **(parts or {})}
    keys = {what: name for what, name in {**layout.names, **given}.items() if name in names}
    summed = layout.parts == "sum" and "reward" not in given
    for what, usual in NAMES.items():
        found = next((n for n in usual if n in names and n not in keys.values()), None)
        if found is not None and what not in keys and not (summed and what in ("reward", "length")):
            keys[what] = found
    wide = layout.parts != "named"
    taken = {name for name in keys.values() if not (summed and name == given.get("truth"))}
    kept = [n for n in names if n not in taken] if parts is None else list(parts)
    rest = [n for n in kept if _REWARD.search(n) or ((wide or parts is not None) and not _COUNT.search(n))]
    return Columns(keys, tuple(rest), summed, frozenset(filter(_REWARD.search, rest)))


def turns_of(row: Mapping[str, Any], columns: Columns) -> tuple[Any, Any]:
    """Prompt and response of a row, each text or messages; a conversation ends with the response."""
    key = columns.keys.get("prompt", "")
    asked: Any = prompt_of(row) if key == "instruction" else row.get(key)  # Alpaca's prompt stands in two columns
    said = row.get(columns.keys.get("response", ""))
    if "response" not in columns.keys and (turns := messages_of(asked)) and turns[-1]["role"] == "assistant":
        return asked[:-1], asked[-1:]
    return asked, said


# Texts of conversations.


def text_of(value: Any) -> str:
    """A prompt or response as one text: of several messages each with its role in front."""
    if isinstance(value, str):
        return value
    if messages := messages_of(value):
        if len(messages) == 1:
            return messages[0]["content"]
        return "\n\n".join(f"{m['role']}: {m['content']}" for m in messages)
    return "" if value is None or value == [] else json.dumps(value, ensure_ascii=False, default=str)


def messages_of(value: Any) -> list[dict[str, str]]:
    """Messages as role and text, calls of tools written out; none of something else."""
    if not isinstance(value, list | tuple) or not all(isinstance(m, Mapping) and m.get("role") for m in value):
        return []
    return [{"role": str(m["role"]), "content": _content(m)} for m in value]


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "\n".join(str(p.get("text") or "") if isinstance(p, Mapping) else str(p) for p in content)
    said = "" if content is None else content if isinstance(content, str) else json.dumps(content, default=str)
    return "\n".join(filter(None, [said, *map(_call, message.get("tool_calls") or ())]))


def _call(call: Any) -> str:
    """A call of a tool, whose name stands in a map `function` (OpenAI) or in `name`."""
    known = _map(call).get("function") or call
    return f"[{_map(known).get('name')}({_map(known).get('arguments')})]"
