"""Files of strangers, made and mutated at random, in every reader: rows, or a `GuerdonError` with one line.

Rows have the columns of known layouts with values of any kind in them; bytes are those of valid files with some of them
changed, cut or repeated. Each file is read in a process with limits (`fuzzing.Reader`).
"""

import csv
import io
import json
import shutil
import tempfile
import zipfile
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from fuzzing import LIMIT_S, Reader, fuzz

DATA = Path(__file__).parent / "auditing" / "data"
TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
STEPS = {"question": "1+2", "steps": ["1+2=3", "3"], "step_labels": [1, 0]}
VALID = {  # rows of each layout that is read, by what reads them
    "preferences": [
        {"prompt": "q", "chosen": "a", "rejected": "b", "margin": 1.5, "subset": "s", "id": "1"},
        {"chosen": TALK, "rejected": TALK, "score_chosen": 2.0, "score_rejected": 1, "domain": "d", "tools": []},
        {"prompt": "q", "chosen": ["a", "b"], "rejected": ["c"], "num_correct": 2, "num_incorrect": 1},
        {"context": TALK[:1], "response1": "a", "response2": "b", "overall_preference": -2},
        {"prompt": "q", "response_1": "a", "response_2": "b", "preference_strength": 2, "winner": "model_a",
         "conv_metadata": {}, "language": "de"},
        {"prompt": "q", "response_0": "a", "response_1": "b", "better_response_id": 0},
        {"conversation_a": TALK, "conversation_b": TALK, "winner": "tie"},
        {"question": "q", "pair_id": "p", "response_A": "a", "response_B": "b", "label": "A>B"},
        {"history": "q", "human_ref_A": "a", "human_ref_B": "b", "labels": 1},
        {"question": {"full_text": "q"}, "answer_0": "a", "answer_1": "b", "score_0": 1.0, "score_1": -1},
        {"prompt": "\n\nHuman: q\n\nAssistant: ", "answers": [{"answer": "a", "rank": 1}, {"answer": "b",
         "rank": 2.0}]},
        {"instruction": "q", "input": "x", "completions": [{"response": "a", "overall_score": 3.0}, {"response": "b",
         "overall_score": 7}]},
        {"prompt": "q", "responses": ["a", "b"], "scores": [1, 2], "ranks": [2, 1]},
        {"prompt": '["q"]', "response_a": '["a"]', "response_b": '["b"]', "winner_model_a": 0, "winner_model_b": 1},
    ],
    "labelled": [
        {"prompt": "q", "completion": "a", "label": True, "human_label": 0.5, "prompt_id": 1},
        {"prompt": "q", "response": "a", "helpfulness": 4, "verbosity": 1.0, "human_label": "yes"},
        {"messages": TALK, "system": "s", "rubric": [{"text": "t", "weight": 1}], "reference": "r"},
    ],
    "solutions": [
        {"input_text": "Question: q\n\n### Partial Solution:\na", "target_text": "correct", "reward_value": 1.0,
         "step": 0},
        {"prompt": "q", "completions": ["a", "b"], "labels": [True, False], "label_mask": [1, 1], "separator": "\n"},
        {"question": "q", "modified_process": ["a", "b"], "error_steps": [1], "classification": "c"},
        {"input": "q Step 1: a \u043a\u0438\nStep 2: b \u043a\u0438", "label": "q Step 1: a +\nStep 2: b -",
         "task": "GSM8K"},
        {"problem": "q", "steps": ["a", "b"], "label": 1, "final_answer_correct": False, "generator": "g"},
        {"question": {"problem": "q", "ground_truth_answer": "1", "pre_generated_steps": ["a"]}, "label": {"steps": [
         {"completions": [{"text": "a", "rating": 1, "flagged": None}], "human_completion": None,
          "chosen_completion": 0}],
         "finish_reason": "solution"}, "unclosed": [0], "rest": ["b"]},
        {**STEPS, "solution": "1+2=3\n3", "step_ends": [6, 7], "step_rewards": [1.0, None], "is_correct": True,
         "meta": "{}",
         "conversation": TALK, "answer": "3", "ground_truth_answer": "3"},
    ],
    "prompts": [
        {"question": "q", "answer": "x #### 1,000", "solution": "\\boxed{1}", "ability": "math", "data_source": "s"},
        {"prompt": TALK[:1], "reward_model": {"ground_truth": "1", "style": "rule"}, "extra_info": {"index": 1}},
        {"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
        {"question": "q", "options": ["a", "b"], "answer_index": 1, "A": "a", "B": "b"},
        {"text": "write f", "code": "def f(): pass", "test_list": ["assert f() is None"], "test_setup_code": "",
         "task_id": 1},
        {"question_content": "q", "public_test_cases": '[{"input": "1", "output": "2", "testtype": "stdin"}]'},
        {"prompt": "q", "entry_point": "f", "test": "def check(candidate):\n    assert candidate(1)", "query": "q"},
        {"input_output": '{"inputs": ["1"], "outputs": ["2"], "fn_name": "f"}', "problem": "q"},
    ],
    "log": [
        {"step": 1, "prompt": "q", "completion": "a", "advantage": 0.5, "length_reward": 1.0},
        {"query": "qa", "prompt": "q", "reward": 0.5, "label": "1"},
        {"responses_create_params": {"input": [{"role": "user", "content": "q"}], "tools": []}, "response": {"output": [
         {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]}, "reward": 1.0,
         "_ng_task_index": 0},
        {"example_id": 1, "prompt": TALK[:1], "completion": TALK[1:], "reward": 1.0, "metrics": {"m": 1}},
        {"epoch": 1, "id": 1, "input": "q", "target": "1", "messages": TALK, "scores": {"s": {"value": "C"}},
         "attachments": {"x": "y"}, "output": {"choices": [{"message": TALK[1], "stop_reason": "stop"}]}},
        {"tokens": ["a"], "rewards": {"m": [0.5]}, "outcome": True, "prompt": "q", "text": "a", "step": 3},
        {"return/combined": 1.0, "success": True, "length": 3, "step": 7, "kind": "episode"},
        *(json.loads(line) for line in (DATA / "verl/rollout/2.jsonl").read_text().splitlines()[:1]),
    ],
    "rubric": [
        {"criteria": [{"name": "n", "text": "t", "weight": 2}]},
        {"samples": [], "eval": {}, "columns": ["a"], "data": [[1]], "responses": [{"text": "a"}], "status": "success"},
    ],
}  # fmt: skip
NAMES = sorted({name for rows in VALID.values() for row in rows for name in row})


def nested(depth, opening, value):
    """A value inside so many lists or maps."""
    for _ in range(depth):
        value = [value] if opening == "[" else {"a": value}
    return value


def as_text(value):
    """JSON of a value, as columns of Parquet and CSV hold it."""
    return json.dumps(value, default=str)


NUMBERS = [
    None, True, False, 0, -1, 3, 2**31, 2**63, -(2**64), 10**400, -0.0, 0.5, 1e308, float("nan"), float("inf"),
    float("-inf"),
]  # fmt: skip
TEXTS = [
    "", " ", "a", "0", "1", "-1", "1.5", "nan", "1e999", "true", "\u0661", "\n", "a\nb", "\x00",
    "\x1b[31m",
    "\u2028", "\ud800", "a\udfff", "\U0001f600", "A", "B>A", "model_b", "tie", "solution", "found_error", "correct",
    "a" * 70_000, "(" * 3000, "[" * 3000, '{"a":' * 3000, "[1, 2", '{"role": "user"}', '[{"role": "user"}]', "null",
    "9" * 5000, "\\boxed{" * 300, "\\frac{1" * 300, "#### ", "#### 1", "$" * 999, "\n\nHuman: x\n\nAssistant: y",
    "\u043a\u0438", "+", "-", "assert f(1) == 1", "def check(c): pass", "../../etc/passwd", "{problem}", "%s", "=1+1",
    '"', ",",
]  # fmt: skip
SCALARS = [*NUMBERS, *TEXTS]
scalars = st.sampled_from(SCALARS) | st.text(max_size=8) | st.integers() | st.floats()
names = st.sampled_from([*NAMES, "role", "content", "type", "text", "image_url", "tool_calls", "function", "name",
                         "arguments", "parameters", "value", "from", "rank", "score", "", "a\nb",
                         "\ud800"])  # fmt: skip
messages = st.lists(st.dictionaries(st.sampled_from(["role", "content", "from", "value", "tool_calls", "name"]),
                                    st.sampled_from(["user", "assistant", "system", "tool", "x", ""]) | scalars,
                                    max_size=4), max_size=3)  # fmt: skip
deep = st.builds(nested, st.sampled_from([5, 150, 300]), st.sampled_from("[{"), st.sampled_from([None, 1, "a"]))
cells = st.recursive(
    scalars | messages | deep,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3) | inner.map(as_text),
    max_leaves=8,
)


@st.composite
def changed(draw, value, depth=0):
    """A value in which one place has another one."""
    inside = isinstance(value, list | dict) and value and depth < 6
    if not inside or draw(st.integers(0, 2)) == 0:
        alike = NUMBERS if isinstance(value, int | float) else TEXTS
        return draw(cells | st.sampled_from(alike))
    place = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    copy = dict(value) if isinstance(value, dict) else list(value)
    action = draw(st.integers(0, 5))
    if action == 0:
        del copy[place]
    elif action == 1 and isinstance(copy, dict):
        copy[draw(names)] = copy.pop(place)
    elif action == 1:
        copy.insert(place, draw(cells))
    else:
        copy[place] = draw(changed(value[place], depth + 1))
    return copy


def rows_of(kind):
    """The kind with rows of its layouts, as they are and with other values in some places."""
    valid = st.sampled_from(VALID[kind])
    once = valid.flatmap(changed)
    any_row = st.dictionaries(names, cells, max_size=8) | cells
    maps = st.one_of(valid, once, once, once, once.flatmap(changed), any_row)
    return st.tuples(st.just(kind), st.lists(maps, min_size=1, max_size=2))


rows = st.sampled_from(sorted(VALID)).flatmap(rows_of)


def of_columns(given):
    """Rows as maps with all columns of all of them."""
    own = [row if isinstance(row, dict) else {"value": row} for row in given]
    columns = list(dict.fromkeys(name for row in own for name in row))
    return columns, [[row.get(name) for name in columns] for row in own]


def plain(value):
    """What a cell of text says of a value."""
    return value if isinstance(value, str) else "" if value is None else as_text(value)


def encoded(text):
    """Bytes of a text; halves of characters make them no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def table(given, delimiter):
    """A file of columns."""
    columns, lines = of_columns(given)
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows([columns, *([plain(cell) for cell in line] for line in lines)])
    return encoded(text.getvalue())


def parquet(given):
    """A Parquet file; columns whose values have no common type are texts."""
    columns, lines = of_columns(given)
    arrays = []
    for values in zip(*lines, strict=True):
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, RecursionError):
            arrays.append(pa.array([encoded(plain(value)).decode("utf-8", "replace") for value in values]))
    sink = io.BytesIO()
    shown = [encoded(name).decode("utf-8", "replace") for name in columns]
    try:
        pq.write_table(pa.table(arrays, names=shown), sink)
    except pa.ArrowException:  # types that Parquet does not have, such as a map without keys
        texts = [pa.array([plain(line[place]).encode("utf-8", "replace").decode() for line in lines])
                 for place in range(len(columns))]  # fmt: skip
        pq.write_table(pa.table(texts, names=shown), sink)
    return sink.getvalue()


def archive(given):
    """A log of inspect_ai."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("header.json", "{}")
        for number, row in enumerate(given):
            out.writestr(f"samples/{number}_epoch_1.json", json.dumps(row))
    return sink.getvalue()


FORMS = {
    ".jsonl": lambda given: "".join(json.dumps(row) + "\n" for row in given).encode(),
    ".json": lambda given: json.dumps(given).encode(),
    "object.json": lambda given: json.dumps(given[0]).encode(),
    "metrics.jsonl": lambda given: "".join(json.dumps(row) + "\n" for row in given).encode(),
    ".csv": lambda given: table(given, ","),
    ".tsv": lambda given: table(given, "\t"),
    ".parquet": parquet,
    ".eval": archive,
}


def file_name(form):
    """The name of a file of a form, some of which are known by their whole name."""
    return f"x{form}" if form.startswith(".") else form


READ_BY = {
    "preferences": ["preferences", "choices", "labelled", "score"],
    "labelled": ["labelled", "score", "preferences", "log"],
    "solutions": ["solutions", "bad solutions", "score", "log"],
    "prompts": ["prompts", "questions", "score", "labelled"],
    "log": ["log", "score", "rows"],
    "rubric": ["rubric", "rows", "log"],
}
OF_ROWS = sorted({name for names in READ_BY.values() for name in names})
FILES = [path for path in sorted(DATA.rglob("*")) if path.is_file() and path.stat().st_size < 30_000
         and path.suffix != ".py" and "lerobot" not in path.parts]  # fmt: skip
SETS = DATA / "lerobot"
OF_SETS = ["episodes", "summary", "hash", "data files", "log", "progress"]
PROGRESS = {"index": [0, 1], "episode_index": [0, 0], "frame_index": [0, 1], "progress_sparse": [0.0, 0.5]}

changes = st.lists(
    st.tuples(
        st.sampled_from(["flip", "put", "cut", "repeat", "end", "number"]), st.floats(0, 1),
        st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\n",
        b'"', b","]),
        st.integers(1, 300),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


def mutated(data, changes):
    """Bytes with changes at places that are shares of their length."""
    for action, share, new, length in changes:
        at = int(share * max(len(data) - 1, 0))
        if action == "flip":
            data = data[:at] + bytes([data[at] ^ (new[0] or 1)]) + data[at + 1 :] if data else data
        elif action == "put":
            data = data[:at] + new + data[at:]
        elif action == "cut":
            data = data[:at] + data[at + length :]
        elif action == "repeat":
            data = data[:at] + data[at : at + length] * 20 + data[at + length :]
        elif action == "end":
            data = data[:at]
        else:
            data = data[:at] + new + data[at + len(new) :]
    return data


def check(reader, name, path):
    """Read a file, and complain about anything but rows and a refusal in one line."""
    outcome, said = reader.read(name, path)
    assert outcome in ("rows", "refused"), said


pytestmark = [pytest.mark.hostile("files"), pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


@pytest.fixture(scope="module")
def reader():
    with Reader() as process:
        yield process


@pytest.fixture
def folder(tmp_path):
    """Folders that are emptied between examples, for hypothesis calls a test many times."""
    return Emptied(tmp_path)


class Emptied:
    def __init__(self, parent):
        self._parent = parent

    def __enter__(self):
        self._folder = Path(tempfile.mkdtemp(dir=self._parent))
        return self._folder

    def __exit__(self, *_):
        shutil.rmtree(self._folder)


def test_rows_with_known_columns_and_any_values(reader, folder):
    def read(given, form, more):
        kind, content = given
        with folder as place:
            path = place / file_name(form)
            path.write_bytes(FORMS[form](content))
            for name in [*READ_BY[kind], more]:
                check(reader, name, path)

    fuzz(read, given=rows, form=st.sampled_from(list(FORMS)), more=st.sampled_from(OF_ROWS))


def test_valid_files_with_changed_bytes(reader, folder):
    def read(given, form, source, changes, more):
        kind, content = given
        with folder as place:
            path = place / (file_name(form) if source is None else source.name)
            path.write_bytes(mutated(FORMS[form](content) if source is None else source.read_bytes(), changes))
            for name in [*READ_BY[kind], more] if source is None else ["log", more]:
                check(reader, name, path)

    valid = st.sampled_from(sorted(VALID)).flatmap(
        lambda kind: st.tuples(st.just(kind), st.lists(st.sampled_from(VALID[kind]), min_size=1, max_size=3))
    )
    fuzz(
        read, given=valid, form=st.sampled_from(list(FORMS)), source=st.none() | st.sampled_from(FILES),
        changes=changes, more=st.sampled_from(OF_ROWS),
    )  # fmt: skip


def places(value, path=()):
    """Paths to the values in a row, and to the row itself."""
    yield path
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def with_other(value, path, new):
    """A copy of a row with another value at a path."""
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = with_other(value[path[0]], path[1:], new)
    return copy


OTHERS = [*SCALARS, [], {}, ["a"], [1], {"a": 1}, TALK, [TALK], nested(150, "[", 1), nested(150, "{", "a")]


@pytest.mark.parametrize("kind", VALID)
def test_every_value_in_every_place(kind, reader, folder):
    broken = {}
    for row in VALID[kind]:
        for path in islice(places(row), 40):
            for new in OTHERS:
                with folder as place:
                    file = place / "x.jsonl"
                    file.write_text(json.dumps(with_other(row, path, new)) + "\n")
                    for name in READ_BY[kind]:
                        outcome, said = reader.read(name, file)
                        if outcome == "broken":
                            broken.setdefault(said[-300:], (name, path, ascii(new)[:60]))
    assert not broken


@st.composite
def other_tables(draw, source):
    """A Parquet file of a data set with other values, columns or rows."""
    found = pq.read_table(source)
    for _ in range(draw(st.integers(1, 3))):
        names = found.column_names
        place = draw(st.integers(0, len(names) - 1))
        action = draw(st.integers(0, 4))
        if action == 0:
            found = found.remove_column(place) if len(names) > 1 else found
        elif action == 1:
            found = found.slice(draw(st.integers(0, max(found.num_rows - 1, 0))))
        elif action == 2:
            found = pa.concat_tables([found, found.slice(0, 3)])
        else:
            own = found[place].to_pylist()
            new = draw(st.lists(cells | st.none(), min_size=1, max_size=6))
            kept = draw(st.integers(0, len(new)))
            column = [value if number % 6 < kept else new[number % len(new)] for number, value in enumerate(own)]
            found = found.set_column(place, names[place], as_array(column))
    sink = io.BytesIO()
    try:
        pq.write_table(found, sink)
    except pa.ArrowException:
        return b"PAR1"
    return sink.getvalue()


def as_array(values):
    """A column of values of any kind."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, RecursionError):
        return pa.array([encoded(plain(value)).decode("utf-8", "replace") for value in values])


def test_lerobot_data_sets_with_other_metadata_and_bytes(reader, folder):
    paths = sorted(path.relative_to(SETS) for path in SETS.rglob("*") if path.is_file())
    described = json.loads((SETS / "meta/info.json").read_text())
    sources = st.sampled_from([path for path in paths if path.suffix == ".parquet"])
    content = st.one_of(
        changed(described).map(lambda info: (Path("meta/info.json"), json.dumps(info).encode())),
        sources.flatmap(lambda path: st.tuples(st.just(path), other_tables(SETS / path))),
        st.sampled_from(paths).flatmap(
            lambda path: changes.map(lambda those: (path, mutated((SETS / path).read_bytes(), those)))
        ),
        st.lists(st.sampled_from(list(PROGRESS)), min_size=1).map(
            lambda names: (Path("sarm_progress.parquet"), parquet([{name: PROGRESS[name][0] for name in names}]))
        ),
    )

    def read(content, name):
        path, data = content
        with folder as place:
            root = place / "set"
            shutil.copytree(SETS, root)
            pq.write_table(pa.table(PROGRESS), root / "sarm_progress.parquet")
            (root / path).write_bytes(data)
            check(reader, name, root)

    fuzz(read, content=content, name=st.sampled_from(OF_SETS))
