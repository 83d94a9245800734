"""`guerdon run`, of which one process stops: python run_stopped.py RANK update|collect COUNT run study.yaml"""

import os
import signal
import sys

from guerdon.cli import main
from guerdon.collect.text import TextCollector
from guerdon.rl.learner import OnPolicyLearner

if __name__ == "__main__":
    rank, where, count = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
    if os.environ["RANK"] == rank:
        owner = {"update": OnPolicyLearner, "collect": TextCollector}[where]
        original, calls = getattr(owner, where), []

        def stops(*args, **options):
            calls.append(None)
            if len(calls) == count:
                os.kill(os.getpid(), signal.SIGSTOP)
            return original(*args, **options)

        setattr(owner, where, stops)
    main()
