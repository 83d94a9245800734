"""The study's policy writes several solutions per question, repetitions and unfinished ones among them."""

from guerdon.evaluate.sampled import sampled_solutions
from guerdon.settings.study import Study

TINY = {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 64, "alphabet": "01+=?;"}
TASK = {"family": "chain", "steps": 2, "modulus": 2, "low": 0, "high": 1, "ops": "+"}
STUDY = Study.model_validate(
    {
        "policy": {"type": "text", "tiny": TINY, "bf16": False},
        "data": {"task": TASK, "train_size": 4, "val_size": 3, "max_response_length": 4,
                 "filter_accuracy": False, "filter_truncated": False},
    }
)  # fmt: skip


def test_every_sample_is_kept_and_checked(tmp_path):
    found = sampled_solutions(STUDY, questions=2, n=40, folder=tmp_path)
    assert len(found) == len({one.id for one in found}) == 80
    questions = {one.question for one in found}
    assert len(questions) == 2
    texts = [one.text for one in found]
    assert len(set(texts)) < len(texts)  # at most four of eight tokens: some say the same
    assert all(one.is_correct is not None for one in found)  # generated problems: text that is no solution is wrong
    assert all(one.ground_truth in ("0", "1") for one in found)
    kept = (tmp_path / "completions.jsonl").read_bytes()
    assert [one.text for one in sampled_solutions(STUDY, questions=2, n=40, folder=tmp_path)] == texts
    assert (tmp_path / "completions.jsonl").read_bytes() == kept


def test_questions_are_those_held_out(tmp_path):
    found = sampled_solutions(STUDY, questions=9, n=1, folder=tmp_path)
    assert len(found) == 3  # there are no more
    assert all(one.meta["splitter"] == "separator" and one.separator == ";" for one in found)
