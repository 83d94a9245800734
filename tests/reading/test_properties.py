"""What holds of any rows: containers, orders and mirror images change nothing that they should not; counts add up."""

from hypothesis import given
from hypothesis import strategies as st
from layout_files import written

from guerdon.episodes.preferences import read_preferences
from guerdon.errors import DataError
from guerdon.reading.codings import said
from guerdon.reading.data_sets import held_part
from guerdon.reading.reader import DataReading, read
from guerdon.tasks.prompt_files import prompts_in

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), min_size=1, max_size=12)
CELL = st.one_of(TEXT, st.sampled_from(["007", "1.0", "NA", "null", "true", "[1]", '{"a": 1}', "- x", " y ", '"']))
ROWS = st.lists(st.fixed_dictionaries({"prompt": CELL, "response": st.one_of(st.none(), CELL)}), min_size=1, max_size=8)
CONTAINERS = (".jsonl", ".json", ".jsonl.gz", ".jsonl.bz2", ".parquet", ".arrow", ".csv", ".tsv")


def reading_of(rows):
    return DataReading("file", [held_part([(f"file:{k + 1}", row) for k, row in enumerate(rows)], "file", "row")])


@given(ROWS)
def test_texts_are_the_same_in_every_container_and_unchanged(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    for ending in CONTAINERS:
        reading = read(written(folder, f"rows{ending}", rows))
        found = [[record.roles.get("prompt"), record.roles.get("response")] for record in reading.records()]
        assert found == [[row["prompt"], row["response"]] for row in rows], ending


VOTES = st.sampled_from([
    ("A", "B", "tie"), (1, 2, None), ("left", "right", "both"), (-2, 3, 0), ("Response A", "Response B", "Both bad"),
    (True, False, None), (0, 1, 0.5), (1, 5, 3), ("x", "y", None), ("A>>B", "B>A", "A=B"), (1, 2, 0),
])  # fmt: skip


@given(VOTES, st.lists(st.integers(0, 2), min_size=1, max_size=12), st.randoms())
def test_the_order_of_rows_decides_nothing(values, sides, random):
    known = [side for side in sides if values[side] is not None] or [0]
    rows = [
        {"prompt": f"p{k}", "response_a": "a", "response_b": "b", "winner": values[side]}
        for k, side in enumerate(known)
    ]
    plans = [reading_of(some).plan for some in (rows, random.sample(rows, len(rows)), rows[::-1])]
    shown = [(plan.uses["winner"].coding and plan.uses["winner"].coding.name, dict(plan.unclear)) for plan in plans]
    assert shown[0] == shown[1] == shown[2]


WORDS = st.sampled_from(["a", "b", "1", "2", "0", "-1", "true", "false", "x", "yes", "no", "left", "response_b", "a>b"])


@given(WORDS, WORDS)
def test_what_is_said_of_a_winner_has_a_mirror_image(first, second):
    if first == second:
        return
    one, other = said(f"{first}/{second}", "winner"), said(f"{second}/{first}", "winner")
    assert [one.read(word, {}) for word in (first, second)] == [-1.0, 1.0]
    assert [other.read(word, {}) for word in (first, second)] == [1.0, -1.0]


@given(st.lists(st.booleans(), min_size=2, max_size=10), st.booleans())
def test_a_mirrored_file_gives_mirrored_judgements(votes, is_number):
    values = (1, 2) if is_number else ("A", "B")

    def better(votes, columns):
        rows = [
            {"prompt": f"p{k}", columns[0]: "a", columns[1]: "b", "winner": values[vote]}
            for k, vote in enumerate(votes)
        ]
        reading = reading_of(rows)
        return [record.roles["winner"] for record in reading.records()]

    straight = better(votes, ("response_a", "response_b"))
    mirrored = better([not vote for vote in votes], ("response_b", "response_a"))
    assert mirrored == [-sign for sign in straight] or len({*votes}) == 1


ASKED = st.one_of(st.none(), TEXT)


@given(st.lists(st.fixed_dictionaries({"question": TEXT, "answer": ASKED, "image": ASKED}), min_size=1, max_size=8))
def test_prompts_read_used_and_left_out_add_up(rows):
    kept = []
    try:
        prompts_in(reading_of(rows), "file", read_as=kept)
    except DataError:
        return
    (one,) = kept
    assert one.record["rows"] == one.record["used"] + sum(one.record["left_out"].values()) == len(rows)


@given(st.lists(st.lists(TEXT, min_size=1, max_size=3), min_size=1, max_size=5))
def test_prompts_of_lists_of_responses_add_up_too(groups):
    rows = [{"prompt": f"p{k}", "completions": texts, "rewards": [0.5] * len(texts)} for k, texts in enumerate(groups)]
    kept = []
    found = prompts_in(reading_of(rows), "file", answered=False, read_as=kept)
    (one,) = kept
    assert len(found) == one.record["used"] == len(groups)
    assert one.record["rows"] == one.record["used"] + sum(one.record["left_out"].values()) == sum(map(len, groups))


@given(st.lists(st.sampled_from(["A", "B", "tie", None, "?"]), min_size=1, max_size=40))
def test_preferences_of_a_file_add_up(tmp_path_factory, votes):
    rows = [{"prompt": f"p{k}", "response_a": "a", "response_b": "b", "winner": vote} for k, vote in enumerate(votes)]
    kept = []
    try:
        found = read_preferences(written(tmp_path_factory.mktemp("votes"), "rows.jsonl", rows), read_as=kept)
    except DataError:
        return
    assert len(found.comparisons) + sum(found.left_out.values()) == len(rows)
    (one,) = kept
    assert one.record["rows"] == one.record["used"] + sum(one.record["left_out"].values()) == len(rows)
