"""The sentences of the Meta-World tasks."""

import pytest

from guerdon.worlds.metaworld import TASK_TEXTS


def test_every_task_of_metaworld_has_its_sentence():
    metaworld = pytest.importorskip("metaworld")
    assert metaworld is not None
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert set(TASK_TEXTS) == {name.removesuffix("-v3") for name in ALL_V3_ENVIRONMENTS}


def test_sentences_are_distinct_imperative_sentences():
    assert len(TASK_TEXTS) == len(set(TASK_TEXTS.values())) == 50
    for text in TASK_TEXTS.values():
        assert text[0].isupper()
        assert text.endswith(".")
        assert text.count(".") == 1
