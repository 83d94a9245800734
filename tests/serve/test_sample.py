"""The sample of what was scored: opt-in, whole prompts, numbers and no texts, bounded, never in the way of serving."""

import asyncio
import json

import numpy as np
from toys import Toy

from guerdon.auditing.logs import read_log
from guerdon.config.loading import validate
from guerdon.models.explained_score import ExplainedScore, JudgeOptions
from guerdon.serve import sample as module
from guerdon.serve.backends import ModelLoader
from guerdon.serve.sample import ServedSample, served_sample
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import ServeSettings
from guerdon.types import Episode, Failure, Score
from tables import refuses

SECRET = "my-password-is-hunter2-and-more"


def episode(prompt, *steps):
    return Episode(id="e", task=prompt, texts=steps)


def rows_of(sample):
    sample.close()
    return [json.loads(line) for line in sample.path.read_text().splitlines()] if sample.path.exists() else []


def total(value):
    return ExplainedScore(Score(total=value), tokens=7)


def test_rows_have_numbers_and_no_texts(tmp_path):
    sample = ServedSample(tmp_path / "served", share=1.0)
    failed = ExplainedScore(Score(failure=Failure("timeout", SECRET)), truncated=True)
    sample.keep("prm", [episode(SECRET, "ab", "cde"), episode("other", "f"), episode(SECRET, "g")],
                [total(0.25), failed, ExplainedScore(Score(steps=np.array([0.5, 0.75], np.float32)))])  # fmt: skip
    first, second, third = rows_of(sample)
    assert SECRET not in sample.path.read_text()
    assert "hunter2" not in sample.path.read_text()
    assert (first["reward"], first["failed"], first["response_length"], first["input_tokens"]) == (0.25, False, 5, 7)
    assert (second["reward"], second["failed"], second["failure"], second["truncated"]) == (None, True, "timeout", True)
    assert third["reward"] == 0.75
    assert first["prompt"] == third["prompt"] != second["prompt"]
    assert first["prompt_length"] == len(SECRET)
    assert "response" not in first


def test_two_processes_do_not_share_the_key_of_the_hash(tmp_path):
    prompts = []
    for _ in range(2):
        sample = ServedSample(tmp_path, share=1.0)
        sample.keep("prm", [episode("one prompt", "a")], [total(1.0)])
        prompts += [row["prompt"] for row in rows_of(sample)]
    assert prompts[0] != prompts[1]


def test_texts_only_where_asked(tmp_path):
    sample = ServedSample(tmp_path, share=1.0, text=True)
    sample.keep("prm", [episode("What is 2+2?", "First. ", "4")], [total(1.0)])
    (row,) = rows_of(sample)
    assert (row["prompt"], row["response"]) == ("What is 2+2?", "First. 4")
    rows = read_log(tmp_path)
    assert rows.texts.responses == ["First. 4"]
    assert rows.reward_N.tolist() == [1.0]


def test_all_responses_to_a_prompt_are_in_or_none(tmp_path):
    sample = ServedSample(tmp_path, share=0.3)
    episodes = [episode(f"prompt {k % 500}", "x" * (1 + k // 500)) for k in range(2000)]
    sample.keep("prm", episodes, [total(0.0)] * len(episodes))
    counts = {}
    for row in rows_of(sample):
        counts[row["prompt"]] = counts.get(row["prompt"], 0) + 1
    assert set(counts.values()) == {4}
    assert 0.3 - 4 * 0.0205 < len(counts) / 500 < 0.3 + 4 * 0.0205  # four standard errors of 500 prompts


def test_an_audit_reads_it_without_texts(tmp_path):
    sample = ServedSample(tmp_path, share=1.0)
    episodes = [episode(f"prompt {k // 2}", "x" * (k + 1)) for k in range(8)]
    sample.keep("prm", episodes, [total(k / 8) for k in range(8)])
    sample.close()
    rows = read_log(tmp_path)
    assert rows.reward_N.tolist() == [k / 8 for k in range(8)]
    assert rows.length_N.tolist() == list(range(1, 9))
    assert rows.group_N.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert rows.texts is None


def test_a_full_file_and_a_broken_disk_stop_the_sample_and_nothing_else(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "MOST_BYTES", 700)
    sample = ServedSample(tmp_path, share=1.0)
    for k in range(20):
        sample.keep("prm", [episode(f"p{k}", "a")], [total(1.0)])
    assert 1 <= len(rows_of(sample)) < 20
    assert sample.path.stat().st_size <= 700
    assert caplog.text.count("is full") == 1
    (tmp_path / "file").write_text("")
    broken = ServedSample(tmp_path / "file", share=1.0)
    for _ in range(3):
        broken.keep("prm", [episode("p", "a")], [total(1.0)])
    broken.close()
    assert caplog.text.count("cannot be written") == 1


def test_the_models_keep_what_they_answer(tmp_path):
    async def work():
        sample = ServedSample(tmp_path, share=1.0)
        models = ServedModels({"toy": ModelLoader(Toy)}, sample=sample)
        models.start()
        await models.loaded()
        for _ in range(2):  # the second answer comes from memory
            await models.get("toy").judge([episode("p", "aaaa", "bbbb")], JudgeOptions())
        await models.stop()
        return sample

    sample = asyncio.run(asyncio.wait_for(work(), 60))
    assert [row["reward"] for row in map(json.loads, sample.path.read_text().splitlines())] == [0.0, 0.0]


def settings(**given):
    return validate(ServeSettings, {"models": {"prm": {"backend": "constant"}}, **given}, origin="test")


def test_it_is_off_unless_asked(tmp_path):
    assert served_sample(settings()) is None
    assert served_sample(settings(sample_path=str(tmp_path), sample_share=0.5)).path.parent == tmp_path
    for idle in ({"sample_share": 0.5}, {"sample_text": True}):
        with refuses(next(iter(idle))):
            settings(**idle)
    with refuses("sample_share"):
        settings(sample_path=str(tmp_path), sample_share=0)


def test_a_real_server_writes_it(server, tmp_path):
    folder = tmp_path / "served"
    running = server(sample_path=str(folder), sample_share=1.0)
    body = {"items": [{"prompt": SECRET, "steps": ["aa", "ba"]}]}
    answer = running.post("/v1/rewards", body)
    assert answer.status_code == 200, answer.text
    assert running.stop(60) == 0
    (file,) = folder.iterdir()
    (row,) = map(json.loads, file.read_text().splitlines())
    assert row["reward"] == answer.json()["results"][0]["score"]
    assert SECRET not in file.read_text()
