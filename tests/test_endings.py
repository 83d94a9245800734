"""How commands end: what is interrupted prints the very command that goes on, and that command runs."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest
from typer.core import TyperCommand
from typer.testing import CliRunner

from forked import forked
from guerdon.cli import app
from guerdon.processes.process import going_on, how_to_fetch
from guerdon.secrets import remember
from tables import cases

TINY = """\
work_dir: work
env: {type: gymnasium, task: "tiny_world:Dot-v1", num_envs: 2, max_episode_steps: 10, frame_size: 32}
policy: {type: mlp, hidden: [8]}
algorithm: {rollout_steps: 10, minibatch_size: 10, num_epochs: 1}
collect: {save_dir: data, episodes: 16, frame_every: 1, mixture: [{type: random}]}
train: {way: {type: progress, data_path: data, save_dir: way, image_size: 16, max_steps: 2, batch_size: 4}}
evaluate: {reps: 100}
runner:
  {total_steps: 40, eval_every: 20, eval_episodes: 2, checkpoint_every: 20, logger: {tensorboard: false}}
"""
TEXT = {
    "policy": {"type": "text", "tiny": {"hidden_size": 16, "layers": 1, "heads": 2, "intermediate": 32}, "bf16": False},
    "data": {"type": "generated", "task": {"family": "chain", "steps": 3}, "max_response_length": 24},
    "label": {"save_dir": "labels", "labeler": "exact", "num_samples": 100, "num_rollouts": 1, "mining": None,
              "solutions": {"min_steps": 1}, "max_failure_rate": 1.0},  # random weights end few of their solutions
    "search": {"save_dir": "found", "questions": "questions.jsonl", "aggregation": "mean", "n": 2,
               "model": {"model_type": "length_model:Length"}, "max_failure_rate": 1.0},
}  # fmt: skip
ARMS = "compare={baseline: A, seeds: [0], arms: {A: {label: native}}}"
COMMANDS = (  # in an order in which each finds what it reads
    "collect tiny.yaml", "train tiny.yaml", "evaluate tiny.yaml", "run tiny.yaml", "play work/run --episodes 1",
    "report work/run", f"compare tiny.yaml work_dir=arms {shlex.quote(ARMS)}", "label text.yaml", "search text.yaml",
    "score rows.jsonl --model length_model:Length -o scored.jsonl", "audit rows.jsonl", "read rows.jsonl",
    "serve --custom-backend length_model:Length --dry-run", "quickstart --dry-run", "import pickled new", "doctor",
    "annotate rows.jsonl --port 0",
)  # fmt: skip
CONTINUE = {"annotate", "collect", "train", "run", "compare", "label", "search", "score"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the commands read."""
    made = tmp_path_factory.mktemp("endings")
    (made / "tiny.yaml").write_text(TINY)
    (made / "text.yaml").write_text(json.dumps(TEXT))
    rows = [{"prompt": f"{n}+1?", "response": str(n), "reward": n % 2} for n in range(8)]
    (made / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (made / "questions.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "2"}))
    return made


def pickled(folder):
    """A model whose weights are a pickle."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
        "vocab_size": 8,
    }
    model = LlamaForCausalLM(LlamaConfig(**shape))
    folder.mkdir()
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def interrupted():
    """Ctrl-C as soon as the command has begun."""

    def invoke(*_):
        raise KeyboardInterrupt

    TyperCommand.invoke = invoke


def interrupted_in_the_middle():
    """Ctrl-C while a run is under way."""
    from guerdon.rl.loop import Loop

    iterate, count = Loop.iterate, iter(range(100))

    def iterate_once(*given):
        if next(count):
            raise KeyboardInterrupt
        return iterate(*given)

    Loop.iterate = iterate_once


def ended_when_it_answers():
    """End the server of `guerdon annotate` as soon as it listens."""
    from guerdon.annotate import server

    startup = server._Server.startup

    async def start_and_end(self, sockets=None):
        await startup(self, sockets)
        self.should_exit = True

    server._Server.startup = start_and_end


def printed_by(said):
    return re.search(r"^guerdon: interrupted; .* (?:To continue|To start it again): guerdon (.+)$", said, re.M)[1]


def test_a_run_that_is_interrupted_names_the_command_that_continues(folder):
    words = ("run", "tiny.yaml", "work_dir=in the middle")
    ended = forked(*words, folder=folder, before=interrupted_in_the_middle)
    assert ended.status == 130, ended.said
    printed = printed_by(ended.said)
    assert shlex.split(printed) == [*words, "--resume"]
    again = forked(*shlex.split(printed), folder=folder)
    assert again.status == 0, again.said
    assert (folder / "in the middle" / "run" / "COMPLETE").is_file()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_command_that_each_command_names_runs(folder):
    pickled(folder / "pickled")
    assert {words.split()[0] for words in COMMANDS} == {
        one.name or one.callback.__name__ for one in app.registered_commands
    }
    for command in COMMANDS:
        words = shlex.split(command)
        ended = forked(*words, folder=folder, before=interrupted)
        assert ended.status == 130, (command, ended.said)
        printed = printed_by(ended.said)
        assert ("To continue" in ended.said) == (words[0] in CONTINUE), ended.said
        before = ended_when_it_answers if words[0] == "annotate" else None
        again = forked(*shlex.split(printed), folder=folder, before=before, patience=900)
        assert again.status == 0, (printed, again.said)


@cases(
    ("argv", "line"),
    [
        ("/bin/guerdon run a.yaml", "To continue: guerdon run a.yaml --resume"),
        ("/x/guerdon/__main__.py train a.yaml --resume", "To continue: python -m guerdon train a.yaml --resume"),
        ("guerdon run a.yaml --dry-run", "To start it again: guerdon run a.yaml --dry-run"),
        ("guerdon compare 'my study.yaml' 'compare.arms=[A, B]'",
         "To continue: guerdon compare 'my study.yaml' 'compare.arms=[A, B]'"),
        ("guerdon --version", "To start it again: guerdon --version"),
        ("guerdon annotate rows.jsonl", "To continue: guerdon annotate rows.jsonl"),
        ("guerdon annotate rows.jsonl --export", "To start it again: guerdon annotate rows.jsonl --export"),
    ],
)  # fmt: skip
def test_the_command_is_the_one_that_was_typed(argv, line):
    assert going_on(shlex.split(argv)) == line


def test_it_shows_no_secret():
    remember("x7Gq2Lm9Rt4Vb8", "token")
    assert "x7Gq" not in going_on(["guerdon", "serve", "--token", "x7Gq2Lm9Rt4Vb8"])


def test_a_file_that_cannot_be_written_is_named(folder):
    (folder / "closed").write_text("no folder")
    ended = forked("run", "tiny.yaml", "work_dir=closed/work", folder=folder)
    assert ended.status == 2, ended.said
    assert any("closed/work" in line for line in ended.errors), ended.said


def test_guerdon_alone_prints_its_help():
    alone, asked = (CliRunner().invoke(app, words) for words in ([], ["--help"]))
    assert (alone.exit_code, alone.output.strip()) == (0, asked.output.strip())


@cases(
    ("connection", "said"),
    [
        ("", ""),
        ("10.0.0.1 5000 10.0.0.2 22", "scp me@10.0.0.2:/a/report.html ."),
        ("fe80::1 5000 fe80::2 2222", "scp -P 2222 'me@[fe80::2]:/a/report.html' ."),
    ],
)
def test_over_ssh_a_line_says_how_to_fetch_the_page(connection, said):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSH_CONNECTION", connection)
        patch.setenv("USER", "me")
        line = how_to_fetch(Path("/a/report.html"))
    assert line == (f"to see it on your machine: {said}" if said else "")
    assert os.environ.get("SSH_CONNECTION") != connection or not connection
