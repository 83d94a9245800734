"""No secret is in any output of a command, whatever an endpoint repeats."""

import json
import sys
from pathlib import Path

import pytest
from judge_server import steps_asked, verdicts
from label_studies import TINY

from echo_server import IN_BODY, KEY, PASSWORD, address, echoing, leaks
from guerdon import cli, secrets
from guerdon.episodes.solution_files import write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.retry import Retry

EXTRA = {"api_key": IN_BODY, "headers": {"Authorization": f"Bearer {IN_BODY}"}}


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Run a command with a study: its status and output; nothing that it wrote has a secret."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Retry, "next_pause", lambda self, made, attempt, left, rng: 0.0 if made < 3 and attempt.again else "")
    monkeypatch.setenv("PLANTED", f" 'Bearer {KEY}'\n")
    monkeypatch.setenv("HTTPS_PROXY", f"http://proxy-user:{PASSWORD.replace('/', '%2F')}@127.0.0.1:1")
    for name in ("_known", "_marks", "_places"):
        monkeypatch.setattr(secrets, name, type(getattr(secrets, name))() if name != "_places" else secrets._places)

    def run(verb, study, *more):
        Path("study.json").write_text(json.dumps(study))
        monkeypatch.setattr(sys, "argv", ["guerdon", verb, "study.json", *more])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = "".join(capfd.readouterr())
        assert not leaks(said)
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.name != "study.json":
                assert not leaks(path.read_bytes().decode("utf-8", "replace")), path
        return left.value.code or 0, said

    return run


def judgement(kind, sent, said):
    if kind == "refusal":
        return {"role": "assistant", "content": None, "refusal": f"no: {said}"}
    steps = steps_asked(sent["messages"][-1]["content"])
    text = verdicts([1] * len(steps)).replace("because", json.dumps(f"because {said}")[1:-1])
    return {"role": "assistant", "content": text if kind == "good" else f"no JSON: {said}"}


KINDS = ["good", 500, "page", "no json", "drop", "good", "bad", "refusal", 400, 429, "good", 302, "good"]


@pytest.mark.parametrize("kinds", [KINDS, *([kind] for kind in (500, "page", "no json", "drop", "bad", 400, 401, 404))])
def test_label(call, tmp_path, kinds):
    source = [Solution(str(n), f"{n}+1=?", (f"{n}+1={n + 1}", str(n + 1)), (1.0, 1.0)) for n in range(24)]
    path = write_solutions(tmp_path / "given.jsonl", source, "trl").path
    with echoing(judgement, kinds) as server:
        judge = {"api": "openai", "model": "m", "base_url": address(server), "api_key_env": "PLANTED",
                 "extra_body": EXTRA}  # fmt: skip
        study = {"policy": {"type": "text", "tiny": TINY},
                 "label": {"save_dir": "out", "solutions": {"data_path": str(path)}, "judge": judge}}  # fmt: skip
        status, said = call("label", study, "label.judge.retries=2", f"label.judge.extra_body.token={KEY}")
        assert status == (2 if kinds[0] in (401, 404) else 0 if "good" in kinds else 3), said
        if "good" in kinds:
            rows = [json.loads(line) for line in next(tmp_path.rglob("records.jsonl")).read_text().splitlines()]
            assert len(rows) >= 6
            assert json.dumps(rows).count("because") >= 12
            call("label", study)
