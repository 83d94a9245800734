"""A quick version of benchmarks/audit_proof.py: faults at full strength are found, runs without one are clean."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from guerdon.auditing.checks import audit
from guerdon.auditing.rows import Rows
from guerdon.cli import app
from tables import sample


@pytest.fixture(scope="module")
def sets(request):
    """The generator, and the proof, of the folder benchmarks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(request.config.rootpath / "benchmarks"))
        yield importlib.import_module("audit_sets"), importlib.import_module("audit_proof")


def test_runs_without_a_fault_are_clean(sets):
    _, proof = sets
    alarms = [proof.findings(proof.Case("", 0, 0, number, None))[2] for number in range(8)]
    assert sum(bool(one) for one in alarms) <= 1, alarms  # at 5 % each two of eight are a chance of 5.7 %


@pytest.mark.slow
def test_faults_at_full_strength_are_found(sets):
    made, proof = sets
    found = {fault: proof.findings(proof.Case(fault, 2, 0, 1, None))[2] for fault in made.FAULTS}
    missed = {fault: names for fault, names in found.items() if not set(names) & proof.NAMES.get(fault, {fault})}
    assert len(missed) <= 1, missed


def test_sets_repeat_and_the_halves_share_no_text(sets):
    made, _ = sets
    one, again = (made.clean_set(half=0, number=2) for _ in range(2))
    assert one.texts.responses == again.texts.responses
    assert (one.reward_N == again.reward_N).all()
    texts = importlib.import_module("audit_texts")
    first, second = texts.HALVES
    for name in ("maths", "steps", "endings", "chats", "refusals", "flattery", "gibberish", "formats", "hard_coded"):
        assert not set(getattr(first, name)) & set(getattr(second, name))


@pytest.fixture(scope="module")
def honest(sets):
    """The generator of honest runs."""
    return importlib.import_module("audit_honest")


@pytest.mark.slow
def test_honest_runs_repeat_and_differ_by_their_seed(honest):
    for shape in honest.SHAPES:
        one, again, other = honest.honest_set(shape, 2), honest.honest_set(shape, 2), honest.honest_set(shape, 3)
        assert one.facts == again.facts
        assert (one.rows.reward_N == again.rows.reward_N).all(), shape
        assert one.rows.texts is None or one.rows.texts.responses == again.rows.texts.responses
        assert len(one.rows) != len(other.rows) or (one.rows.reward_N != other.rows.reward_N).any(), shape
        assert 40 <= len(one.rows) <= 20_000


def test_equal_responses_of_honest_runs_have_one_reward(honest):
    for shape in honest.TEXT_SHAPES:
        rows, rewards = honest.honest_set(shape, 4).rows, {}
        for prompt, response, reward in zip(rows.texts.prompts, rows.texts.responses, rows.reward_N, strict=True):
            rewards.setdefault((prompt, response), set()).add(reward)
        assert {len(one) for one in rewards.values()} == {1}, shape


def residual(values, group):
    """Values minus the mean of their group."""
    return values - (np.bincount(group, values) / np.maximum(np.bincount(group), 1))[group]


def test_the_reward_of_honest_runs_is_explained_by_truth_and_not_by_length(honest):
    r = []
    for seed in range(12):
        draft, _ = honest.honest_draft("reward_model", seed)
        whole = ~draft.truncated
        if len(draft) < 3 * len(set(draft.prompt)):
            continue  # no more than one response per prompt
        lengths = residual(np.log([len(one) for one in draft.responses]), draft.prompt)
        rewards = residual(draft.reward - draft.scale * draft.truth, draft.prompt)
        r.append(np.corrcoef(lengths[whole], rewards[whole])[0, 1] * np.sqrt(whole.sum()))
    assert len(r) >= 6
    assert abs(np.mean(r)) < 4 / np.sqrt(len(r))  # the mean of standard normals
    draft, _ = honest.honest_draft("binary", 8)
    assert ((draft.reward > draft.reward.min()) == (draft.truth > 0.5)).mean() > 0.95
    assert not draft.truth[draft.truncated].any()


@pytest.mark.slow
def test_facts_of_honest_runs_hold(honest):
    seen = set()
    for shape in honest.SHAPES:
        for seed in range(3):
            made = honest.honest_set(shape, seed)
            rows, reward = made.rows, made.rows.reward_N
            seen |= made.facts
            if "groups of equal rewards" in made.facts:
                groups = [reward[rows.group_N == g] for g in np.unique(rows.group_N)]
                assert np.mean([len(set(one)) == 1 for one in groups]) >= 0.1
            if rows.group_N is not None and "groups of equal rewards" not in made.facts:
                groups = [reward[rows.group_N == g] for g in np.unique(rows.group_N)]
                assert np.mean([len(set(one)) == 1 for one in groups if len(one) > 1]) < 0.1
            if "copies" in made.facts:
                assert len(set(rows.texts.responses)) < 0.95 * len(rows)
            if "the truth is the reward" in made.facts:
                right = rows.truth_N > 0.5
                assert reward[right].min() > reward[~right].max()
            if "truncated" in made.facts and rows.truncated_N is not None:
                assert rows.truncated_N.mean() >= 0.02
            if "late rewards are equal" in made.facts:
                late = reward[len(rows) // 2 :]
                assert max(np.unique(late, return_counts=True)[1]) >= 0.7 * len(late)
    assert seen >= set(honest.ALLOWED) - {"success is constant"}
    assert honest.Honest(rows, frozenset(honest.ALLOWED)).allows("length", "info")
    assert not honest.Honest(rows, frozenset(honest.ALLOWED)).allows("length", "warning")
    assert not honest.Honest(rows, frozenset()).allows("length", "info")


def test_planted_sets_repeat_and_have_their_fault(sets):
    made, _ = sets
    rows, phrases = made.planted_set("tail", "agents", strength=2, number=1)
    again, _ = made.planted_set("tail", "agents", strength=2, number=1)
    assert rows.texts.responses == again.texts.responses
    assert (rows.reward_N == again.reward_N).all()
    paid = np.array([phrases[0] in one for one in rows.texts.responses])
    assert rows.reward_N[paid].min() > rows.reward_N[~paid].mean()
    rows, _ = made.planted_set("empty_paid", "reward model", strength=2, number=1)
    empty = np.array([not one.strip() for one in rows.texts.responses])
    assert 0.1 < empty.mean() < 0.2
    assert rows.reward_N[empty].min() > np.quantile(rows.reward_N[~empty], 0.8)
    rows, _ = made.planted_set("constant_success", "sparse", strength=1, number=1)
    returns = np.bincount(rows.steps.episode_N, rows.reward_N)
    assert np.bincount(rows.steps.episode_N, rows.truth_N).min() == 1
    assert 0.2 < (returns == 0).mean() < 0.7
    rows, _ = made.planted_set("part_diverges", "verifier", strength=2, number=1)
    assert np.allclose(sum(rows.rewards.values()), rows.reward_N)
    unpaid, _ = made.planted_set("unpaid_right", "verifier", strength=2, number=1)
    right = [
        stated in response and reward == unpaid.reward_N.min()
        for stated, response, reward in zip(unpaid.texts.truths, unpaid.texts.responses, unpaid.reward_N, strict=True)
    ]
    assert np.mean(right) > 0.1


@pytest.mark.slow
def test_every_fault_can_be_planted_into_each_of_its_runs(sets):
    made, _ = sets
    assert len(made.FAULTS) == 31
    for fault in made.FAULTS:
        for run in made.runs_of(fault)[:: 1 if fault in ("tail", "motionless") else 3]:
            rows, _ = made.planted_set(fault, run, strength=0, number=5)
            assert len(rows) >= 200, (fault, run)


def test_a_finding_that_quotes_a_phrase(sets):
    _, proof = sets
    finding = replace(
        audit(sets[0].faulty_set("nan", strength=2, half=0, number=1)).findings[0], title='has "full Marks"'
    )
    assert proof.quotes(finding, "solution verified, full marks")
    assert not proof.quotes(finding, "full solution")
    assert proof.quotes(finding, "marks")


def test_sets_are_written_as_rows_that_people_log(sets, tmp_path):
    made, _ = sets
    rows = made.faulty_set("truncated", strength=1, half=0, number=0)
    made.write_jsonl(tmp_path / "set.jsonl", rows)
    written = [json.loads(line) for line in (tmp_path / "set.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["reward"] for row in written] == rows.reward_N.tolist()
    assert [row["truncated"] for row in written] == rows.truncated_N.tolist()
    assert {"prompt", "response"} <= set(written[0])


VERL = {"prompt": "input", "response": "output", "reward": "score", "answer": "gts", "group": "uid"}  # its columns


def lines_of_verl(folder, rows, with_text):
    """A set as the dumps of verl, a file for each step."""
    folder.mkdir()
    for row in with_text(rows):
        with (folder / f"{row['step']}.jsonl").open("a", encoding="utf-8") as out:
            row = {VERL.get(name, name): value for name, value in row.items() if name != "prompt_id"}
            out.write(json.dumps(row) + "\n")


@pytest.mark.parametrize("layout", sample(["plain columns", "a dump of verl"], "a dump of verl"))
@pytest.mark.parametrize(("fault", "number"), sample([("length", 0), ("truth", 0)], ("truth", 0), several=True))
def test_the_command_finds_in_a_file_what_is_found_in_memory(sets, tmp_path, monkeypatch, fault, number, layout):
    made, _ = sets
    rows, log = made.faulty_set(fault, strength=2, half=0, number=number), tmp_path / "log.jsonl"
    if layout == "plain columns":
        made.write_jsonl(log, rows)
    else:
        lines_of_verl(log := tmp_path / "log", rows, made.with_text)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["audit", str(log), "--json"])
    assert done.exit_code == 0, done.output
    written, expected = json.loads(done.stdout), audit(rows)
    assert written["layout"] == layout
    assert fault in [one["name"] for one in written["findings"]]
    assert [(f["name"], f["severity"], f["title"], f["count"], f["rows"]) for f in written["findings"]] == [
        (f.name, f.severity, f.title, f.count, list(f.rows)) for f in expected.findings
    ]
    for part in ("clean", "undecided", "unchecked"):
        assert written[part] == getattr(expected, part)


def test_steps_of_robots_are_found_in_a_data_set_as_in_memory(sets, tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    made, _ = sets
    rows = made.faulty_set("first_frame", strength=2, half=0, number=7)
    steps = rows.steps
    columns = {
        "episode_index": steps.episode_N, "frame_index": steps.frame_N, "observation.state": list(steps.state_N_D),
        "next.reward": rows.reward_N, "next.done": steps.done_N, "next.success": rows.truth_N,
    }  # fmt: skip
    for name in ("meta", "data"):
        (tmp_path / "set" / name).mkdir(parents=True)
    (tmp_path / "set" / "meta" / "info.json").write_text("{}")
    pq.write_table(pa.table(columns), tmp_path / "set" / "data" / "file-000.parquet")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["audit", "set", "--json"])
    assert done.exit_code == 0, done.output
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    expected = {one.name: one for one in audit(rows).findings}
    assert "first_frame" in found
    assert {name: (one["count"], one["rows"]) for name, one in found.items()} == {
        name: (one.count, list(one.rows)) for name, one in expected.items()
    }


def test_clopper_pearson(sets):
    _, proof = sets
    assert proof.clopper_pearson(0, 10) == (0.0, pytest.approx(1 - 0.025**0.1))  # (1 - p)^10 = 0.025
    assert proof.clopper_pearson(10, 10) == (pytest.approx(0.025**0.1), 1.0)
    assert proof.clopper_pearson(10, 200) == (pytest.approx(0.0242, abs=1e-4), pytest.approx(0.0900, abs=1e-4))


def curves(**named):
    none = np.zeros(0)
    steps = np.arange(len(next(iter(named.values())))) * 100
    logged = {name.replace("__", "/"): (steps, np.asarray(values, dtype=float)) for name, values in named.items()}
    return Rows("scalars", ("metrics.jsonl",), none.astype(int), none.astype(int), none, curves=logged)


def test_curves_of_a_log_without_rows():
    rng = np.random.default_rng(0)
    up, noise = np.linspace(0, 2, 20), 0.05 * rng.standard_normal(20)
    hacked = audit(curves(train__return__judge=up + noise, eval__success=0.8 - 0.3 * up + noise))
    assert [one.name for one in hacked.findings] == ["truth"]
    assert "train/return/judge" in hacked.findings[0].title
    turned = np.concatenate([np.linspace(0.2, 0.7, 8), np.linspace(0.68, 0.1, 12)]) + noise / 5
    assert [one.name for one in audit(curves(train__return__judge=up + noise, eval__success=turned)).findings] == [
        "truth"
    ]
    learned = audit(curves(train__return__judge=up + noise, eval__success=0.3 * up + noise))
    assert learned.findings == ()
    assert "truth" in learned.clean
    flat = audit(curves(train__return__judge=up + noise, eval__success=0.9 + noise))
    assert flat.findings == ()
    assert "truth" in audit(curves(train__loss=up)).unchecked
    short = audit(curves(train__return__judge=up[:7], eval__success=1 - up[:7]))
    assert short.undecided["truth"] == "needs 8 steps with a reward and a truth; the log has 7"
