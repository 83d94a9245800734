"""Rules of tokenizers: those that make much more of a text, or that take long, are refused before they are used."""

import base64
import json

import pytest

from guerdon.errors import CheckpointError
from guerdon.policies.language.tiny_text import byte_tokenizer, character_tokenizer
from guerdon.policies.pretrained import tokenizer_rules
from guerdon.policies.pretrained.tokenizer_rules import RULES, _run, check_rules
from tables import cases


def replacing(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


def in_a_row(*rules, kind="normalizers"):
    return {"type": "Sequence", kind: list(rules)}


def splitting(expression):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


TEN = replacing({"String": "a"}, "a" * 10)
TABLE = base64.b64encode(b"\4\0\0\0TREE" + b"a" * 9000 + b"\0" + b"b\0").decode()
SHORT_TABLE = base64.b64encode(b"\4\0\0\0TREE" + "fi\0½\0صلى الله عليه وسلم".encode()).decode()
PIECE = {"Sequence": {"id": "A", "type_id": 0}}
GROWING = {
    "letters": {"normalizer": in_a_row(*[TEN] * 12)},
    "one after another": {"normalizer": in_a_row(*(replacing({"String": a}, b * 11) for a, b in ("ab", "bc", "cd")))},
    "sequences": {"normalizer": in_a_row(in_a_row(TEN, TEN), in_a_row(TEN))},
    "a long text": {"normalizer": replacing({"String": "question"}, "x" * 10_000)},
    "an expression": {"normalizer": replacing({"Regex": "[0-9]"}, "number" * 100)},
    "beginnings": {"normalizer": in_a_row(*[{"type": "Prepend", "prepend": "__"}] * 9)},
    "ends": {"normalizer": in_a_row(*[{"type": "Append", "append": "__"}] * 9)},
    "a table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": TABLE}},
    "answers": {"decoder": in_a_row(*[TEN] * 3, kind="decoders")},
    "copies": {"post_processor": {"type": "TemplateProcessing", "single": [PIECE] * 101}},
}  # fmt: skip


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", GROWING)
def test_rules_that_make_much_more_of_a_text(name):
    (part,) = GROWING[name]
    with pytest.raises(CheckpointError, match=rf"'a/b' cannot be used: its {part} can make [\d,]+ characters of one"):
        check_rules(GROWING[name], "a/b")


SLOW = {
    "too many tries": splitting("(a+)+b"),
    "as part of others": in_a_row({"type": "Whitespace"}, splitting("(a+)+b"), kind="pretokenizers"),
}


@pytest.mark.hostile("models")
@pytest.mark.parametrize("name", SLOW)
def test_expressions_that_do_not_end(name, monkeypatch):
    monkeypatch.setattr(tokenizer_rules, "SECONDS", 1.5)
    with pytest.raises(
        CheckpointError, match=r"its regular expressions .* for a text of 3,000 characters; correct"
    ) as error:
        check_rules({"pre_tokenizer": SLOW[name]}, "a/b")
    assert "\n" not in str(error.value)


ENDLESS = replacing({"Regex": "(a+)+b"}, "c")


@cases("rules", [{"normalizer": ENDLESS}, {"pre_tokenizer": splitting("(a+)+b")}, {"decoder": ENDLESS}])
def test_the_expressions_of_every_kind_of_rule_are_run(rules):
    with pytest.raises(BaseException, match="retry-limit-in-match over"):  # a panic, which ends the process of rules
        _run({"rules": dict.fromkeys(RULES) | rules})


@cases("rules", [{}, {"normalizer": {"type": "NFC"}}, {"pre_tokenizer": splitting("(")}])
def test_rules_that_end_and_rules_that_cannot_be_read_are_no_problem(rules):
    assert _run({"rules": dict.fromkeys(RULES) | rules}) == {}


def test_a_table_that_is_no_base64_does_not_count_as_growth():
    check_rules({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "é" * 9001}}, "here")


USUAL = {
    "as of Qwen": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": in_a_row(
            splitting(
                "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
            ),
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            kind="pretokenizers",
        ),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    },
    "as of Llama 2": {
        "normalizer": in_a_row({"type": "Prepend", "prepend": "▁"}, replacing({"String": " "}, "▁")),
        "decoder": in_a_row(replacing({"String": "▁"}, " "), {"type": "Fuse"}, kind="decoders"),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        },
    },
    "as of CLIP": {
        "normalizer": in_a_row({"type": "NFC"}, replacing({"Regex": "\\s+"}, " "), {"type": "Lowercase"}),
    },
    "as of T5": {
        "normalizer": in_a_row(
            {"type": "Strip", "strip_left": False, "strip_right": True}, replacing({"Regex": " {2,}"}, "▁"),
        ),
    },
    "a table": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": SHORT_TABLE}},
    "none": {"normalizer": None, "pre_tokenizer": None, "decoder": None, "post_processor": None},
    "what is none": {"normalizer": [1], "decoder": {"type": "Nothing"}, "pre_tokenizer": {"pattern": 3}},
    "what cannot be read": {"pre_tokenizer": splitting("(")},
}  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_usual_rules_pass(name):
    check_rules(USUAL[name], "here")


def test_rules_are_tried_once(monkeypatch):
    for tokenizer in (character_tokenizer("ab"), byte_tokenizer()):
        parts = json.loads(tokenizer.backend_tokenizer.to_str())
        check_rules(parts, "here")
    monkeypatch.setattr(tokenizer_rules, "SubprocessWorker", None)
    check_rules(json.loads(character_tokenizer("cd").backend_tokenizer.to_str()), "there")
