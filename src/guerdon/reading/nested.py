"""Records that hold a row, or several, below other keys: as maps whose keys are roles.

Each function takes a record as its tool writes it and gives the responses in it, with what is known of each by role;
`parts` are further rewards by name.

    inspect_sample(sample)      # [{"prompt": [...], "response": [...], "reward": 1.0, "reference": "4", ...}]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from guerdon.reading.roles import beside, named, roles_of
from guerdon.reading.values import MOST_FIT, is_chat, number_of
from guerdon.reading.values import nested as parsed

Row = Mapping[str, Any]
RESCORED, FAILURE = "guerdon_reward", "guerdon_failure"
"""Columns that `guerdon score` adds to a log."""


def is_rescored(name: str) -> bool:
    """Whether a column is a reward that `guerdon score` added to a log, or a criterion of that reward."""
    return name == RESCORED or name.startswith(f"{RESCORED}.")


def a_map(value: Any) -> Row:
    """A map, an empty one in the place of anything else."""
    return value if isinstance(value, Mapping) else {}


# inspect_ai's samples.


def rescored_sample(record: Row, name: str, values: Sequence[float | None]) -> Row:
    """A sample with a reward among its scores, where it has a value; beside them in a table of text."""
    if isinstance(record.get("scores"), str):
        return {**record, name: values[0]}
    new = {} if values[0] is None else {name: {"value": values[0]}}
    return {**record, "scores": {**a_map(record.get("scores")), **new}}


_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # inspect_ai's values of scores


def inspect_sample(record: Row) -> list[Row]:
    """A sample of inspect_ai; the first score is the reward, the first other one that is a grade is the truth."""
    given = _named_scores(record)
    scores = {name: _graded(value) for name, value in given.items()}
    first = next((name for name in scores if not is_rescored(name)), "")
    grades = [name for name, value in given.items() if name != first and _graded(value) is not value]
    asked, said = _asked_and_said(record)
    row = {
        "prompt": asked,
        "response": said,
        "reward": scores.get(first),
        "truth": next((scores[name] for name in grades), None),
        "reference": record.get("target"),
        "group": record.get("id"),
        "truncated": _end_of_sample(record),
        "failed": record.get("error"),
        "length": _length_of_sample(record),
        "parts": scores,
    }
    attached = a_map(record.get("attachments"))
    return [_attach(row, attached) if attached else row]


def _graded(value: Any) -> Any:
    """The number of a grade; another value as it is."""
    return _GRADES.get(value, value) if isinstance(value, str) else value


def _end_of_sample(record: Row) -> Any:
    """Why a sample ended: at a limit, or as the model says."""
    if record.get("limit"):
        return "limit"
    choices = a_map(record.get("output")).get("choices")
    return a_map(next(iter(choices or ()), None)).get("stop_reason")


def _length_of_sample(record: Row) -> Any:
    """Tokens that the one model of a sample wrote; None where there are several models."""
    used = [a_map(one).get("output_tokens") for one in a_map(record.get("model_usage")).values()]
    return used[0] if len(used) == 1 else None


def _named_scores(record: Row) -> dict[str, Any]:
    """The scores of a sample by name; the values of a score that is a map are named `score/key`."""
    found: dict[str, Any] = {}
    for name, score in a_map(record.get("scores")).items():
        value = a_map(score).get("value")
        if isinstance(value, Mapping):
            found |= {f"{name}/{key}": part for key, part in value.items()}
        else:
            found[name] = value
    return found


def _asked_and_said(record: Row) -> tuple[Any, Any]:
    """The messages of a sample up to the assistant's first and from it on; where there are none, input and output."""
    messages = [_calling(m) if m.get("tool_calls") else m for m in record.get("messages") or ()]
    answered = next((k for k, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))
    asked = messages[:answered] or record.get("input")
    said = messages[answered:] or a_map(record.get("output")).get("completion")
    return asked, said or None


def _calling(message: Row) -> Row:
    """A message whose calls of tools are in the layout of OpenAI."""
    calls = [{**c, "function": {"name": c["function"], "arguments": c["arguments"]}} for c in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def _attach(value: Any, attached: Row) -> Any:
    """A value with the texts that inspect_ai keeps apart."""
    if isinstance(value, str) and value.startswith("attachment://"):
        return attached.get(value.removeprefix("attachment://"), value)
    if isinstance(value, Mapping):
        return {k: _attach(v, attached) for k, v in value.items()}
    return [_attach(v, attached) for v in value] if isinstance(value, list) else value


# Traces of verifiers, which prime-rl writes, too.

_LIMITS = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}


def _trained(record: Row) -> list[Any]:
    """The traces of an episode that the policy is trained on; all where none is."""
    found = record.get("traces", [record])
    return [t for t in found if a_map(t.get("agent")).get("trainable") is not False] or found


def traces(record: Row) -> list[Row]:
    """An episode of verifiers or prime-rl: a row for each trace that the policy is trained on."""
    work = a_map(a_map(record.get("run")).get("work"))
    stamp = a_map(a_map(record.get("info")).get("prime_rl"))
    group = a_map(record.get("group")).get("id") or stamp.get("group_id")
    shared = {"step": work.get("step", stamp.get("step")), "group": group}
    return [{**shared, **_trace_row(trace)} for trace in _trained(record)]


def _trace_row(trace: Row) -> dict[str, Any]:
    """A trace as a row: what was said before the first sampled message was asked."""
    path = _last_path(trace.get("nodes") or [])
    prompt, response = _around_first_sampled(path)
    given = {name: one for name, one in a_map(trace.get("rewards")).items() if isinstance(one, Mapping)}
    values = [one.get("score", 0.0) * one.get("weight", 1.0) for one in given.values()]
    credit = [value for node in path for value in node.get("advantages") or ()]
    return {
        "prompt": prompt,
        "response": response,
        "reward": sum(values) if values else None,
        "failed": trace.get("ok") is False and not values,
        "truncated": _end_of_trace(trace),
        "length": trace.get("num_output_tokens"),
        "advantage": sum(credit) / len(credit) if credit else None,
        "parts": {name: one.get("score") for name, one in given.items()} | dict(a_map(trace.get("metrics"))),
    }


def _around_first_sampled(path: Sequence[Row]) -> tuple[list[Any] | None, list[Any] | None]:
    """The messages before the first sampled one, and from it on; None where there are no messages."""
    if not path:
        return None, None
    messages = [node.get("message") for node in path]
    first = next((k for k, node in enumerate(path) if node.get("sampled")), len(path))
    return messages[:first], messages[first:]


def _last_path(nodes: Sequence[Row]) -> list[Row]:
    """The messages from the first one to the last."""
    path, at = list[Row](), len(nodes) - 1 if nodes else None
    while at is not None and len(path) < len(nodes):
        path.insert(0, nodes[at])
        at = nodes[at].get("parent")
    return path


def _end_of_trace(trace: Row) -> Any:
    """Why a trace ended: at a limit, or as the last call that succeeded says."""
    if trace.get("stop_condition") in _LIMITS:
        return "length"
    calls = [a_map(one) for one in trace.get("calls") or ()]
    return next((one.get("finish_reason") for one in reversed(calls) if not one.get("error")), None)


def rescored_trace(record: Row, name: str, values: Sequence[float | None]) -> Row:
    """An episode whose traces have a reward among their metrics; beside them in a table of text."""
    if isinstance(record.get("traces", record.get("nodes")), str):
        return {**record, name: list(values)}
    pairs = zip(_trained(record), values, strict=True)
    new = {id(t): {**t, "metrics": {**a_map(t.get("metrics")), name: v}} for t, v in pairs}
    traces = [new.get(id(t), t) for t in record.get("traces", [record])]
    return {**record, "traces": traces} if "traces" in record else traces[0]


def results(record: Row) -> list[Row]:
    """A row of verifiers before 0.4, whose `answer` is the reference."""
    used, metrics = a_map(record.get("token_usage")).get("output_tokens"), a_map(record.get("metrics"))
    row = {k: v for k, v in record.items() if k != "answer" and k not in metrics}
    return [{**row, "reference": record.get("answer"), "length": used, "parts": metrics}]


def gym(record: Row) -> list[Row]:
    """A rollout of NeMo-Gym: a request and a reply of the Responses API."""
    reply, asked = a_map(record.get("response")), a_map(record.get("responses_create_params")).get("input")
    cut = a_map(reply.get("incomplete_details")).get("reason") == "max_output_tokens"
    row = {k: v for k, v in record.items() if not {"prompt", "response"} & {*roles_of(k)}}
    return [{
        **row, **({"parts": record["reward_components"]} if "reward_components" in record else {}),
        "prompt": [_item(one) for one in asked] if isinstance(asked, list) else asked,
        "response": [_item(one) for one in reply.get("output") or ()] if reply else None,
        "truncated": cut or record.get("truncated"), "length": a_map(reply.get("usage")).get("output_tokens"),
        "reference": next((record[k] for k in named("reference", record) if record[k] is not None), None),
    }]  # fmt: skip


def _item(given: Any) -> Any:
    """An item of the Responses API as a chat message."""
    kind = a_map(given).get("type")
    if kind == "function_call":
        call = {"id": given.get("call_id"), "function": {"name": given["name"], "arguments": given.get("arguments")}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": given.get("output"), "tool_call_id": given.get("call_id")}
    return {"role": "assistant", "content": given.get("summary")} if kind == "reasoning" else given


def query(record: Row) -> list[Row]:
    """What OpenRLHF gives a reward function: the query is the prompt and its response."""
    query, prompt = record["query"], record["prompt"]
    whole = isinstance(query, str) and isinstance(prompt, str) and query.startswith(prompt)
    rest = {key: value for key, value in record.items() if key != "label"}
    truth = record.get("label", record.get("reference"))
    return [{**rest, "response": query[len(prompt) :] if whole else query, "reference": truth}]


def shown(record: Row) -> list[Row]:
    """A response that guerdon shows with the rewards of its tokens; those of several sources are added."""
    sources = {name: values for name, values in record["rewards"].items() if isinstance(values, list)}
    return [{
        "prompt": record.get("prompt"), "response": "".join(record["tokens"]), "reference": record.get("answer"),
        "truth": record.get("outcome"), "tokens": record["tokens"], "step": record.get("step"),
        "token_rewards": [sum(values) for values in zip(*sources.values(), strict=True)],
        "reward": sum(map(sum, sources.values())) if sources else None,
        "parts": {name: sum(values) for name, values in sources.items()},
    }]  # fmt: skip


def episode(record: Row) -> list[Row]:
    """An episode of a run of guerdon; where success is unknown, the gold reward is the truth."""
    truth = record.get("success") if record.get("success") is not None else record.get("return/gold")
    returns = {key.removeprefix("return/"): record[key] for key in record if key.startswith("return/")}
    own = {"step": record.get("step"), "length": record.get("length"), "truth": truth}
    return [{**own, "reward": returns.pop("combined"), "parts": returns}]


def conversation(record: Row) -> list[Row]:
    """A conversation of an agent that guerdon trains: what was asked ends where the first sampled message begins.

    The reward is what all sources paid together.
    """
    messages, calls = record["messages"], record["calls"]
    answers = [k for k, message in enumerate(messages) if message.get("role") == "assistant"]
    first = next(iter(answers[-len(calls) :] if calls else ()), len(messages))
    shared, returns = ("step", "group", "truncated"), dict(a_map(record.get("returns")))
    return [{
        **{name: record.get(name) for name in shared}, "reward": returns.pop("combined", record.get("reward")),
        "prompt": messages[:first], "response": messages[first:] or None, "truth": record.get("success"),
        "failed": record.get("failure"), "length": sum(call["tokens"] for call in calls), "parts": returns,
        "step_labels": [call.get("reward") for call in calls],
    }]  # fmt: skip


# Groups and batches of trainers.


def atropos(record: Row) -> list[Row]:
    """A group of Atropos: conversations of one prompt, a score for each."""
    scores, chats = record["scores"], record["messages"]
    credit = record.get("advantages") or [None] * len(scores)
    return [
        {"messages": chat, "reward": score, "advantage": _mean(own)}
        for chat, score, own in zip(chats, scores, credit, strict=True)
    ]


def _mean(values: Any) -> Any:
    """The mean of the advantages of tokens, or the one of a response; tokens that are not trained on have a 0."""
    if not isinstance(values, list):
        return values
    trained = [value for value in values if value]
    if trained:
        return sum(trained) / len(trained)
    return 0.0 if values else None


def nemo_rl(record: Row) -> list[Row]:
    """A sample of a batch of NeMo-RL, whose last content is the response."""
    *asked, said = record["content"]
    return [{"prompt": "\n\n".join(map(str, asked)), "response": said, "reward": record["rewards"]}]


def listed(record: Row) -> list[Row]:
    """A prompt with a list of completions and a reward for each."""
    said = record["completions"] if "completions" in record else record["responses"]
    rest = {key: value for key, value in record.items() if key not in ("completions", "responses", "rewards")}
    return [{**rest, "response": one, "reward": reward} for one, reward in zip(said, record["rewards"], strict=True)]


# Evaluations and traces of other tools.


def lm_eval(record: Row) -> list[Row]:
    """A sample of lm-eval; the first of its metrics is the reward. Choices by likelihood have no text."""
    request = _first_item(record.get("arguments"))
    asked = request.get("arg_0") if isinstance(request, Mapping) else _first_item(request)
    said = _first_item(record["resps"])
    said = _first_item(said) if isinstance(said, list) else said
    names = record.get("metrics") or [k for k in record if k not in _OF_LM_EVAL and number_of(record[k]) is not None]
    parts = {name: record.get(name) for name in names}
    return [{
        "prompt": asked, "response": said if isinstance(said, str) else None, "reference": record["target"],
        "reward": _first_item(parts), "group": record["doc_id"], "parts": parts,
    }]  # fmt: skip


def _first_item(values: Any) -> Any:
    """The first item of a list, or the first value of a map; None: there is none."""
    return next(iter(values.values() if isinstance(values, Mapping) else values or ()), None)


_OF_LM_EVAL = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "doc_hash", "prompt_hash",
               "target_hash")  # fmt: skip


def reasoning_gym(record: Row) -> list[Row]:
    """A category of an evaluation of reasoning-gym: all answers to the questions of its data sets."""
    return [
        {"prompt": one["question"], "reference": one.get("expected_answer"), "response": said["full_model_response"],
         "reward": said["score"], "subset": data.get("name")}
        for data in record["datasets"] for one in data["results"] for said in one["completions"]
    ]  # fmt: skip


def qwen_math(record: Row) -> list[Row]:
    """A question of the harness of Qwen2.5-Math with its samples, which are called `code`."""
    pairs = zip(record["code"], record["score"], strict=True)
    shared = {"prompt": record["question"], "reference": record["gt"], "group": record.get("idx")}
    return [{**shared, "response": said, "reward": score} for said, score in pairs]


def langfuse(record: Row) -> list[Row]:
    """A trace of Langfuse; its first score that is a number is the reward."""
    parts = {one.get("name"): one.get("value") for one in record["scores"] if number_of(one.get("value")) is not None}
    return [{**_asked_and_answered(record["input"], record["output"]), **_first(parts)}]


def langsmith(record: Row) -> list[Row]:
    """A run of LangSmith; the mean of its first feedback is the reward."""
    given = {name: a_map(one).get("avg") for name, one in record["feedback_stats"].items()}
    parts = {name: value for name, value in given.items() if number_of(value) is not None}
    return [{**_asked_and_answered(record["inputs"], record["outputs"]), **_first(parts)}]


def phoenix(record: Row) -> list[Row]:
    """A span of Phoenix; the score of its first evaluation is the reward."""
    asked, said = (record[f"attributes.{side}.value"] for side in ("input", "output"))
    evaluated = {key: record[key] for key in record if key.startswith("eval.") and key.endswith(".score")}
    parts = {key.removeprefix("eval.").removesuffix(".score"): value for key, value in evaluated.items()}
    named = {"reward": record["reward"]} if "reward" in record else {}  # as the user said
    return [{**_asked_and_answered(asked, said), **_first({**named, **parts})}]


def _first(parts: Row) -> Row:
    """Further rewards by name, of which the first is the reward."""
    return {"reward": next(iter(parts.values()), None), "parts": parts}


_ANSWERED = ("output", "answer", "content", "text", "messages", "choices")  # keys of what a call of a model gave


def _asked_and_answered(asked: Any, said: Any) -> Row:
    """Prompt and response of a call of a model as tracing tools keep it: texts, messages, or maps with these."""
    asked, said = (parsed(one) if isinstance(one, str) else one for one in (asked, said))
    if isinstance(asked, Mapping) and "role" not in asked:
        asked = next((asked[key] for key in (*named("messages", asked), *named("prompt", asked)) if asked[key]), None)
    return {"prompt": [asked] if isinstance(asked, Mapping) else asked, "response": _answered(said)}


def _answered(said: Any) -> Any:
    """What a call of a model gave, as a text or messages."""
    if isinstance(said, Mapping) and "role" not in said:
        said = next((said[key] for key in _ANSWERED if said.get(key)), None)
    if isinstance(said, list) and said and isinstance(said[0], Mapping) and "message" in said[0]:
        said = said[0]["message"]
    return [said] if isinstance(said, Mapping) else said


# Preferences.


def numbered(record: Row) -> list[Row]:
    """Responses in numbered columns, and a list with a score for each."""
    columns = [key for key in record if key.startswith("response_")]
    rest = {key: value for key, value in record.items() if key not in columns}
    count = len(columns if record["scores"] is None else record["scores"])
    return [{**rest, "responses": [record.get(f"response_{k + 1}") for k in range(count)]}]


def lmsys(record: Row) -> list[Row]:
    """A battle whose turns are lists in JSON, with a column for each outcome."""
    asked, *answers = (parsed(record[key]) for key in ("prompt", "response_a", "response_b"))
    first, second = (_alternating(asked, own) for own in answers)
    a, b, tie = (number_of(record.get(f"winner_{what}")) or 0.0 for what in ("model_a", "model_b", "tie"))
    known = a or b or tie
    return [{"id": record.get("id"), "first": first, "second": second, "winner": b - a if known else None}]


def _alternating(asked: Sequence[Any], answered: Sequence[Any]) -> list[Row]:
    """Questions and answers in turn, as chat messages.

    Raises:
        ValueError: there are not as many answers as questions.
    """
    messages: list[Row] = []
    for question, answer in zip(asked, answered, strict=True):
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def last_is_chosen(record: Row) -> list[Row]:
    """A conversation whose last turn is the better response, and the worse one in a column of its own."""
    *asked, said = record["messages"]
    return [{**record, "messages": asked, "chosen": [said], "rejected": record["rejected_response"]}]


def argilla(record: Row) -> list[Row]:
    """A record of Argilla: the votes of its users name the better response."""
    votes = record["preference.responses"] or []
    first, second = next(iter(beside(record)), ("", ""))
    signs = [(vote == second) - (vote == first) for vote in votes if vote in (first, second)]
    return [{"id": record.get("id"), "prompt": _named(record, "prompt"), "first": record.get(first),
             "second": record.get(second), "winner": _majority(signs)}]  # fmt: skip


def label_studio(record: Row) -> list[Row]:
    """A task of Label Studio: its annotations select the left or the right response."""
    data = record["data"]
    chosen = [
        one for note in record["annotations"] if not note.get("was_cancelled") for one in note.get("result") or ()
    ]
    chosen = [one for one in chosen if one.get("type") == "pairwise"]
    names = chosen[0]["to_name"].split(",") if chosen else ["", ""]
    if not all(name in data for name in names):
        names = list(next(iter(beside(data)), ("", "")))
    signs = [{"left": -1, "right": 1}.get(one["value"].get("selected"), 0) for one in chosen]
    return [{"id": record.get("id"), "prompt": _named(data, "prompt"), "first": data.get(names[0]),
             "second": data.get(names[1]), "winner": _majority(signs)}]  # fmt: skip


def summaries(record: Row) -> list[Row]:
    """A comparison of two summaries: `choice` is the position of the better one."""
    info = record["info"]
    first, second = (a_map(one).get("text") for one in record["summaries"])
    signs: dict[float | None, float] = {0: -1.0, 1: 1.0}
    return [{"id": info.get("id"), "prompt": info.get("post") or info.get("article"), "first": first, "second": second,
             "winner": signs.get(number_of(record["choice"]))}]  # fmt: skip


def _named(row: Row, role: Any) -> Any:
    return next((row[key] for key in named(role, row)), None)


def _majority(signs: Sequence[int]) -> float | None:
    """The sign of the sum of votes; None: there is none."""
    total = sum(signs)
    return None if not signs else float((total > 0) - (total < 0))


def oasst(rows: Iterable[Row]) -> Iterator[Row]:
    """Messages of trees, one a row: the ranked answers to each prompt, with the conversation before it.

    Of several answers of which none is ranked all are given, for the reader to count them.
    """
    known = _by_message(rows)
    answers: dict[Any, list[Row]] = {}
    for row in known.values():
        if row["role"] == "assistant":
            answers.setdefault(row["parent_id"], []).append(row)
    for parent, several in answers.items():
        ranked = [one for one in several if one.get("rank") is not None]
        own = ranked or several
        path = _path_to(parent, known)
        if path and (ranked or len(several) > 1):
            yield {"id": parent, "messages": path, "responses": [one["text"] for one in own],
                   "ranks": [one.get("rank") for one in own]}  # fmt: skip


_OASST = {"prompter": "user"}


def oasst_talks(rows: Iterable[Row]) -> dict[Any, list[Row]]:
    """Messages of trees, one a row: the conversation that ends with each, by its id."""
    known = _by_message(rows)
    return {name: _path_to(name, known) for name in known}


def _by_message(rows: Iterable[Row]) -> dict[Any, Row]:
    return {row["message_id"]: row for row in rows if not row.get("deleted")}


def _path_to(name: Any, known: Mapping[Any, Row]) -> list[Row]:
    """The conversation from the first message of a tree to one of its messages."""
    path, at = list[Row](), known.get(name)
    while at is not None and len(path) <= len(known):
        path.insert(0, {"role": _OASST.get(at["role"], at["role"]), "content": at["text"]})
        at = known.get(at["parent_id"])
    return path


def oasst_tree(record: Row) -> list[Row]:
    """A tree of OASST with its replies inside; answers to a prompt are in the order of the tree."""
    rows, nodes = list[Row](), [(record["prompt"], None)]
    for node, parent in nodes:  # which become more
        rows.append({**node, "parent_id": parent})
        nodes += [(reply, node["message_id"]) for reply in node.get("replies") or ()]
    return list(oasst(rows))


def promptfoo(record: Row) -> list[Row]:
    """A result of promptfoo: an assertion that failed is a reward, although the log has an `error` for it."""
    asserted = record.get("failureReason") == 1
    return [{**record, "error": None} if asserted else record]


def swe_agent(record: Row) -> list[Row]:
    """A trajectory of SWE-agent: whether its patch resolves the issue is the reward."""
    roles = {"ai": "assistant", "system": "system", "user": "user"}
    turns = [
        {"role": roles.get(one["role"], one["role"]), "content": one.get("text") or one.get("system_prompt") or ""}
        for one in record["trajectory"]
    ]
    return [{"messages": turns, "reward": record["target"], "truth": record["target"], "group": record["instance_id"]}]


# Steps.

STEP_MARK = "ки"
"""What ends a step of Math-Shepherd, after a space."""


def has_own_steps(record: Row) -> bool:
    """Whether a row is a solution as guerdon writes it: a list of steps, and labels that are numbers or none."""
    steps, labels = record.get("steps"), record.get("step_labels")
    listed = labels if isinstance(labels, list | tuple) else ()
    numbers = all(one is None or isinstance(one, int | float) for one in listed)
    return isinstance(steps, list | tuple) and numbers and "labels" not in record


def has_step_labels(record: Row) -> bool:
    """Whether a row has a list of labels beside its steps."""
    return all(isinstance(record.get(name), list | tuple) for name in ("completions", "labels"))


def has_step_marks(record: Row) -> bool:
    """Whether the steps of a row end with the mark of Math-Shepherd."""
    return STEP_MARK in str(record.get("input"))


_FIRST_STEP = r"\bStep (?:1|one)\b"
_GAPS = (r"\n[ \t]*\n", r"\n")  # between the question and its first step


def steps_of_turns(turns: Sequence[Row]) -> list[str]:
    """What the user says in turns with + and -: the question with the first step, and the further steps."""
    return [str(one.get("content", one.get("value"))) for one in turns[::2]]


def numbering(steps: Sequence[str]) -> str:
    """What stands in front of the number of the second step, `Step ` in `Step 2: ...`; empty: it has none."""
    found = re.match(r"\s*(\D{1,20}?)2(?!\d)", steps[1]) if len(steps) > 1 else None
    return found[1] if found else ""


def divided(steps: Sequence[str], mark: str) -> tuple[str, str] | None:
    """The question and the first step in the first turn; None: a mark does not say where the solution starts.

    Args:
        steps: see `steps_of_turns`.
        mark: pattern of the beginning of a step, or of what stands between steps and not in one.
    """
    if mark in _GAPS and any(re.search(mark, step.strip()) for step in steps[1:]):
        return None
    starts = [found.start() for found in re.finditer(mark, steps[0].rstrip(), re.IGNORECASE)]
    question, step = (steps[0][: starts[-1]].rstrip(), steps[0][starts[-1] :]) if starts else ("", "")
    return (question, step) if question and step.strip() else None


def mark_of_steps(all_rows: Callable[[Callable[[Row], bool]], bool]) -> str:
    """The mark by which nearly all first turns of a data set are divided; empty: there is none.

    A step begins with `Step 1`, with the number 1 behind what the second steps have in front of theirs, or behind a
    blank line, or on a line of its own, where no other step has one in it.
    """
    numbered, counts = Counter[str](), Counter[str]()
    rows = 0

    def number(row: Row) -> bool:
        numbered[numbering(_steps_in(row))] += 1
        return True

    def count(row: Row) -> bool:
        nonlocal rows
        rows += 1
        counts.update(mark for mark in marks if divided(_steps_in(row), mark))
        return True

    all_rows(number)
    usual = max(numbered, key=lambda front: (front != "", numbered[front]), default="")
    marks = [_FIRST_STEP, *([re.escape(usual) + r"1(?!\d)"] if usual else []), *_GAPS]
    all_rows(count)
    return next((mark for mark in marks if counts[mark] >= MOST_FIT * rows), "")


def _steps_in(row: Row) -> list[str]:
    turns = row.get("conversations", row.get("messages"))
    return steps_of_turns(turns) if is_chat(turns) else [""]


def has_signed_turns(record: Row) -> bool:
    """Whether the turns of the assistant in a row are signs, each for the step in the user's turn before it."""
    turns = record.get("conversations", record.get("messages"))
    if not is_chat(turns):
        return False
    said = [str(one.get("content", one.get("value"))).strip() for one in turns[1::2]]
    return bool(said) and {*said} <= {"+", "-"}
