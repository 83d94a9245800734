"""Starts `code_sandbox.py` in a Python without site, which does not find guerdon by itself.

$ python -I -S -B code_start.py -
{"ready": true, "memory": "group", "user": 65534}
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))  # behind the standard library, whose names none beside it may take
    from guerdon.tasks.code.code_sandbox import start

    sys.path.pop()
    start(sys.argv[1:])
