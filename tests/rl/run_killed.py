"""`guerdon run`, in which one process of several kills itself: python run_killed.py RANK UPDATE run study.yaml"""

import os
import signal
import sys

from guerdon.cli import main
from guerdon.rl.learner import OnPolicyLearner

if __name__ == "__main__":
    rank, update = sys.argv.pop(1), int(sys.argv.pop(1))
    if os.environ["RANK"] == rank:
        learn, updates = OnPolicyLearner.update, []

        def dies(self, *args, **options):
            updates.append(None)
            if len(updates) == update:
                os.kill(os.getpid(), signal.SIGKILL)
            return learn(self, *args, **options)

        OnPolicyLearner.update = dies
    main()
