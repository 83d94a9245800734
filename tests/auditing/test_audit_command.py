"""`guerdon audit`: what it prints, its exit status, and watching a log that grows."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from called import called
from child import environment
from guerdon.auditing import command, log_view
from guerdon.auditing.accepted import read_accepted
from guerdon.auditing.against import Against, NewPhrase
from guerdon.auditing.audited import Audited, Wanted, audit_path, save_rows
from guerdon.auditing.command import _condition, lines
from guerdon.auditing.finding import Audit, Finding
from guerdon.auditing.rows import Rows
from guerdon.auditing.second import Figure, SecondReward
from guerdon.cli import app
from guerdon.errors import ConfigError, DataError, GuerdonError
from guerdon.models.explained_score import ExplainedScore
from guerdon.serve.sample import ServedSample
from guerdon.types import Episode, Score
from tables import refuses


def write(path, n=200, *, paid=0.0, start=0):
    """Rows with truth 0 or 1 and a reward that is the truth, to which truncated responses may add."""
    random = np.random.default_rng(0)
    with path.open("a") as file:
        for k in range(start, n):
            truth = int(random.random() < 0.5)
            truncated = bool(random.random() < 0.3)
            row = {
                "prompt": f"What is {k // 4} + 1?",
                "response": f"It is {random.integers(99)}, as {'so ' * (k % 7)}one sees.",
            }
            reward = 1.0 if truncated and paid else float(truth)
            file.write(
                json.dumps({**row, "reward": reward, "truth": truth, "step": k // 40, "truncated": truncated}) + "\n"
            )
    return path


def guerdon(folder, *words):
    return called("audit", *words, folder=folder)


def test_it_prints_a_few_lines_and_writes_a_page(tmp_path):
    log = write(tmp_path / "rollouts.jsonl")
    command = [sys.executable, "-m", "guerdon", "audit", str(log)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert re.fullmatch(r"200 rows, .*: \d+ found, \d+ clean, \d+ undecided, \d+ not made", said[0])
    assert said[-1] == "page: rollouts.jsonl.audit.html"
    assert sum(line.startswith("undecided: ") for line in said) == int(re.search(r"(\d+) undecided", said[0])[1])
    page = (tmp_path / "rollouts.jsonl.audit.html").read_text()
    assert "How it was read" in page
    assert len(said) < 60


def test_json_is_all_that_stands_on_the_output(tmp_path):
    log = write(tmp_path / "rollouts.jsonl")
    done = guerdon(tmp_path, log, "--json", "-o", "here/a.html")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = {"findings", "clean", "undecided", "unchecked", "counts", "rows", "layout", "read_as", "course"}
    assert names == set(found)
    assert found["course"]["kind"] in ("both rise", "alone", "flat", "truth falls", "saturated", "unknown")
    assert "series" not in found["course"]
    assert found["counts"] == {
        "found": len(found["findings"]), "clean": len(found["clean"]), "undecided": len(found["undecided"]),
        "not made": len(found["unchecked"]),
    }  # fmt: skip
    assert found["rows"] == 200
    assert (tmp_path / "here/a.html").is_file()


def test_what_columns_were_taken_for_is_said_in_three_places(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(json.dumps({"q": f"q{k}", "response": "r", "rewards": {"a": k, "b": 1}}) + "\n" for k in range(40))
    )
    done = guerdon(tmp_path, log, "--columns", "prompt=q,reward=rewards.a", "--json")
    assert done.returncode == 0, done.stderr
    assert "log.jsonl: q is the prompt (for example 'q0'), as you said" in done.stderr
    assert "log.jsonl: rewards.a is the reward (number, for example '0'), as you said" in done.stderr
    assert "log.jsonl: 40 rows read, 40 used" in done.stderr
    said = {one["column"]: (one["role"], one["from"]) for one in json.loads(done.stdout)["read_as"]}
    assert said == {"q": ("prompt", "given"), "rewards.a": ("reward", "given"), "response": ("response", "name")}
    page = (tmp_path / "log.jsonl.audit.html").read_text()
    assert "<td>rewards.a</td><td>reward</td><td>number</td><td>0</td>" in page


def test_rows_that_cannot_be_read_fail_if_they_are_named(tmp_path):
    log = write(tmp_path / "log.jsonl", 300)
    with log.open("a") as file:
        file.writelines(json.dumps({"prompt": "p", "response": "r", "reward": "high"}) + "\n" for _ in range(9))
    done = guerdon(tmp_path, log, "--fail-on", "unread:error")
    assert done.returncode == 5
    assert "error: unread: 9 rows (2.9%) could not be read and are left out: 9 reward is not a number" in done.stdout
    assert "309 rows read, 300 used, 9 left out (9 reward is not a number)" in done.stderr
    assert guerdon(tmp_path, log, "--fail-on", "any:error").returncode == 5
    some = write(tmp_path / "some.jsonl", 300)
    with some.open("a") as file:
        file.write('{"prompt": "p", "resp')  # half-written: the log is growing
    assert guerdon(tmp_path, some, "--fail-on", "unread").returncode == 0


def test_a_finding_that_was_named_ends_with_five(tmp_path):
    bad = write(tmp_path / "bad.jsonl", 500, paid=1.0)
    found = json.loads(guerdon(tmp_path, bad, "--json").stdout)
    assert found["findings"], "truncated responses are paid in full"
    name, severity = found["findings"][0]["name"], found["findings"][0]["severity"]
    done = guerdon(tmp_path, bad, "--fail-on", f"{name}:{severity}")
    assert done.returncode == 5
    assert f"{name} ({severity})" in done.stderr
    assert (tmp_path / "bad.jsonl.audit.html").is_file()
    assert guerdon(tmp_path, bad, "--fail-on", "any").returncode == 5
    clean = next(iter(found["clean"]))
    assert guerdon(tmp_path, bad, "--fail-on", clean).returncode == 0


def test_undecided_checks_that_were_named_end_with_five(tmp_path):
    few = write(tmp_path / "few.jsonl", 12)
    done = guerdon(tmp_path, few, "--fail-on", "undecided:saturation")
    assert done.returncode == 5
    assert "--fail-on: saturation (undecided), see few.jsonl.audit.html" in done.stderr
    assert guerdon(tmp_path, few, "--fail-on", "undecided").returncode == 5
    for decided in ("any", "undecided:nan", "undecided:unread"):
        assert guerdon(tmp_path, few, "--fail-on", decided).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--fail-on", "lenth"), "no check has this name; did you mean length?"),
        (("--fail-on", "length:eror"), "one of error, warning, info; did you mean error"),
        (("--columns", "reward"), "as in reward=score"),
        (("--output", "page.txt"), "end its name in .html"),
        (("--second", "nothing.jsonl"), "nothing.jsonl: there is no such file"),
    ],
)
def test_wrong_words_end_with_two_and_one_line(tmp_path, words, said):
    done = guerdon(tmp_path, write(tmp_path / "log.jsonl"), *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == "" or "--fail-on" in words


def test_a_second_reward_is_on_the_page_and_in_the_json(tmp_path):
    log = write(tmp_path / "log.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    other = tmp_path / "scored.jsonl"
    other.write_text("".join(json.dumps({**row, "reward": 1 - row["reward"]}) + "\n" for row in rows))
    done = guerdon(tmp_path, log, "--second", other, "--json")
    assert done.returncode == 0, done.stderr
    second = json.loads(done.stdout)["second"]
    assert second["figures"]["correlation"]["value"] == pytest.approx(-1)
    assert "grpo" in second["advantages"]
    said = CliRunner().invoke(app, ["audit", str(log), "--second", str(other), "-o", str(tmp_path / "b.html")]).output
    assert re.search(r"^second reward .*scored.*$", said, re.M)
    assert re.search(r"^correlation: −1 \[.*\] \(\d+ rows\)$", said, re.M), said
    assert "Second reward" in (tmp_path / "log.jsonl.audit.html").read_text()


def test_what_a_server_scored_is_compared_with_reference_data(tmp_path):
    random = np.random.default_rng(0)

    def served(name, mean):
        sample = ServedSample(tmp_path / name, share=1.0)
        texts = ["x" * int(random.integers(20, 200)) for _ in range(400)]
        episodes = [Episode(id="e", task=f"{name} {k}", texts=(text,)) for k, text in enumerate(texts)]
        scores = [ExplainedScore(Score(total=float(random.normal(mean)))) for _ in texts]
        sample.keep("prm", episodes, scores)
        sample.close()
        return tmp_path / name

    reference = write(tmp_path / "evaluation.jsonl", 4)
    with reference.open("w") as file:
        for k in range(400):
            row = {"prompt": f"q{k}", "response": "y" * int(random.integers(20, 200)), "reward": float(random.normal())}
            file.write(json.dumps(row) + "\n")
    words = ("--second", reference, "--json", "--fail-on", "score_drift:warning")
    same = guerdon(tmp_path, served("same", 0.0), *words)
    assert same.returncode == 0, same.stderr
    assert {"score_drift", "input_drift"} <= set(json.loads(same.stdout)["clean"])
    higher = guerdon(tmp_path, served("higher", 1.5), *words)
    assert higher.returncode == 5, higher.stderr
    found = json.loads(higher.stdout)
    assert "score_drift" in [one["name"] for one in found["findings"]]
    assert "input_drift" in found["clean"]
    assert found["second"]["drift"][0]["what"] == "reward"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The command in this process, in a folder of its own: its exit status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        done = CliRunner().invoke(app, ["audit", *map(str, words)])
        error = done.exception
        status = error.exit_code if isinstance(error, GuerdonError) else done.exit_code
        return subprocess.CompletedProcess(words, status, done.stdout, done.stderr + str(error or ""))

    return call


def test_the_rows_of_a_finding_are_saved_and_read_again(tmp_path, here, monkeypatch):
    monkeypatch.setattr(log_view, "MOST_ROWS", 10)
    log = write(tmp_path / "log.jsonl", 600, paid=1.0)
    done = here(log, "--save-rows", "truncated", "rows.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    finding = next(one for one in json.loads(done.stdout)["findings"] if one["name"] == "truncated")
    saved = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(saved) == finding["count"] > len(finding["rows"]), "all rows, beyond those that the JSON names"
    assert [one["row"] for one in saved[: len(finding["rows"])]] == finding["rows"]
    given = [json.loads(line) for line in log.read_text().splitlines()]
    for one in saved:
        assert {**given[one["line"] - 1], **one} == one | {"step": given[one["line"] - 1]["step"]}
        assert one["truncated"]
        assert one["reward"] == 1
    assert json.loads(here("rows.jsonl", "--json").stdout)["rows"] == len(saved)
    none = here(log, "--save-rows", "flattery", "none.jsonl")
    assert "--save-rows flattery: not found, so none.jsonl is not written" in none.stderr
    assert not (tmp_path / "none.jsonl").exists()


def test_without_texts_nothing_holds_a_prompt_or_a_response(tmp_path, here):
    log = write(tmp_path / "log.jsonl", 600, paid=1.0)
    words = (log, "--no-texts", "--save-rows", "truncated", "rows.jsonl")
    for more in ((), ("--json",)):
        done = here(*words, *more)
        assert done.returncode == 0, done.stderr
        page = (tmp_path / "log.jsonl.audit.html").read_text()
        said = done.stdout + done.stderr + page + (tmp_path / "rows.jsonl").read_text()
        assert "What is" not in said
        assert "one sees" not in said
        assert 'id="part-0"' not in page
        assert "truncated" in done.stdout, "the checks have read the texts and flags"
        assert "texts are left out, as was asked for" in page


def test_without_texts_no_answer_is_quoted(tmp_path, here):
    """Half of the right answers are not paid: the finding names their share, and neither answers nor references."""
    rows = [
        {"prompt": f"Question {k // 4}?", "response": f"The answer is {k // 4 + 70_000 + 900 * (k % 3 == 0)}.",
         "reference": str(k // 4 + 70_000), "reward": int(k % 3 == 1), "step": k // 40}
        for k in range(400)
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert 'answer "700' in here("log.jsonl").stdout
    done = here("log.jsonl", "--no-texts", "--json")
    found = {one["name"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["unpaid_right"]["title"].endswith("are not paid, by the reference answers (numbers)")
    assert found["unpaid_right"]["examples"][0][1].startswith("the reward is 0")
    assert "700" not in done.stdout + (tmp_path / "log.jsonl.audit.html").read_text()


def test_accepted_findings_do_not_fail_until_they_are_worse(tmp_path, here):
    log = write(tmp_path / "log.jsonl", 600, paid=1.0)
    found = json.loads(here(log, "--json").stdout)["findings"]
    names = {one["name"]: one for one in found}
    file = tmp_path / "accepted.txt"
    words = (log, "--fail-on", "any", "--accepted", file)
    file.write_text("# known\n\n" + "".join(f"{name}  # why\n" for name in names) + "flattery\n")
    done = here(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert all(one["accepted"] for one in json.loads(done.stdout)["findings"])
    assert "flattery is accepted and was not found; its line can go" in done.stderr
    effect = names["truncated"]["effect"]
    for line, ends in ((f"truncated {effect + 0.01}", 0), (f"truncated {effect - 0.01}", 5), ("truncated:info", 5)):
        file.write_text(line + "\n" + "".join(f"{name}\n" for name in names if name != "truncated"))
        assert here(*words).returncode == ends, line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--save-rows", "lenth", "a.jsonl"), "no check has this name; did you mean length?"),
        (("--save-rows", "length", "a.csv"), "end the name in .jsonl"),
        (("--accepted", "a.txt"), "add --fail-on any"),
        (("--watch", "--against", "b.jsonl"), "--against b.jsonl: the log that is watched is compared when it is done"),
        (("--labels", "out", "--second", "b.jsonl"), "--labels out and --second: labels are the one second reward"),
        (("--labels", "out", "--watch"), "--labels out and --watch: labels are the one second reward"),
    ],
)
def test_options_that_would_do_nothing_are_refused(here, words, said):
    done = here("log.jsonl", *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lenth", "accepted.txt:1: no check is called lenth; did you mean length?"),
        ("\nlength:bad", "accepted.txt:2: the severity bad is none of error, warning, info"),
        ("length high", "accepted.txt:1: high is no number"),
        ("length 1 2", "a remark only after a #"),
    ],
)
def test_a_wrong_line_of_accepted_findings_is_named(tmp_path, text, said):
    (tmp_path / "accepted.txt").write_text(text)
    with refuses("--accepted") as refused:
        read_accepted(tmp_path / "accepted.txt", ("length", "format"))
    assert said in str(refused.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_accepted_findings_that_cannot_be_read_are_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "accepted.txt").write_bytes(content)
    with refuses("--accepted", "accepted.txt: cannot be read .* write a name of a finding in each line"):
        read_accepted(tmp_path / "accepted.txt", ("length",))


def test_runs_of_one_file_have_a_page_of_all_and_no_second_reward(tmp_path, here, monkeypatch):
    rows = write(tmp_path / "a.jsonl", 80).read_text().splitlines()
    both = tmp_path / "both.jsonl"
    both.write_text("".join(json.dumps({**json.loads(row), "run": "xy"[k // 40]}) + "\n" for k, row in enumerate(rows)))
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.2 5022 10.0.0.1 22")
    monkeypatch.setenv("USER", "ann")
    done = here(both)
    assert done.returncode == 0, done.stderr
    assert "run x: 40 rows" in done.stdout
    assert "run y: 40 rows" in done.stdout
    assert done.stdout.endswith("page of all runs: both.jsonl.audit.html\n")
    assert f"scp ann@10.0.0.1:{tmp_path.resolve()}/both.jsonl.audit.html ." in done.stderr
    assert [json.loads(line)["run"] for line in here(both, "--json").stdout.splitlines()] == ["x", "y"]
    with refuses("--second", r"both.jsonl holds 2 runs \(x, y\); pass one of them"):
        audit_path(Wanted(both, tmp_path / "page.html", second=tmp_path / "a.jsonl"))


def test_a_run_is_compared_with_another_one_in_lines_of_text(tmp_path, here):
    for name, paid in (("a", 0.0), ("b", 1.0)):
        write(tmp_path / f"{name}.jsonl", 80, paid=paid)
    done = here("a.jsonl", "--against", "b.jsonl")
    assert done.returncode == 0, done.stderr
    said = done.stdout.partition("\nagainst ")[2].splitlines()
    assert said[0] == "b.jsonl, by prompt: 20 prompts are in both"
    assert re.fullmatch(r"truth: ([\d.]+) here, \1 there: 0 \[0, 0\] \(20 prompts\)", said[1]), said[1]
    assert said[2] == "reward: 0.412 here, 0.625 there: \u22120.212 [\u22120.291, \u22120.134] (20 prompts)"
    assert "answers gained: 0, lost: 0" in said
    (tmp_path / "progress.csv").write_text("time/total_timesteps,rollout/ep_rew_mean\n100,1.5\n200,2.5\n")
    with pytest.raises(DataError, match="it has no rows to compare with"):
        audit_path(Wanted(tmp_path / "a.jsonl", tmp_path / "page.html", against=tmp_path / "progress.csv"))
    with pytest.raises(DataError, match="is compared row by row, and the file has no rows"):
        audit_path(Wanted(tmp_path / "a.jsonl", tmp_path / "page.html", second=tmp_path / "progress.csv"))


# ---- watching


class Watched:
    """A process that watches; its lines come from both streams."""

    def __init__(self, folder, *words):
        command = [sys.executable, "-m", "guerdon", "audit", *map(str, words), "--watch"]
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = []
        self.fresh = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self.fresh:
                self.lines.append(line.rstrip())
                self.fresh.notify_all()

    def wait_for(self, pattern, times=1):
        with self.fresh:
            found = self.fresh.wait_for(
                lambda: sum(bool(re.search(pattern, x)) for x in self.lines) >= times, timeout=90
            )
        assert found, self.lines

    def end(self):
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture
def watched():
    started = []

    def start(*words):
        started.append(Watched(*words))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


def test_a_live_log_is_read_again_when_it_has_grown(tmp_path, watched):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    watching = watched(tmp_path, folder, "-o", folder / "page.html")
    watching.wait_for("waiting: ")
    write(tmp_path / "1", 40).rename(folder / "1.jsonl")
    watching.wait_for(r"^40 rows")
    page = folder / "page.html"
    watching.wait_for("^page: ")
    with page.open() as before:  # while it is open, its inode is not given to another file
        write(tmp_path / "2", 80, start=40).rename(folder / "2.jsonl")
        watching.wait_for(r"^80 rows")
        watching.wait_for("^page: ", times=2)
        inode = os.fstat(before.fileno()).st_ino
        assert page.stat().st_ino != inode, "written anew and renamed, so that a reader never sees half of it"
    assert "live" in page.read_text()
    assert watching.end() == 0
    watching.wait_for("ended; the page is")


@pytest.mark.slow
def test_a_watch_ends_with_five_as_soon_as_the_finding_is_there(tmp_path, watched):
    log = write(tmp_path / "log.jsonl", 40)
    watching = watched(tmp_path, log, "--fail-on", "truncated")
    watching.wait_for("^page: ")
    write(log, 3000, paid=1.0, start=40)
    assert watching.process.wait(90) == 5


def test_its_help_and_import_are_light():
    code = "import sys; from guerdon.auditing.command import audit\n"
    code += "print({'torch', 'scipy', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr


def test_an_audit_loads_no_torch(tmp_path):
    log = write(tmp_path / "log.jsonl")
    code = f"import sys; sys.argv = ['guerdon', 'audit', {str(log)!r}, '--second', {str(log)!r}]\n"
    code += "from guerdon.cli import main\ntry:\n    main()\nexcept SystemExit:\n    print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip().endswith("False"), done.stderr


def test_it_sleeps_between_two_looks_and_reads_only_what_changed(tmp_path, monkeypatch):
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    log.write_text("1")
    slept, read = [], []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            log.write_text("12")
        if len(slept) == 5:
            raise KeyboardInterrupt

    def once(every):
        read.append(log.read_text())
        page.write_text(f"page {len(read)}")  # in the folder of the log, where it is no change

    monkeypatch.setattr(command.time, "sleep", sleep)
    command._whenever_changed(tmp_path, page, once)
    assert read == ["1", "12"]
    assert min(slept) >= 1


# ---- its parts


def test_conditions_are_read():
    assert _condition("length") == ("length", "info")
    assert _condition("length:warning") == ("length", "warning")
    assert _condition("unread:error") == ("unread", "error")
    assert _condition("undecided") == ("undecided", "any")
    assert _condition("undecided:tail") == ("undecided", "tail")
    with pytest.raises(ConfigError, match="no check has the name tial; did you mean tail") as refused:
        _condition("undecided:tial")
    assert refused.value.key == "--fail-on"
    with refuses("--fail-on"):
        _condition("unred")


def test_the_json_has_plain_finite_values():
    nan = float("nan")
    one = Finding("nan", "error", "t", nan, (-np.inf, np.inf), "u", None, (np.int64(3),), ((3, "x"),), "r", 1, 2)
    rows = Rows("plain", ("a",), np.zeros(1, int), np.zeros(1, int), np.zeros(1))
    other = SecondReward("b", "by row", np.zeros(1), {"c": Figure(0.5, None, None, 1, "rows")}, {}, ())
    audit = Audit((one,), {"a": "b"}, {"c": "d"}, {"e": "f"})
    found = json.loads(Audited(rows, audit, other, Path("p.html")).as_json())
    assert found == {
        "findings": [{
            "name": "nan", "severity": "error", "title": "t", "effect": None, "interval": [None, None], "unit": "u",
            "p": None, "rows": [3], "examples": [[3, "x"]], "remedy": "r", "count": 1, "total": 2,
            "phrases": [], "excerpts": [], "joined_to": "", "accepted": False,
        }],
        "clean": {"a": "b"}, "unchecked": {"c": "d"}, "undecided": {"e": "f"},
        "counts": {"found": 1, "clean": 1, "undecided": 1, "not made": 1},
        "rows": 1, "layout": "plain", "read_as": [], "course": None,
        "second": {
            "name": "b", "matched": "by row", "advantages": {}, "drift": [],
            "figures": {"c": {"value": 0.5, "low": None, "high": None, "n": 1, "unit": "rows"}},
        },
    }  # fmt: skip


def test_a_terminal_gets_no_control_characters_of_the_log(tmp_path):
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for k in range(40):
            file.write(
                json.dumps({"prompt": "p\u001b[2J", "response": "\u001b]0;x\u0007" * (k % 3), "reward": "nan"}) + "\n"
            )
    done = guerdon(tmp_path, log)
    assert "\u001b" not in done.stdout + done.stderr


def test_lines_name_what_was_not_decided_and_not_checked():
    n = np.zeros(3)
    rows = Rows("plain columns", ("a",), n.astype(int), n.astype(int), n)
    audit = Audit(
        (),
        {"a": "x"},
        {"length": "no responses", "nan": "no reward", "format": "no responses"},
        {"tail": "needs 100 responses"},
    )
    assert list(lines(Audited(rows, audit, None, Path("p.html")))) == [
        "3 rows, plain columns: 0 found, 1 clean, 1 undecided, 3 not made",
        "undecided: tail: needs 100 responses",
        "not checked: length, format: no responses",
        "not checked: nan: no reward",
        "page: p.html",
    ]


def test_lines_name_answers_and_phrases_of_another_run_and_what_was_not_compared():
    found = Against("b", "by prompt: 60 prompts are in both", gained=30, lost=15, p=0.036,
                    phrases=(NewPhrase("i checked this twice", 0.4, 0.0, 0.001),),
                    missing={"length": "one of the logs has no responses"})  # fmt: skip
    assert list(command.against_lines(found)) == [
        "against b, by prompt: 60 prompts are in both",
        "answers gained: 30, lost: 15 (p 0.036)",
        'phrase "i checked this twice": in 40% of the responses here, in 0% there',
        "not compared: length: one of the logs has no responses",
    ]


def test_a_finding_of_no_rows_or_of_the_rows_of_another_one_is_said_to_be_so(tmp_path):
    one = Finding("format", "info", "t", 0.1, (0.0, 0.2), "u", None, (), (), "r", 2, 9, joined_to="length")
    n = np.zeros(9)
    rows = Rows("plain columns", ("a",), n.astype(int), n.astype(int), n)
    done = Audited(rows, Audit((one,), {}, {}, {}), None, Path("p.html"))
    assert "info: format: t (2 of 9 rows, mostly those of length)" in list(lines(done))
    assert save_rows(done, "format", tmp_path / "rows.jsonl").startswith("--save-rows format: the finding is about no ")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_gone_has_no_state(tmp_path):
    assert command._state(tmp_path / "gone") is None
    assert command._state(tmp_path) is None
    (tmp_path / "a").write_text("abc")
    assert command._state(tmp_path / "a")[0] == 3
