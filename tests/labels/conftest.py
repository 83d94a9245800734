"""Fixtures of this folder: a key, and one trained policy for all tests."""

import pytest


@pytest.fixture
def keys(monkeypatch, tmp_path):
    """A key for one of the two APIs, in a working directory without `.env`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    from label_studies import trained

    return trained(tmp_path_factory.mktemp("policy"))
