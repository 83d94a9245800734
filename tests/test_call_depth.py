"""How many functions of guerdon stand between a command and the loss."""

import re
import subprocess
import sys
from pathlib import Path

from child import environment

TESTS = Path(__file__).parent
MOST = 12


def test_a_reader_reaches_the_loss_through_few_functions():
    command = [sys.executable, str(TESTS / "call_depth.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(TESTS), timeout=300)
    assert done.returncode == 0, done.stderr
    found = {name: int(count) for name, count in re.findall(r"(?m)^(\S.*): (\d+)$", done.stdout)}
    assert found.keys() == {"CartPole", "tiny text"}
    assert max(found.values()) <= MOST, done.stdout
