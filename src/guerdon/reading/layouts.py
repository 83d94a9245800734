"""Layouts that tools and data sets are known to write, recognised by their columns.

A layout names the columns that tell it, and what they are for where the table of names (`roles.py`) would say something
else or nothing. Where rows are nested, a function unwraps a record into rows whose keys are roles (`nested.py`).

    layout = layout_of({"history", "human_ref_A", "human_ref_B", "labels"})
    layout.name, layout.roles["winner"]                    # "SHP", "labels:1/0"
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from guerdon.reading import nested
from guerdon.reading.roles import ALL_ROLES, Role

Row = Mapping[str, Any]
Kind = Literal["pairs", "labels", "steps", "prompts", "log"]


class RowLayout(NamedTuple):
    """How the rows of a tool or a data set are read.

    Attributes:
        name: of what wrote it, in words.
        kind: what its rows are.
        keys: columns that all of its files have; `a.b` is a key of a map.
        roles: column by role, `column:coding` where the coding is known; others are found by their names.
        unwrap: a record as rows whose keys are roles, and `parts`, a map of further rewards; None: it is a row itself.
        whole: all records of a file as such rows, where one row needs others.
        without: columns that none of its files has.
        shows: whether a row is like those of the layout, where the names of columns do not tell.
        parts: further columns of numbers that are rewards: those named like one, or all; `sum`: all, and the reward is
            their sum.
        rescored: a record with a new reward of this name of its rows; None: it is a column of the record.
        refused: why it is not read.
        maps: columns of lists or maps that are called like texts; as texts of these they are decoded.
        more: further columns that are read, and have no role.
    """

    name: str
    kind: Kind
    keys: tuple[str, ...]
    roles: Mapping[Role, str] = {}
    unwrap: Callable[[Row], list[Row]] | None = None
    whole: Callable[[Iterable[Row]], Iterable[Row]] | None = None
    without: tuple[str, ...] = ()
    shows: Callable[[Row], bool] | None = None
    parts: Literal["named", "all", "sum"] = "named"
    rescored: Callable[[Row, str, Sequence[float | None]], Row] | None = None
    refused: str = ""
    maps: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


OF_SOLUTIONS = (
    "id", "step_labels", "step_rewards", "is_correct", "ground_truth_answer", "answer", "separator", "meta",
    "conversation", "tools", "unclosed", "step_ends", "rest", "label_mask", "solution",
)  # fmt: skip
"""Columns that a solution in steps may have, in any layout."""
PLAIN = RowLayout("plain columns", "log", ())
"""Of rows that no layout of the table has: their columns are found by their names."""


def columns_of(rows: Iterable[Row]) -> set[str]:
    """The columns in which something is in one of these rows, and those of keys of maps behind a dot."""
    columns: set[str] = set()
    for row in rows:
        columns.update(key for key, value in row.items() if value is not None)
        inner = ((key, value) for key, value in row.items() if isinstance(value, Mapping))
        columns.update(f"{key}.{name}" for key, value in inner for name in value)
    return columns


def layout_of(columns: Collection[str], rows: Sequence[Row] = (), *, kind: Kind | None = None) -> RowLayout:
    """The first layout of the table whose columns are all there, `PLAIN` where there is none.

    Args:
        columns: names, and those of keys of maps behind a dot.
        rows: the first of the data; without them no layout is found that more than its columns identify.
        kind: of the layout; None: of any.
    """
    known = (one for one in LAYOUTS if kind in (None, one.kind))
    return next((one for one in known if _fits(one, columns) and _is_shown(one, rows)), PLAIN)


def names_of(layout: RowLayout) -> set[str]:
    """The names of columns that a layout knows; where rows are nested, a role is the name of a column, too."""
    said = (column.partition(":")[0] for column in layout.roles.values())
    known = {*layout.keys, *filter(None, said)}
    roles = ALL_ROLES if layout.unwrap or layout.whole else ()
    return known | {name.partition(".")[0] for name in known} | {*roles}


def _fits(layout: RowLayout, columns: Collection[str]) -> bool:
    return all(key in columns for key in layout.keys) and not any(key in columns for key in layout.without)


def _is_shown(layout: RowLayout, rows: Sequence[Row]) -> bool:
    """Whether every row is like those of a layout; sets of questions and of steps may stand in one file.

    A row with a null in one of the layout's columns shows nothing.
    """
    top = {key.partition(".")[0] for key in layout.keys}
    if layout.kind in ("prompts", "steps") and not all(key in row for row in rows for key in top):
        return False
    if layout.kind not in ("prompts", "steps") and layout.shows is None:
        return True
    full = [row for row in rows if all(row.get(key) is not None for key in top)]
    return bool(full) and (layout.shows is None or all(map(layout.shows, full)))


TEXT_RUN = "a run of guerdon that answers prompts"
LAYOUTS: tuple[RowLayout, ...] = (
    # logs of trainers and evaluations
    RowLayout("completions logged by TRL", "log", ("step", "prompt", "completion", "advantage"),
              {"prompt": "prompt", "response": "completion"}, without=("reward",), parts="sum"),
    RowLayout("a dump of verl", "log", ("input", "output", "score", "step"),
              {"prompt": "input", "response": "output", "reward": "score"}, parts="all"),
    RowLayout("traces of verifiers or prime-rl", "log", ("traces",), unwrap=nested.traces,
              rescored=nested.rescored_trace),
    RowLayout("traces of verifiers or prime-rl", "log", ("nodes", "rewards"), unwrap=nested.traces,
              rescored=nested.rescored_trace),
    RowLayout("results of verifiers", "log", ("example_id", "completion", "reward"), unwrap=nested.results),
    RowLayout("a log of inspect_ai", "log", ("epoch", "input", "target", "messages"), unwrap=nested.inspect_sample,
              rescored=nested.rescored_sample, maps=("output",)),
    RowLayout("rollouts of NeMo-Gym", "log", ("responses_create_params", "response"), unwrap=nested.gym,
              maps=("response",)),
    RowLayout("inputs of a reward function of OpenRLHF", "log", ("query", "prompt", "reward"), unwrap=nested.query),
    RowLayout("responses of a run of guerdon", "log", ("tokens", "rewards", "outcome"), unwrap=nested.shown),
    RowLayout("a run of guerdon", "log", ("return/combined", "success", "env"), unwrap=nested.episode),
    RowLayout(TEXT_RUN, "log", ("return/combined", "success"), unwrap=nested.episode),
    RowLayout("conversations of a run of guerdon", "log", ("step", "group", "messages", "calls", "truncated"),
              unwrap=nested.conversation),
    RowLayout("groups of Atropos", "log", ("tokens", "masks", "scores", "messages"), unwrap=nested.atropos),
    RowLayout("batches of NeMo-RL", "log", ("content", "rewards", "token_loss_mask"), unwrap=nested.nemo_rl),
    RowLayout("results of tau-bench", "log", ("task_id", "trial", "traj", "reward"), {"messages": "traj"}),
    RowLayout("simulations of tau2-bench", "log", ("task_id", "trial", "messages", "reward_info"),
              {"reward": "reward_info.reward", "truncated": "termination_reason"}),
    RowLayout("trajectories of SWE-smith", "log", ("messages", "instance_id", "resolved"),
              {"reward": "resolved", "truth": "resolved", "group": "instance_id"}),
    RowLayout("trajectories of SWE-agent", "log", ("instance_id", "trajectory", "target", "exit_status"),
              unwrap=nested.swe_agent),
    RowLayout("samples of lm-eval", "log", ("doc_id", "doc", "resps", "target"), {"prompt": "arguments"},
              unwrap=nested.lm_eval),
    RowLayout("an evaluation of reasoning-gym", "log", ("name", "datasets"), unwrap=nested.reasoning_gym),
    RowLayout("the harness of Qwen2.5-Math", "log", ("question", "gt", "code", "pred", "score"),
              unwrap=nested.qwen_math),
    RowLayout("results of promptfoo", "log", ("prompt.raw", "response.output", "score"),
              {"prompt": "prompt.raw", "response": "response.output", "reward": "score", "truth": "success"},
              unwrap=nested.promptfoo),
    RowLayout("an export of Langfuse", "log", ("input", "output", "scores", "timestamp"), unwrap=nested.langfuse),
    RowLayout("completions with rewards", "log", ("prompt", "completions", "rewards"), unwrap=nested.listed),
    RowLayout("plain columns", "log", ("responses", "rewards"), unwrap=nested.listed, without=("reward",)),
    RowLayout("spans of Phoenix", "log", ("attributes.input.value", "attributes.output.value"), unwrap=nested.phoenix),
    RowLayout("runs of LangSmith", "log", ("inputs", "outputs", "feedback_stats"), unwrap=nested.langsmith),
    RowLayout("output of OpenAI's batches", "log", ("custom_id", "response.body"),
              refused="it has no prompt: join it with the input file on custom_id"),
    RowLayout("single judgments of MT-Bench", "log", ("judge", "user_prompt", "judgment", "turn"),
              refused="it has no response: join it with the model's answers on question_id"),
    RowLayout("an evaluation of SkyRL", "log", ("input_prompt", "output_response", "score", "env_class"),
              {"prompt": "input_prompt", "response": "output_response", "reward": "score", "truncated": "stop_reason"}),
    RowLayout("an evaluation of ragas", "log", ("user_input", "retrieved_contexts", "response"),
              {"prompt": "user_input", "passage": "retrieved_contexts"}, parts="sum"),
    # preferences
    RowLayout("HelpSteer3", "pairs", ("context", "response1", "response2", "overall_preference"),
              {"messages": "context", "winner": "overall_preference:below 0: first"}),
    RowLayout("HelpSteer2 preference", "pairs", ("response_1", "response_2", "preference_strength"),
              {"winner": "preference_strength:below 0: first"}),
    RowLayout("PKU-SafeRLHF", "pairs", ("response_0", "response_1", "better_response_id"),
              {"winner": "better_response_id:0/1"}),
    RowLayout("Chatbot Arena", "pairs", ("conversation_a", "conversation_b", "winner"),
              {"first": "conversation_a", "second": "conversation_b"}),
    RowLayout("PPE", "pairs", ("response_1", "response_2", "winner", "conv_metadata"), more=("language",)),
    RowLayout("PPE, best of K", "pairs", ("response_1", "response_2", "scores"), unwrap=nested.numbered,
              more=("language",)),
    RowLayout("LMSYS on Kaggle", "pairs",
              ("prompt", "response_a", "response_b", "winner_model_a", "winner_model_b", "winner_tie"),
              unwrap=nested.lmsys),
    RowLayout("JudgeBench", "pairs", ("pair_id", "response_A", "response_B", "label"), {"winner": "label"}),
    RowLayout("SHP", "pairs", ("history", "human_ref_A", "human_ref_B", "labels"),
              {"prompt": "history", "winner": "labels:1/0"}),
    RowLayout("WebGPT comparisons", "pairs", ("question", "answer_0", "answer_1", "score_0", "score_1"),
              {"first_score": "score_0", "second_score": "score_1"}, maps=("question",)),
    RowLayout("AlpacaFarm", "pairs", ("instruction", "output_1", "output_2", "preference", "raw_preference"),
              {"winner": "preference:1/2"}),
    RowLayout("AlpacaEval", "pairs", ("instruction", "output_1", "output_2", "preference"),
              {"winner": "preference:1..2"}),
    RowLayout("distilabel", "pairs", ("instruction", "generations", "ratings"), without=("chosen",)),
    RowLayout("VL-RewardBench", "pairs", ("query", "response", "human_ranking"),
              {"responses": "response", "ranks": "human_ranking"}, maps=("response",)),
    RowLayout("preference fine-tuning of OpenAI", "pairs", ("input", "preferred_output", "non_preferred_output"),
              {"messages": "input.messages", "tools": "input.tools"}),
    RowLayout("ms-swift", "pairs", ("messages", "rejected_response"), unwrap=nested.last_is_chosen,
              without=("chosen",)),
    RowLayout("ms-swift", "pairs", ("messages", "rejected_messages"),
              {"chosen": "messages", "rejected": "rejected_messages"}),
    RowLayout("LLaMA-Factory", "pairs", ("conversations", "chosen", "rejected"), {"messages": "conversations"}),
    RowLayout("RewardBench 2", "pairs", ("prompt", "chosen", "rejected", "num_correct", "num_incorrect"),
              maps=("chosen", "rejected")),
    RowLayout("RM-Bench", "pairs", ("id", "prompt", "chosen", "rejected", "domain"), maps=("chosen", "rejected")),
    RowLayout("Argilla", "pairs", ("preference.responses",), unwrap=nested.argilla),
    RowLayout("Label Studio", "pairs", ("data", "annotations"), unwrap=nested.label_studio),
    RowLayout("Label Studio, JSON_MIN", "pairs", ("comparison.selected",), {"winner": "comparison.selected"}),
    RowLayout("comparisons of summaries", "pairs", ("info", "summaries", "choice"), unwrap=nested.summaries,
              maps=("summaries",)),
    RowLayout("trees of OASST", "pairs", ("message_id", "parent_id", "text", "role"), whole=nested.oasst),
    RowLayout("trees of OASST", "pairs", ("message_tree_id", "prompt.replies"), unwrap=nested.oasst_tree),
    RowLayout("UltraFeedback binarized", "pairs", ("prompt", "prompt_id", "chosen", "rejected", "messages"),
              {"prompt": "prompt", "messages": ""}),
    # labels
    RowLayout("HelpSteer2", "labels", ("prompt", "response", "helpfulness"), {}),
    RowLayout("BeaverTails", "labels", ("prompt", "response", "is_safe"), {"label": "is_safe"}),
    RowLayout("labels of guerdon annotate", "labels", ("oracle_label", "draw", "draw_probability", "pool"),
              {"label": "oracle_label:number", "reward": "judge_score", "reference": ""},
              more=("draw", "draw_probability", "pool")),
    RowLayout("CJE", "labels", ("oracle_label",), {"label": "oracle_label:number", "reward": "judge_score"}),
    RowLayout("CJE", "log", ("judge_score", "oracle_label"), {"reward": "judge_score", "truth": "oracle_label"}),
    # steps
    RowLayout("training rows of guerdon", "steps", ("input_text", "target_text"),
              {"steps": "input_text", "step_labels": "target_text"},
              more=("reward_value",)),
    RowLayout("TRL, steps", "steps", ("prompt", "completions", "labels"),
              {"steps": "completions", "step_labels": "labels"}, shows=nested.has_step_labels),
    RowLayout("PRMBench", "steps", ("modified_process", "error_steps"),
              {"prompt": "modified_question", "steps": "modified_process", "step_labels": "error_steps"},
              more=("classification", "reason", "modified_steps", "idx")),
    RowLayout("Math-Shepherd", "steps", ("input", "label"), {"steps": "input", "step_labels": "label"},
              shows=nested.has_step_marks, more=("task", "question_end")),
    RowLayout("ProcessBench", "steps", ("problem", "steps", "label"),
              {"prompt": "problem", "steps": "steps", "step_labels": "label", "truth": "final_answer_correct"},
              more=("generator",)),
    RowLayout("PRM800K", "steps", ("question.problem", "label.steps"),
              {"prompt": "question.problem", "steps": "label.steps", "reference": "question.ground_truth_answer"},
              more=("labeler", "timestamp", "generation")),
    RowLayout("solutions of guerdon", "steps", ("question", "steps"),
              {"prompt": "question", "steps": "steps", "reference": "ground_truth_answer", "truth": "is_correct"},
              shows=nested.has_own_steps),
    RowLayout("RLHFlow, steps", "steps", ("conversations",), {"steps": "conversations"}, shows=nested.has_signed_turns),
    RowLayout("RLHFlow, steps", "steps", ("messages",), {"steps": "messages"}, shows=nested.has_signed_turns),
    # prompts
    RowLayout("LiveCodeBench", "prompts", ("question_content", "public_test_cases"), {"prompt": "question_content"},
              without=("prompt",)),
    RowLayout("MBPP", "prompts", ("text", "test_list"), {"prompt": "text"}, without=("prompt",),
              maps=("test_list", "challenge_test_list")),
    RowLayout("LeetCodeDataset", "prompts", ("query", "prompt", "entry_point"), {"prompt": "query"}),
    RowLayout("IFEval", "prompts", ("prompt", "instruction_id_list", "kwargs")),
    RowLayout("HealthBench", "prompts", ("prompt", "rubrics", "prompt_id"), {"rubric": "rubrics"}),
    RowLayout("PRIME and verl", "prompts", ("prompt", "reward_model"), {"reference": "reward_model.ground_truth"},
              maps=("reward_model", "extra_info")),
    RowLayout("GPQA", "prompts", ("Question", "Correct Answer", "Incorrect Answer 1"),
              {"prompt": "Question", "reference": "Correct Answer"}),
    RowLayout("Alpaca", "prompts", ("instruction", "output"),
              {"prompt": "instruction", "input": "input", "response": "output"}),
    RowLayout("Dolly", "prompts", ("instruction", "context", "response", "category"), {"passage": "context"}),
)  # fmt: skip
