"""The example of an OpenEnv environment as a world, with OpenEnv's own environment and server."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from agent_parts import Says
from guerdon.collect.conversations import ConversationLoop, agent_of
from guerdon.policies.batches.tokens import stop_ids
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.settings.agent import OwnAgentSettings
from guerdon.settings.data import PromptsDataSettings
from guerdon.tasks.prompts import Prompt

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("openenv") is None, reason="openenv is not installed: make test-agents"),
]


@pytest.fixture
def url(tmp_path):
    """Of the environment that `openenv init` makes, with two sessions."""
    subprocess.run([sys.executable, "-m", "openenv.cli", "init", "echo_env"], cwd=tmp_path, check=True)
    app = tmp_path / "echo_env" / "server" / "app.py"
    app.write_text(app.read_text().replace("max_concurrent_envs=1", "max_concurrent_envs=2"))
    command = [sys.executable, "-m", "uvicorn", "server.app:app", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path / "echo_env", stderr=subprocess.PIPE, text=True) as server:
        try:
            found = (re.search(r"running on (http://\S+)", line) for line in server.stderr)
            yield next(filter(None, found))[1]
        finally:
            server.kill()


def test_the_environment_of_openenv_init(url):
    params = {"url": url, "action": "message", "shown": "echoed_message"}
    chosen = OwnAgentSettings(type="examples.openenv_world:OpenEnvWorld", params=params, max_turns=3)
    agent, tokenizer = agent_of(chosen, temperature=1.0), byte_tokenizer()
    data = PromptsDataSettings(path="unread.jsonl", max_response_length=20)

    def write(prompt, u):
        return "hello" if "ready" in prompt.rsplit("<|user|>", 1)[1] else prompt.rsplit("<|user|>", 1)[1][:5] * 2

    engine = Says(tokenizer, write)
    loop = ConversationLoop(tokenizer, engine, agent, chosen, data, stops=stop_ids(tokenizer), room=None)
    prompt = Prompt("a", ({"role": "user", "content": "Write much."},), "", "echo")
    for one in loop.lead([prompt] * 2, root=1):
        assert one.failure is None
        assert [call.reward for call in one.calls] == pytest.approx([0.5, 1.0, 1.0])
        said = [message["content"] for message in one.messages if message["role"] == "user"]
        assert said[:3] == ["Write much.", "Echo Env environment ready!", "hello"]
        assert (one.truncated, one.outcome, one.contexts) == (True, 0.0, 1)
