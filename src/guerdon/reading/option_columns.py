"""Columns of multiple-choice rows: question, options and right answer in the names of public data sets.

Names are compared without case, spaces and underscores count alike. `guerdon.tasks.choices` reads the rows.
"""

from __future__ import annotations

LISTS = (
    "choices", "options", "answer_choices", "answer_options", "option_list", "alternatives", "endings", "answers",
    "multiple_choice", "candidate_answers", "answer_candidates", "candidates",
)  # fmt: skip
INNER = ("extra_info", "metadata", "meta", "info", "extra")  # maps that may hold the options
WRONG = ("incorrect_answers", "distractors", "wrong_answers", "false_answers", "incorrect_choices", "wrong_choices")
PASSAGES = ("passage", "article", "context", "paragraph", "story", "text", "hint")
QUESTIONS = ("query", "problem", "question", "question_stem", "goal", "startphrase")
AGREEING = (
    "answerkey", "answer", "answer_index", "answer_idx", "answer_letter", "correct", "correct_option", "correct_choice",
    "correct_answer", "correctanswer", "correct_index", "correct_answer_index", "gold_index",
)  # fmt: skip
OTHERS = ("label", "gold", "ground_truth", "final_answer", "expected_answer", "target", "cop", "gold_label")
FAMILIES = {  # columns with one option each, and the number of the first option where the answer is a number
    "option{1}": 1, "choice{1}": 0, "sol{1}": 0, "ending{0}": 0, "answer{0}": 0, "ans{0}": 0, "answer{a}": 1,
    "op{a}": 0, "option{a}": None, "option_{a}": None, "option_{1}": None, "choice{a}": None, "choice_{a}": None,
    "choice_{1}": None, "{A}": None,
}  # fmt: skip
