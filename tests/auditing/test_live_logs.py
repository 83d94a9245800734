"""A log that is read again: what is new is read, and all of it only where that does not fit."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from guerdon.auditing import command, run_files
from guerdon.auditing.logs import LogReader, read_log
from guerdon.reading import containers


def line(k, **more):
    row = {"prompt": f"What is {k // 4}?", "response": f"It is {k % 7}", "reward": float(k % 3), "step": k // 40}
    return json.dumps({**row, **more}) + "\n"


def same(a, b):
    """Two readings of a log, column by column."""
    for name, value in vars(a).items():
        other = getattr(b, name)
        if name == "texts" and value is not None:
            assert [list(x) for x in vars(value).values() if x is not None] == [
                list(x) for x in vars(other).values() if x is not None
            ]
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, other, err_msg=name)
        elif name != "rewards":
            assert value == other, name


@pytest.fixture
def parsed(monkeypatch):
    """The lines that are parsed."""
    seen = []
    true = containers.json_of
    monkeypatch.setattr(containers, "json_of", lambda line: seen.append(line) or true(line))
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_a_log_that_grew_is_read_as_one_that_is_read_at_once(tmp_path, seed, parsed, capsys):
    random = np.random.default_rng(seed)
    names = ["rank_0/a.jsonl", "rank_1/a.jsonl", "rank_0/b.jsonl"]
    whole = {name: "".join(line(1000 * k + i) for i in range(200)).encode() for k, name in enumerate(names)}
    written = dict.fromkeys(names, 0)
    live = LogReader(tmp_path)
    for turn in range(6):
        for name in names[: 1 + turn]:
            written[name] += int(random.integers(0, 3000)) + 500 * (turn == 0)  # often in the middle of a line
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(whole[name][: written[name]])
        parsed.clear()
        rows = live.read()
        again = len(parsed)
        parsed.clear()
        same(rows, read_log(tmp_path))
        assert turn == 0 or again < len(parsed)
    assert "is read again" not in capsys.readouterr().err


def test_only_new_lines_are_parsed(tmp_path, parsed):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(map(line, range(100))))
    live = LogReader(path)
    live.read()
    parsed.clear()
    assert len(live.read()) == 100
    assert parsed == []
    with path.open("a") as file:
        file.write(line(100) + line(101) + '{"prompt": "Wha')
    rows = live.read()
    assert len(rows) == 102
    assert len(parsed) == 3
    assert rows.bad == {containers.HALF_WRITTEN: 1}
    with path.open("a") as file:
        file.write('t?", "response": "r", "reward": 1, "step": 2}\n')
    rows = live.read()
    assert (len(rows), rows.bad, rows.line_N[-1]) == (103, {}, 103)


def test_where_new_rows_do_not_fit_all_is_read_again_and_it_says_so(tmp_path, capsys):
    path = tmp_path / "log.jsonl"
    path.write_text("".join(map(line, range(40))))
    live = LogReader(tmp_path)
    live.read()
    with path.open("a") as file:
        file.writelines(line(k, truth=k % 2) for k in range(40, 80))
    assert "read again" not in capsys.readouterr().err
    rows = live.read()
    assert "is read again: the new rows do not fit what the columns were taken for" in capsys.readouterr().err
    same(rows, read_log(tmp_path))
    path.write_text("".join(map(line, range(100, 180))))
    same(live.read(), read_log(tmp_path))
    assert "is read again: log.jsonl was written anew" in capsys.readouterr().err
    (tmp_path / "more.jsonl").write_text(line(7))
    same(live.read(), read_log(tmp_path))
    assert "read again" not in capsys.readouterr().err
    path.unlink()
    same(live.read(), read_log(tmp_path))
    assert "is read again: log.jsonl is gone" in capsys.readouterr().err


def test_new_files_of_trl_are_added_and_batches_that_are_logged_again_left_out(tmp_path, parsed, capsys):
    def batch(step, of):
        rows = {"step": [step] * 8, "prompt": [f"p{of}"] * 8, "completion": [f"c{k}" for k in range(8)],
                "accuracy_reward": [float(k % 2) for k in range(8)], "advantage": [0.5] * 8}  # fmt: skip
        pq.write_table(pa.table(rows), tmp_path / f"completions_{step:05d}.parquet")

    live = LogReader(tmp_path)
    for step, of in enumerate((0, 0, 1, 1, 1, 2)):
        batch(step, of)
        same(live.read(), read_log(tmp_path))
    assert "read again" not in capsys.readouterr().err
    assert "3 of 6 files are left out" in live.read().notes[-1]


def test_watching_waits_so_long_that_it_takes_a_fiftieth_of_a_core(tmp_path, monkeypatch):
    log, page = tmp_path / "log.jsonl", tmp_path / "page.html"
    now, slept, given = [0.0], [], []

    def sleep(seconds):
        slept.append(seconds)
        log.write_text("x" * len(slept))
        if len(slept) == 4:
            raise KeyboardInterrupt

    def once(every):
        given.append(every)
        now[0] += (6.0, 6.0, 0.5, 0.001)[len(given) - 1]

    monkeypatch.setattr(command.time, "process_time", lambda: now[0])
    monkeypatch.setattr(command.time, "sleep", sleep)
    command._whenever_changed(tmp_path, page, once)
    assert slept[0] == command.WAIT_S, "the first reading does not count"
    assert slept[1:] == pytest.approx([6 / 0.02 - 6, 0.5 / 0.02 - 0.5, command.WAIT_S])
    assert given == pytest.approx([command.RELOAD_S, command.RELOAD_S, 294, 24.5])


@pytest.mark.parametrize("seed", range(4))
def test_monitor_files_that_grow_are_parsed_from_where_they_ended(tmp_path, seed, monkeypatch):
    random, parsed = np.random.default_rng(seed), []
    true = run_files._episode
    monkeypatch.setattr(run_files, "_episode", lambda *given: parsed.append(given) or true(*given))
    head = '#{"t_start": 0.0, "env_id": "x"}\r\nr,l,t\r\n'
    whole = {
        name: (head + "".join(f"{k % 7}.5,{k % 5 + 1},{3 * k + place}.25\r\n" for k in range(60))).encode()
        for place, name in enumerate(("0.monitor.csv", "1.monitor.csv"))
    }
    written = dict.fromkeys(whole, len(head) + 40)
    live = LogReader(tmp_path)
    for _ in range(6):
        for name in written:
            written[name] += int(random.integers(0, 200))
            (tmp_path / name).write_bytes(whole[name][: written[name]])
        parsed.clear()
        rows = live.read()
        again = len(parsed)
        parsed.clear()
        same(rows, read_log(tmp_path))
        assert again <= len(parsed)
    assert again < len(parsed) / 2, "only new lines, and those that had no end"
    (tmp_path / "0.monitor.csv").write_bytes(whole["1.monitor.csv"][:300])
    same(live.read(), read_log(tmp_path))


def test_a_monitor_file_with_quoted_cells_is_read_as_at_once(tmp_path):
    path = tmp_path / "monitor.csv"
    path.write_bytes(b'#{"t_start": 0.0}\r\nr,l,t,note\r\n1.0,5,1.5,"a\r\nb"\r\n2.0,5,2.5,"c')
    live = LogReader(path)
    same(live.read(), read_log(path))
    with path.open("ab") as file:
        file.write(b'\r\nd"\r\n3.0,5,3.5,e\r\n')
    same(live.read(), read_log(path))
    assert live.read().reward_N.tolist() == [1.0, 2.0, 3.0]


def test_metrics_that_grow_are_parsed_from_where_they_ended(tmp_path, parsed):
    path = tmp_path / "metrics.jsonl"
    whole = "".join(
        json.dumps({"step": k, "kind": "train", "reward": k / 7, "success": k % 2}) + "\n" for k in range(90)
    )
    live = LogReader(tmp_path)
    for end in (900, 1500, 1510, 3000, len(whole)):
        path.write_text(whole[:end])
        parsed.clear()
        curves = live.read().curves
        again = len(parsed)
        parsed.clear()
        wanted = read_log(tmp_path).curves
        assert curves.keys() == wanted.keys() == {"train/reward", "train/success"}
        for name in wanted:
            np.testing.assert_array_equal(curves[name], wanted[name])
        assert again < len(parsed) or end == 900
    path.write_text(whole[:800])
    np.testing.assert_array_equal(live.read().curves["train/reward"], read_log(tmp_path).curves["train/reward"])
