"""Replies read as a number, as yes or no, and as one of several words."""

from guerdon.models.vlm.answer_parser import Choices, Completed, Numbers, parse_answer


def parse_number(text, **scales):
    return parse_answer(text, Numbers(**scales))


def parse_completed(text):
    return parse_answer(text, Completed())


def parse_choice(text, key, words):
    return parse_answer(text, Choices(key, words))
