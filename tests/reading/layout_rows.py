"""Rows of every layout that is read, made from what they should be understood as.

A case has a function that makes a row of the layout from plain values, and says what belongs to the layout beside it:
its coding, its usual container, the commands that read it. What is expected is never taken from the reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def talk(*texts):
    """A conversation of texts in turn."""
    return [(user, assistant)[k % 2](text) for k, text in enumerate(texts)]


def parts(text, kind="text"):
    return [{"type": kind, "text": text, "image": None, "mimeType": None}]


@dataclass(frozen=True)
class Case:
    """A layout.

    Attributes:
        name: of the tool or data set.
        make: a row from plain values; of pairs (prompt, first, second, verdict), where the verdict is "first",
            "second", "tie" or None; of labels (prompt, response, good); of steps (prompt, steps, labels); of prompts
            (question, answer); of logs (prompt, response, reward, reference).
        coding: of the column that judges, in words.
        container: ending of its files.
        ties: whether a row can say that two are equally good.
        nulls: whether a row can say nothing.
        whole: makes the object of a whole file of rows.
        columns: names to rename it by, `ROLE=NAME`; empty: it is nested.
    """

    name: str
    make: Callable[..., Any]
    coding: str = ""
    container: str = ".jsonl"
    ties: bool = False
    nulls: bool = True
    whole: Callable[[list[Any]], Any] | None = None
    columns: str = ""


def sides(first, second, tie=None, none=None):
    """What a column says for each verdict."""
    return {"first": first, "second": second, "tie": tie, None: none}


def better_worse(prompt, first, second, verdict):
    """The better and the worse of two texts; a row without a verdict has nulls."""
    return {"first": (first, second), "second": (second, first)}.get(verdict, (None, None))


def chosen(make, **more):
    """A layout that names the better and the worse response."""

    def row(prompt, first, second, verdict):
        good, bad = better_worse(prompt, first, second, verdict)
        return None if verdict == "tie" else make(prompt, good, bad)

    return row


def distilabel_pair(prompt, first, second, verdict):
    """The pairs of distilabel name a better response also where both are equally good."""
    good, bad = (first, second) if verdict == "tie" else better_worse(prompt, first, second, verdict)
    return {"system": "Be brief.", "input": prompt, "chosen": good, "rejected": bad, "generations": [good, bad],
            "order": ["x", "y"], "labelling_model": "z", "rating": [8.0, 8.0] if verdict == "tie" else [9.0, 7.0],
            "status": sides("unchanged", "swapped", "tie")[verdict]}  # fmt: skip


def hh(*texts):
    """Turns of a person and an assistant as HH-RLHF writes them."""
    return "".join(f"\n\n{('Human', 'Assistant')[k % 2]}: {text}" for k, text in enumerate(texts))


def none_or(value, made):
    return None if value is None else made


def side_by_side(first, second, column, values, **more):
    """A layout with two responses and a column for the verdict."""

    def row(prompt, a, b, verdict):
        return {**{k: v(prompt) if callable(v) else v for k, v in more.items()}, first: a, second: b,
                column: values[verdict]}  # fmt: skip

    return row


def asks(prompt):
    return prompt


def ranked_list(key, text, number, values):
    """A layout with a list of two maps, each with a text and a rank or score."""

    def row(prompt, first, second, verdict):
        a, b = values[verdict]
        return {
            "prompt": prompt,
            key: [{text: first, number: a, "model": "m"}, {text: second, number: b, "model": "n"}],
        }

    return row


def oasst(rows):
    """Rows of trees: a prompt and its ranked answers, three rows for each case."""
    found = []
    for k, (prompt, first, second, verdict) in enumerate(rows):
        ranks = {"first": (0, 1), "second": (1, 0), "tie": (None, None), None: (None, None)}[verdict]
        found.append({"message_id": f"p{k}", "parent_id": None, "text": prompt, "role": "prompter", "rank": None})
        for side, text, rank in zip("ab", (first, second), ranks, strict=True):
            found.append(
                {"message_id": f"{side}{k}", "parent_id": f"p{k}", "text": text, "role": "assistant", "rank": rank}
            )
    return found


def oasst_tree(prompt, first, second, verdict):
    """A tree with its replies inside: a prompt and two ranked answers."""
    ranks = {"first": (0, 1), "second": (1, 0), "tie": (None, None), None: (None, None)}[verdict]
    replies = [{"message_id": f"{side}-{prompt}", "text": text, "role": "assistant", "rank": rank, "replies": []}
               for side, text, rank in zip("ab", (first, second), ranks, strict=True)]  # fmt: skip
    return {"message_tree_id": prompt, "tree_state": "ready_for_export", "prompt": {
        "message_id": prompt, "text": prompt, "role": "prompter", "replies": replies}}  # fmt: skip


SIGNS = sides(-2, 2, 0)
PAIRS = [
    Case("HH-RLHF", chosen(lambda p, a, b: {"chosen": none_or(a, hh(p, a)), "rejected": none_or(b, hh(p, b))}),
         container=".jsonl.gz"),
    Case("SHP", side_by_side("human_ref_A", "human_ref_B", "labels", sides(1, 0), history=asks, domain="d", score_A=1),
         "1: the first", columns="prompt=history,first=human_ref_A,second=human_ref_B,winner=labels:1/0"),
    Case("UltraFeedback, raw", lambda p, a, b, v: {
        "source": "s", "instruction": p, "models": ["x", "y"], "correct_answers": [], "completions": [
            {"model": "x", "response": a, "overall_score": sides(8.0, 2.0, 5.0)[v], "annotations": {}},
            {"model": "y", "response": b, "overall_score": sides(2.0, 8.0, 5.0)[v], "annotations": {}}]},
         "overall_score", ties=True),
    Case("UltraFeedback binarized", chosen(lambda p, a, b: {
        "prompt": p, "prompt_id": p, "chosen": none_or(a, talk(p, a)), "rejected": none_or(b, talk(p, b)),
        "messages": none_or(a, talk(p, a)), "score_chosen": 8.0, "score_rejected": 5.0}), container=".parquet"),
    Case("UltraFeedback of Argilla", chosen(lambda p, a, b: {
        "source": "s", "prompt": p, "chosen": none_or(a, talk(p, a)), "chosen-rating": 5.0, "chosen-model": "m",
        "rejected": none_or(b, talk(p, b)), "rejected-rating": 2.0, "rejected-model": "n"}), container=".parquet"),
    Case("HelpSteer2 preference", side_by_side("response_1", "response_2", "preference_strength", SIGNS, prompt=asks,
         split="train", preference_statement="x"), "below 0: the first", ties=True,
         columns="prompt=prompt,first=response_1,second=response_2,winner=preference_strength"),
    Case("HelpSteer3", side_by_side("response1", "response2", "overall_preference", SIGNS,
         context=lambda p: [user(p)], domain="general", individual_preference=[{"score": -2}]), "below 0: the first",
         ties=True, columns="messages=context,first=response1,second=response2,winner=overall_preference"),
    Case("Skywork-Reward", chosen(lambda p, a, b: {
        "chosen": none_or(a, talk(p, a)), "rejected": none_or(b, talk(p, b)), "source": "magpie"}),
         container=".parquet"),
    Case("Nectar", ranked_list("answers", "answer", "rank", sides((1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (None, None))),
         "rank from 1", ties=True),
    Case("VL-RewardBench", lambda p, a, b, v: {
        "id": p, "query": p, "response": [a, b], "human_ranking": sides([0, 1], [1, 0])[v], "models": ["x", "y"],
        "judge": "z", "rationale": "", "query_source": "s", "ground_truth": ""}, "rank from 0", ".parquet"),
    Case("PKU-SafeRLHF", side_by_side("response_0", "response_1", "better_response_id", sides(0, 1), prompt=asks,
         is_response_0_safe=True, safer_response_id=1), "0/1", columns="prompt=prompt,first=response_0,"
         "second=response_1,winner=better_response_id:0/1"),
    Case("WebGPT comparisons", lambda p, a, b, v: {
        "question": {"dataset": "d", "id": "1", "full_text": p}, "answer_0": a, "tokens_0": {}, "answer_1": b,
        "score_0": sides(0.5, -0.5, 0.0)[v], "score_1": sides(-0.5, 0.5, 0.0)[v]}, "scores", ties=True),
    Case("Chatbot Arena", lambda p, a, b, v: {
        "question_id": p, "model_a": "x", "model_b": "y", "winner": sides("model_a", "model_b", "tie (bothbad)")[v],
        "conversation_a": talk(p, a), "conversation_b": talk(p, b), "turn": 1, "language": "English"},
         "model_a/model_b/tie", ties=True),
    Case("Chatbot Arena, 140k", lambda p, a, b, v: {
        "id": p, "model_a": "x", "model_b": "y", "winner": sides("model_a", "model_b", "both_bad")[v],
        "conversation_a": [{**user(p), "content": parts(p)}, {**assistant(a), "content": parts(a)}],
        "conversation_b": [{**user(p), "content": parts(p)}, {**assistant(b), "content": parts(b)}]},
         "model_a/model_b/tie", ".parquet", ties=True),
    Case("LMSYS on Kaggle", lambda p, a, b, v: {
        "id": p, "model_a": "x", "model_b": "y", "prompt": json.dumps([p]), "response_a": json.dumps([a]),
        "response_b": json.dumps([b]), "winner_model_a": sides(1, 0, 0)[v], "winner_model_b": sides(0, 1, 0)[v],
        "winner_tie": sides(0, 0, 1)[v]}, "a column each", ".csv", ties=True),
    Case("MT-Bench, human", lambda p, a, b, v: {
        "question_id": p, "model_a": "x", "model_b": "y", "winner": sides("model_a", "model_b", "tie")[v],
        "judge": "author_0", "conversation_a": talk(p, a, "Again?", "more a"), "turn": 1,
        "conversation_b": talk(p, b, "Again?", "more b")}, "model_a/model_b/tie", ties=True),
    Case("AlpacaFarm", side_by_side("output_1", "output_2", "preference", sides(1, 2), instruction=asks, input="",
         raw_preference=3), "1/2", ".json"),
    Case("AlpacaEval", side_by_side("output_1", "output_2", "preference", sides(1.1, 1.9, 1.5), instruction=asks,
         generator_1="x", generator_2="y", annotator="z"), "1 to 2", ".json", ties=True),
    Case("RewardBench", chosen(lambda p, a, b: {"id": p, "prompt": p, "chosen": a, "chosen_model": "x", "rejected": b,
         "rejected_model": "y", "subset": "own"}), columns="prompt=prompt,chosen=chosen,rejected=rejected"),
    Case("RewardBench 2", chosen(lambda p, a, b: {"id": p, "prompt": p, "chosen": none_or(a, [a]), "rejected":
         none_or(b, [b]), "num_correct": 1, "num_incorrect": 1, "subset": "Focus"}), container=".parquet"),
    Case("M-RewardBench", chosen(lambda p, a, b: {"id": p, "prompt": p, "chosen": a, "rejected": b, "language":
         "deu_Latn", "chosen_model": "x", "rejected_model": "y", "source": "easy", "category": "Chat"})),
    Case("RM-Bench", chosen(lambda p, a, b: {"id": p, "prompt": p, "chosen": none_or(a, [a]), "rejected": none_or(b,
         [b]), "domain": "chat"}), container=".json"),
    Case("JudgeBench", side_by_side("response_A", "response_B", "label", sides("A>B", "B>A", "A=B"), pair_id=asks,
         question=asks, source="mmlu", response_model="x"), "A>B/B>A/A=B", ties=True,
         columns="prompt=question,first=response_A,second=response_B,winner=label"),
    Case("PPE", side_by_side("response_1", "response_2", "winner", sides("model_a", "model_b", "tie"), prompt=asks,
         question_id=asks, model_name_1="x", model_name_2="y", language="English", conv_metadata={"turns": 1}),
         "model_a/model_b/tie", ".parquet", ties=True),
    Case("PPE, best of K", lambda p, a, b, v: {"question_id": p, "prompt": p, "model_name": "x", "response_1": a,
         "response_2": b, "scores": sides([True, False], [False, True], [True, True])[v], "mean_score": 0.5},
         "true/false", ".parquet", ties=True),
    Case("NeMo-RL, preferences", lambda p, a, b, v: {"context": [user(p)], "completions": [
        {"rank": sides(0, 1, 0)[v], "completion": [assistant(a)]},
        {"rank": sides(1, 0, 0)[v], "completion": [assistant(b)]}]}, "rank from 0", ties=True),
    Case("OpenAI, preference fine-tuning", chosen(lambda p, a, b: {
        "input": {"messages": [user(p)], "tools": [], "parallel_tool_calls": True},
        "preferred_output": none_or(a, [assistant(a)]), "non_preferred_output": none_or(b, [assistant(b)])})),
    Case("TRL", chosen(lambda p, a, b: {"prompt": [user(p)], "chosen": none_or(a, [assistant(a)]), "rejected":
         none_or(b, [assistant(b)])}), container=".parquet"),
    Case("LLaMA-Factory, Alpaca", chosen(lambda p, a, b: {"instruction": p, "input": "", "chosen": a, "rejected": b}),
         container=".json"),
    Case("LLaMA-Factory, history", chosen(lambda p, a, b: {"instruction": p, "input": "", "system": "Be brief.",
         "history": [["Hello.", "Yes?"]], "chosen": a, "rejected": b}), container=".json"),
    Case("LLaMA-Factory, ShareGPT", chosen(lambda p, a, b: {
        "conversations": [{"from": "human", "value": p}], "chosen": none_or(a, {"from": "gpt", "value": a}),
        "rejected": none_or(b, {"from": "gpt", "value": b})}), container=".json"),
    Case("axolotl", chosen(lambda p, a, b: {"question": p, "chosen_response": a, "rejected_response": b})),
    Case("axolotl, chat", chosen(lambda p, a, b: {"messages": [user(p)], "chosen": none_or(a, assistant(a)),
         "rejected": none_or(b, assistant(b))})),
    Case("ms-swift", chosen(lambda p, a, b: {"messages": talk(p, a) if a else [user(p)], "rejected_response": b}),
         nulls=False),
    Case("ms-swift, messages", chosen(lambda p, a, b: {"messages": none_or(a, talk(p, a)), "rejected_messages":
         none_or(b, talk(p, b))})),
    Case("distilabel", lambda p, a, b, v: {"instruction": p, "generations": [a, b], "ratings": sides([5.0, 2.0],
         [2.0, 5.0], [3.0, 3.0])[v], "rationales": ["x", "y"], "model_name": "z"}, "ratings", ".parquet", ties=True),
    Case("distilabel, pairs", distilabel_pair, container=".parquet", ties=True,
         columns="system=system,prompt=input,chosen=chosen,rejected=rejected,tie=status"),
    Case("Argilla 2", lambda p, a, b, v: {"id": p, "status": "completed", "prompt": p, "response1": a, "response2": b,
         "preference.responses": sides(["response1"], ["response2"])[v], "preference.responses.users": ["u"],
         "preference.suggestion": None}, "names of columns"),
    Case("Label Studio", lambda p, a, b, v: {
        "id": 1, "data": {"prompt": p, "answer1": a, "answer2": b}, "annotations": [{"id": 5, "result": [
            {"from_name": "c", "to_name": "answer1,answer2", "type": "pairwise",
             "value": {"selected": sides("left", "right")[v]}}]}] if v else []}, "left/right", ".json"),
    Case("Label Studio, JSON_MIN", lambda p, a, b, v: {"id": 1, "prompt": p, "answer1": a, "answer2": b,
         "comparison": {"selected": sides("left", "right")[v]}, "annotator": 1}, "left/right", ".json"),
    Case("comparisons of summaries", lambda p, a, b, v: {
        "info": {"id": "t3_1", "post": p, "title": "t", "subreddit": "r"}, "summaries": [
            {"text": a, "policy": "sup2", "note": None}, {"text": b, "policy": "ref", "note": None}],
        "choice": sides(0, 1)[v], "worker": "w", "batch": "b", "split": "train", "extra": {"confidence": 3}}, "0/1"),
    Case("OASST", lambda p, a, b, v: (p, a, b, v), "rank from 0", whole=oasst),
    Case("OASST, trees", lambda p, a, b, v: oasst_tree(p, a, b, v), "rank from 0"),
    Case("scores of both", chosen(lambda p, a, b: {"prompt": p, "chosen": a, "rejected": b, "score_chosen": 8.0,
         "score_rejected": 5.0}), container=".csv"),
    Case("chats in cells", chosen(lambda p, a, b: {
        "prompt": json.dumps([user(p)]), "chosen": none_or(a, json.dumps([assistant(a)])),
        "rejected": none_or(b, json.dumps([assistant(b)]))}), container=".csv"),
    Case("chats in cells, of Python", chosen(lambda p, a, b: {
        "prompt": repr([user(p)]), "chosen": none_or(a, repr([assistant(a)])),
        "rejected": none_or(b, repr([assistant(b)]))}), container=".csv"),
    Case("names of models", lambda p, a, b, v: {
        "question": p, "model_a": "gpt" if len(p) % 2 else "llama", "model_b": "llama" if len(p) % 2 else "gpt",
        "response_a": a, "response_b": b, "winner": sides(*(("gpt", "llama") if len(p) % 2 else ("llama", "gpt")),
                                                          "tie")[v]}, "names of models", ".csv", ties=True),
]  # fmt: skip


LABELS = [
    Case("KTO of TRL", lambda p, r, good: {"prompt": p, "completion": r, "label": good}, "true/false",
         columns="prompt=prompt,response=completion,label=label"),
    Case("KTO, CSV", lambda p, r, good: {"prompt": p, "completion": r, "label": good}, "true/false", ".csv"),
    Case("KTO of ms-swift", lambda p, r, good: {"messages": talk(p, r), "label": good}, "true/false"),
    Case("KTO of LLaMA-Factory", lambda p, r, good: {
        "conversations": [{"from": "human", "value": p}, {"from": "gpt", "value": r}], "label": good}, "true/false",
         ".json"),
    Case("labels -1 and 1", lambda p, r, good: {"prompt": p, "completion": r, "label": 1 if good else -1}, "1/-1",
         nulls=False),
    Case("labels 0 and 1", lambda p, r, good: {"prompt": p, "response": r, "label": int(good)}, "1/0", ".csv",
         nulls=False, columns="prompt=prompt,response=response,label=label"),
    Case("words", lambda p, r, good: {"question": p, "output": r, "label": "yes" if good else "no"}, "yes/no", ".tsv",
         nulls=False, columns="prompt=question,response=output,label=label:yes/no"),
    Case("BeaverTails", lambda p, r, good: {"prompt": p, "response": r, "category": {"a": False}, "is_safe": good},
         "true/false"),
    Case("CJE", lambda p, r, good: {"prompt_id": p, "prompt": p, "response": r, "judge_score": 0.5,
         "oracle_label": none_or(good, float(good or 0))}, "number"),
]  # fmt: skip

RATED = [
    Case("HelpSteer2", lambda p, r, good: {"prompt": p, "response": r, "helpfulness": none_or(good, 4 if good else 0),
         "correctness": none_or(good, 3 if good else 1), "coherence": none_or(good, 4), "complexity": none_or(good, 2),
         "verbosity": none_or(good, 2)}, "0..4"),
]  # fmt: skip
"""Single responses with ratings by name."""


def sampled(rows):
    """Samples of inspect_ai in the object that holds them."""
    return {"status": "success", "eval": {"task": "t"}, "samples": rows}


def trace(prompt, response, reward):
    """A trace of verifiers: its messages are a chain of nodes."""
    nodes = [{"message": user(prompt), "parent": None}, {"message": assistant(response), "parent": 0, "sampled": True}]
    return {"nodes": nodes, "rewards": {"correct": {"score": reward, "weight": 1.0}}, "metrics": {"turns": 1.0},
            "stop_condition": "stop", "num_output_tokens": 3}  # fmt: skip


LOGS = [
    Case("TRL", lambda p, r, reward, ref: {"step": 1, "prompt": p, "completion": r, "accuracy": reward,
         "advantage": reward - 0.5}, "", ".parquet"),
    Case("verl", lambda p, r, reward, ref: {"input": p, "output": r, "gts": ref, "score": reward, "step": 1,
         "acc": reward}),
    Case("OpenRLHF", lambda p, r, reward, ref: {"query": p + r, "prompt": p, "label": ref, "reward": reward}),
    Case("verifiers", lambda p, r, reward, ref: {"example_id": 0, "prompt": [user(p)], "completion": [assistant(r)],
         "answer": ref, "reward": reward, "task": "t"}),
    Case("inspect_ai", lambda p, r, reward, ref: {"id": 1, "epoch": 1, "input": p, "target": ref,
         "messages": talk(p, r), "output": {"choices": [{"message": assistant(r), "stop_reason": "stop"}]},
         "scores": {"match": {"value": "C" if reward else "I"}}}, "C/I", ".json", whole=sampled),
    Case("inspect_ai, .eval", lambda p, r, reward, ref: {"id": 1, "epoch": 1, "input": p, "target": ref,
         "messages": talk(p, r), "output": {"choices": [{"message": assistant(r), "stop_reason": "stop"}]},
         "scores": {"match": {"value": "C" if reward else "I"}}}, "C/I", ".eval"),
    Case("traces of prime-rl", lambda p, r, reward, ref: {"run": {"work": {"step": 3}}, "traces": [
         trace(p, r, reward)]}),
    Case("traces of verifiers", lambda p, r, reward, ref: trace(p, r, reward)),
    Case("NeMo-Gym", lambda p, r, reward, ref: {"responses_create_params": {"input": [user(p)]}, "reward": reward,
         "response": {"output": [{"type": "message", "role": "assistant",
                                  "content": [{"type": "output_text", "text": r}]}]}, "expected_answer": ref}),
    Case("NeMo-RL", lambda p, r, reward, ref: {"content": [p, r], "rewards": reward, "input_lengths": 9,
         "token_loss_mask": [0, 1], "idx": 0}),
    Case("Atropos", lambda p, r, reward, ref: {"tokens": [[1], [2]], "masks": [[1], [2]], "scores": [reward, -1.0],
         "messages": [talk(p, r), talk(p, "other")], "advantages": None}),
    Case("ART", lambda p, r, reward, ref: {"messages": talk(p, r), "reward": reward, "metrics": {"x": 1}, "logs": []}),
    Case("SkyRL", lambda p, r, reward, ref: {"input_prompt": p, "output_response": r, "score": reward,
         "stop_reason": "stop", "env_class": "gsm8k", "env_extras": {}, "data_source": "g"}),
    Case("tau-bench", lambda p, r, reward, ref: {"task_id": 0, "trial": 0, "reward": reward, "info": {},
         "traj": talk(p, r)}, "", ".json"),
    Case("tau2-bench", lambda p, r, reward, ref: {"id": p, "task_id": "0", "trial": 0, "messages": talk(p, r),
         "reward_info": {"reward": reward}, "termination_reason": "user_stop"}, "", ".json",
         whole=lambda rows: {"timestamp": "t", "tasks": [{"id": "0"}], "simulations": rows}),
    Case("SWE-smith", lambda p, r, reward, ref: {"messages": talk(p, r), "instance_id": "x", "resolved": bool(reward),
         "model": "m", "traj_id": "t", "patch": "d"}, "true/false", ".parquet"),
    Case("SWE-agent", lambda p, r, reward, ref: {"instance_id": "x", "model_name": "m", "target": bool(reward),
         "exit_status": "submitted", "generated_patch": "d", "trajectory": [
             {"role": "user", "text": p, "system_prompt": None}, {"role": "ai", "text": r, "system_prompt": None}]},
         "true/false", ".parquet"),
    Case("lm-eval", lambda p, r, reward, ref: {"doc_id": 0, "doc": {"question": p}, "target": ref, "arguments":
         {"gen_args_0": {"arg_0": p, "arg_1": {}}}, "resps": [[r]], "filtered_resps": [r], "filter": "none",
         "metrics": ["exact_match"], "exact_match": reward}),
    Case("reasoning-gym", lambda p, r, reward, ref: {"question": p, "expected_answer": ref, "completions": [
         {"model_answer": r, "full_model_response": r, "score": reward}]}, "", ".json",
         whole=lambda rows: {"model": "m", "categories": [
             {"name": "c", "datasets": [{"name": "d", "results": rows}]}]}),
    Case("Qwen2.5-Math", lambda p, r, reward, ref: {"idx": 0, "question": p, "gt_cot": "x", "gt": ref, "answer": "x",
         "solution": "x", "code": [r], "pred": ["4"], "report": [None], "score": [bool(reward)]}, "true/false"),
    Case("question, answer, prediction, score", lambda p, r, reward, ref: {"question": p, "answer": ref,
         "prediction": r, "score": reward}, "", ".csv",
         columns="prompt=question,response=prediction,reward=score,reference=answer"),
    Case("completions with rewards", lambda p, r, reward, ref: {"prompt": p, "completions": [r], "rewards": [reward]}),
    Case("rewards as a map", lambda p, r, reward, ref: {"prompt": p, "response": r, "rewards":
         {"accuracy": reward, "format": 0.0}}),
    Case("rewards as a list", lambda p, r, reward, ref: {"prompt": p, "response": r, "rewards": [reward, 0.0]}),
    Case("promptfoo", lambda p, r, reward, ref: {"prompt": {"raw": p, "label": "x"}, "vars": {}, "response":
         {"output": r}, "score": reward, "success": bool(reward)}, "", ".json", whole=lambda rows: {
             "evalId": "e", "results": {"version": 3, "prompts": [{"raw": "x"}], "results": rows}}),
    Case("Langfuse", lambda p, r, reward, ref: {"id": "t", "name": "chat", "input": {"messages": [user(p)]},
         "output": assistant(r), "scores": [{"name": "quality", "value": reward}], "timestamp": "x"}),
    Case("Phoenix", lambda p, r, reward, ref: {"context.span_id": "1", "attributes.input.value": p,
         "attributes.output.value": r, "eval.Correctness.score": reward, "eval.Correctness.label": "x"}, "", ".csv",
         columns="attributes.input.value=attributes.input.value,attributes.output.value=attributes.output.value,"
         "reward=eval.Correctness.score"),
    Case("LangSmith", lambda p, r, reward, ref: {"id": "1", "inputs": {"messages": [user(p)]}, "outputs":
         {"output": r}, "feedback_stats": {"correctness": {"avg": reward}}}),
    Case("W&B, table", lambda p, r, reward, ref: [1, p, r, reward], "", ".json",
         whole=lambda rows: {"columns": ["step", "prompt", "response", "reward"], "data": rows}),
    Case("object with results", lambda p, r, reward, ref: {"prompt": p, "response": r, "reward": reward}, "", ".json",
         whole=lambda rows: {"run_id": "x", "results": rows}),
    Case("prompt, response, reward", lambda p, r, reward, ref: {"prompt": p, "response": r, "reward": reward}, "",
         ".arrow", columns="prompt=prompt,response=response,reward=reward"),
    Case("Anthropic", lambda p, r, reward, ref: {"messages": [user(p), {"role": "assistant", "content": [
         {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": r}]}], "reward": reward}),
    Case("ragas", lambda p, r, reward, ref: {"user_input": p, "response": r, "reference": ref,
         "retrieved_contexts": ["c"], "answer_correctness": reward}, "", ".csv"),
]  # fmt: skip
REFUSED = {
    "output of OpenAI's batches": {"id": "b", "custom_id": "r1", "response": {"status_code": 200, "body": {
        "choices": [{"message": assistant("4")}]}}, "error": None},
    "single judgments of MT-Bench": {"question_id": 1, "model": "m", "judge": ["gpt-4", "single-v1"], "user_prompt":
        "[Question]", "judgment": "Rating: [[9]]", "score": 9.0, "turn": 1},
}  # fmt: skip


def prm800k(prompt, steps, labels):
    return {"labeler": "x", "question": {"problem": prompt, "ground_truth_answer": "3"}, "label": {"steps": [
        {"completions": [{"text": text, "rating": {1: 1, 0: -1, None: None}[label], "flagged": None}],
         "human_completion": None, "chosen_completion": 0} for text, label in zip(steps, labels, strict=True)],
        "finish_reason": "solution" if all(labels) else "found_error"}}  # fmt: skip


def marked(prompt, steps, ends):
    """Steps of Math-Shepherd, each with an end."""
    return f"{prompt} " + "\n".join(f"{text} {end}" for text, end in zip(steps, ends, strict=True))


def first_wrong(labels, start=0):
    return [k for k, label in enumerate(labels, start) if label == 0]


def signed(prompt, steps, labels, names=("role", "content", "user", "assistant"), between=" "):
    """A conversation of RLHFlow: steps of the user, signs of the assistant."""
    who, what, asks, says = names
    texts = [f"{prompt}{between}{steps[0]}", *steps[1:]]
    turns = zip(texts, labels, strict=True)
    return [{who: one, what: said} for text, label in turns
            for one, said in ((asks, text), (says, "+" if label else "-"))]  # fmt: skip


STEPS = [
    Case("TRL, steps", lambda q, steps, labels: {"prompt": q, "completions": steps,
         "labels": [None if label is None else bool(label) for label in labels]}, "true/false, null",
         columns="prompt=prompt,completions=completions,labels=labels"),
    Case("PRM800K", prm800k, "rating -1, 0, 1, null"),
    Case("Math-Shepherd", lambda q, steps, labels: None if None in labels else {
         "input": marked(q, steps, ["ки"] * len(steps)), "label": marked(q, steps, ["-+"[one] for one in labels]),
         "task": "GSM8K"}, "+/-", nulls=False, columns="input=input,label=label"),
    Case("ProcessBench", lambda q, steps, labels: None if None in labels else {"id": f"gsm8k-{q}", "generator": "m",
         "problem": q, "steps": steps, "final_answer_correct": all(labels), "label": (first_wrong(labels) or [-1])[0]},
         "first error from 0, or -1", ".json", nulls=False, columns="problem=problem,steps=steps,label=label"),
    Case("PRMBench", lambda q, steps, labels: None if None in labels else {"idx": q, "original_question": "another",
         "modified_question": q, "original_process": ["x"], "modified_process": steps, "modified_steps": [1],
         "error_steps": first_wrong(labels, 1), "reason": "r", "question": "another", "classification": "c"},
         "numbers from 1", nulls=False,
         columns="prompt=modified_question,modified_process=modified_process,error_steps=error_steps"),
    Case("RLHFlow, steps", lambda q, steps, labels: None if None in labels else {
         "conversations": signed(q, steps, labels)}, "+/-", ".parquet", nulls=False,
         columns="conversations=conversations"),
    Case("RLHFlow, steps of ShareGPT", lambda q, steps, labels: None if None in labels else {
         "conversations": signed(q, steps, labels, ("from", "value", "human", "gpt"))}, "+/-", nulls=False),
    Case("solutions of guerdon", lambda q, steps, labels: {"question": q, "solution": "\n".join(steps), "steps": steps,
         "step_labels": labels, "ground_truth_answer": "3"}, "0..1, null", ".parquet",
         columns="question=question,solution=solution,steps=steps,step_labels=step_labels,reference=ground_truth_answer"),
    Case("steps by their names", lambda q, steps, labels: {"problem": q, "steps": steps, "step_labels": [
         {1: "good", 0: "bad", None: None}[label] for label in labels]}, "good/bad", ".csv",
         columns="prompt=problem,steps=steps,step_labels=step_labels"),
]  # fmt: skip
"""Solutions with labels of their steps."""
UNNUMBERED = [
    Case("RLHFlow, steps without numbers", lambda q, steps, labels: None if None in labels else {
         "conversations": signed(q, steps, labels, between="\n")}, "+/-", nulls=False,
         columns="conversations=conversations"),
]  # fmt: skip
"""The same, whose steps do not say which they are."""


def options(answer):
    """Four options, and the place of the right one."""
    texts = sorted({"3", "5", "9", answer})
    return texts, texts.index(answer)


def stdin(answer):
    """A test of LiveCodeBench."""
    return json.dumps([{"input": "", "output": answer, "testtype": "stdin"}])


def letter(answer):
    return "ABCD"[options(answer)[1]]


PROMPTS = [
    Case("GSM8K", lambda q, a: {"question": q, "answer": f"So it is.\n#### {a}"}, "####",
         columns="prompt=question,reference=answer"),
    Case("MATH", lambda q, a: {"problem": q, "level": "1", "type": "Algebra", "solution": f"It is $\\boxed{{{a}}}$."},
         "boxed", ".jsonl.gz", columns="prompt=problem,solution=solution"),
    Case("MATH-500", lambda q, a: {"problem": q, "solution": f"It is $\\boxed{{{a}}}$.", "answer": a, "subject": "x",
         "level": 1, "unique_id": "u"}, columns="prompt=problem,solution=solution,reference=answer"),
    Case("AIME", lambda q, a: {"ID": f"2024-{q}", "Problem": q, "Solution": f"so {a}", "Answer": a}, "", ".parquet",
         columns="prompt=Problem,solution=Solution,reference=Answer"),
    Case("MMLU", lambda q, a: {"question": q, "subject": "math", "choices": options(a)[0], "answer": options(a)[1]},
         "place from 0", ".parquet", columns="prompt=question,options=choices,reference=answer"),
    Case("MMLU-Pro", lambda q, a: {"question_id": 1, "question": q, "options": options(a)[0], "answer": letter(a),
         "answer_index": options(a)[1], "cot_content": "", "category": "math", "src": "x"}, "letter",
         columns="prompt=question,options=options,reference=answer"),
    Case("GPQA", lambda q, a: {"Question": q, "Correct Answer": a, "Incorrect Answer 1": "3", "Incorrect Answer 2": "5",
         "Incorrect Answer 3": "9", "Subdomain": "x"}, "text", ".csv"),
    Case("HumanEval", lambda q, a: {"task_id": f"HumanEval/{q}", "prompt": f'def f():\n    """{q}"""\n',
         "canonical_solution": f"    return {a!r}\n", "test": f"def check(g):\n    assert g() == {a!r}\n",
         "entry_point": "f"}, "tests", ".jsonl.gz"),
    Case("MBPP", lambda q, a: {"task_id": 1, "text": q, "code": f"def f():\n  return {a!r}",
         "test_list": [f"assert f() == {a!r}"], "test_setup_code": "", "challenge_test_list": []}, "tests"),
    Case("LiveCodeBench", lambda q, a: {"question_title": "t", "question_content": q, "platform": "x",
         "question_id": "1", "starter_code": "", "public_test_cases": stdin(a), "private_test_cases": stdin(a),
         "metadata": "{}"}, "tests"),
    Case("PRIME and verl", lambda q, a: {"data_source": "gsm8k", "prompt": [user(q)], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": a}, "extra_info": {"split": "train", "index": 0}}, "",
         ".parquet"),
    Case("SimpleQA", lambda q, a: {"metadata": "{'topic': 'x'}", "problem": q, "answer": a}, "text", ".csv",
         columns="prompt=problem,reference=answer"),
    Case("OpenMathInstruct-2", lambda q, a: {"problem": q, "generated_solution": f"so \\boxed{{{a}}}",
         "expected_answer": a, "problem_source": "x"}, "", ".parquet",
         columns="prompt=problem,solution=generated_solution,reference=expected_answer"),
]  # fmt: skip
"""Questions with true answers."""
UNANSWERED = [
    Case("IFEval", lambda q, a: {"key": 1, "prompt": q, "instruction_id_list": ["punctuation:no_comma"],
         "kwargs": [{"n": 1}]}),
    Case("HealthBench", lambda q, a: {"prompt": [user(q)], "prompt_id": q, "rubrics": [
         {"criterion": a, "points": 5, "tags": ["x"]}], "example_tags": ["x"]}),
    Case("Alpaca", lambda q, a: {"instruction": q, "input": "", "output": a}, "", ".json",
         columns="instruction=instruction,input=input,output=output"),
    Case("Dolly", lambda q, a: {"instruction": q, "context": f"About {a}.", "response": a, "category": "qa"}, "",
         columns="instruction=instruction,context=context,response=response,category=category"),
    Case("OpenAI, fine-tuning", lambda q, a: {"messages": [{"role": "system", "content": "Be brief."}, *talk(q, a)]},
         columns="messages=messages"),
    Case("ShareGPT", lambda q, a: {"id": q, "conversations": [{"from": "human", "value": q},
         {"from": "gpt", "value": a}]}, "", ".json", columns="messages=conversations"),
    Case("chats in cells of text", lambda q, a: {"messages": json.dumps(talk("Hello.", "Yes?", q, a))}, "", ".csv",
         columns="messages=messages"),
    Case("history", lambda q, a: {"instruction": q, "input": "", "output": a, "system": "Be brief.",
         "history": [["Hello.", "Yes?"]]}, "", ".json",
         columns="instruction=instruction,input=input,output=output,system=system,history=history"),
]  # fmt: skip
"""Questions without a true answer that can be compared."""


ASKED = [("Name a colour?", "first"), ("And a number?", "second"), ("Or a town?", "first"), ("A river?", "second"),
         ("A lake then?", "tie"), ("A hill?", None)]  # fmt: skip
TEXTS = {prompt: (f"Red is one: {prompt}", f"Seven is one, or more: {prompt}") for prompt, _ in ASKED}
RESPONSES = [("Name a colour?", "Red is one.", 1.0, "red"), ("And a number?", "Blue.", 0.0, "seven"),
             ("Name a colour?", "Seven is one.", 0.0, "red"), ("A town?", "Rome, say.", 1.0, "Rome")]  # fmt: skip
GOOD = [("Name a colour?", "Red is one.", True), ("And a number?", "Blue.", False), ("A town?", "Rome.", True),
        ("A lake?", "I do not know.", None), ("A hill?", "Seven.", False)]  # fmt: skip
STEPPED = [
    ("Add 1 and 2.", ["Step 1: 1+2=3.", "Step 2: It is 3."], [1, 1]),
    ("Add 2 and 2.", ["Step 1: 2+2=4.", "Step 2: It is 5."], [1, 0]),
    ("Add 5 and 5.", ["Step 1: 5+5=11."], [0]),
    ("Add 3 and 4.", ["Step 1: 3+4=7.", "Step 2: That is odd.", "Step 3: It is 8."], [1, 1, 0]),
    ("Add 0 and 0.", ["Step 1: 0+0=0.", "Step 2: It is 0."], [1, None]),
]
PLAIN_STEPPED = [(asked, [step.partition(": ")[2] for step in steps], labels) for asked, steps, labels in STEPPED]
ANSWERS = [("What is 2+2?", "4"), ("Which agent is it?", "007"), ("What is 5-5?", "0"), ("Is it (A) or (B)?", "7")]
GROUPS = (
    (STEPS, [one for one in STEPPED if None not in one[2]]),
    (UNNUMBERED, [one for one in PLAIN_STEPPED if None not in one[2]]),
    (PROMPTS, ANSWERS),
    (UNANSWERED, ANSWERS),
    (PAIRS, [(prompt, *TEXTS[prompt], verdict) for prompt, verdict in ASKED[:4]]),
    ((*LABELS, *RATED), [one for one in GOOD if one[2] is not None]),
    (LOGS, RESPONSES),
)
"""Layouts with what their rows are made from."""
