"""The examples of docs/client.md do what the page says, against a real socket."""

import asyncio
import re
from pathlib import Path

import pytest
from chaos import chaos_server, worth

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def example(words, server):
    """The first block with these words, asking this server; its names after it ran."""
    block = next(block for block in BLOCKS if words in block)
    names = {}
    exec(compile(block.replace("http://127.0.0.1:18080", server.url), words, "exec"), names)
    return names


@pytest.mark.parametrize("words", ["client.counts", 'aggregation="min"'])
def test_the_first_examples_print_rewards(words, capsys):
    with chaos_server() as server:
        example(words, server)
    wanted = worth("8") if "counts" in words else min(worth("3+5=8\n\n"), worth("8-2=6"))
    assert f"[{wanted}]" in capsys.readouterr().out


def test_the_function_for_trl():
    with chaos_server(["ok", "failure"]) as server:
        reward = example("def guerdon_reward", server)["guerdon_reward"]
        chat = [[{"role": "user", "content": "q"}]] * 2
        said = [[{"role": "assistant", "content": text}] for text in ("a", "b")]
        assert reward(prompts=chat, completions=said, answer=["x", "y"]) == [worth("a"), worth("b")]
        assert reward(prompts=chat, completions=said) == [None, worth("b")]


def test_the_function_for_verl():
    async def ask(compute_score):
        given = {"data_source": "gsm", "ground_truth": "8", "extra_info": {"question": "3+5=?"}}
        return await asyncio.gather(*(compute_score(solution_str=text, **given) for text in ("a", "b", "c")))

    with chaos_server(["ok", "ok", "bad_request"]) as server:
        names = example("def compute_score", server)
        found = asyncio.run(ask(names["compute_score"]))
        assert {body["items"][0]["prompt"] for body in server.requests} == {"3+5=?"}
    assert sorted(one["measured"] for one in found) == [0.0, 1.0, 1.0]
    for text, one in zip("abc", found, strict=True):
        assert one["score"] == (worth(text) if one["measured"] else 0.0)
        assert set(one) == {"score", "measured"}


def test_the_environment(capsys):
    with chaos_server(granularity="total", modality="image") as server:
        example("score_videos", server)
        assert len(server.requests) == 1
        assert server.requests[0]["options"]["nframes"] == 16
    assert capsys.readouterr().out.split() == [str(worth("[0, 0, 0]"))] * 2
