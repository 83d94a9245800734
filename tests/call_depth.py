"""Counts the frames of guerdon between a command and the loss of the policy: `python tests/call_depth.py`.

Runs `guerdon run` of CartPole and of a tiny language model for one update, and prints the functions of guerdon on the
stack when the loss is computed for the first time. The count is of those below `cli.main`.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from guerdon import cli

LOSSES = {"guerdon.rl.losses": "ppo", "guerdon.rl.update": "add_gradients"}
RUNS = {
    "CartPole": ["CartPole-v1", "env.num_envs=2", "algorithm.rollout_steps=8", "algorithm.minibatch_size=16",
                 "policy.hidden=[4]", "runner.total_steps=16", "runner.eval_every=16", "runner.eval_episodes=1"],
    "tiny text": ["study.yaml"],
}  # fmt: skip
TEXT = (
    "policy: {type: text, tiny: {alphabet: '0123456789+-*=?;', layers: 1}, bf16: false}\n"
    "data: {type: generated, task: {family: chain}, train_size: 8, val_size: 2, train_batch_size: 4, n_samples: 2, "
    "max_response_length: 8, max_prompt_length: 64, filter_accuracy: false, filter_truncated: false}\n"
    "algorithm: {adv_estimator: rloo}\nrunner: {total_steps: 8, eval_every: 8, eval_episodes: 2}\n"
)


def frames_to_the_loss(words):
    """Functions of guerdon on the stack, from the outermost, at the first call of a loss in `guerdon run WORDS`."""
    found = []

    def look(frame, event, arg):
        if event != "call" or LOSSES.get(frame.f_globals.get("__name__")) != frame.f_code.co_name:
            return
        sys.setprofile(None)
        while frame is not None:
            if (module := frame.f_globals.get("__name__", "")).startswith("guerdon."):
                found.append(f"{module}: {frame.f_code.co_qualname}")
            frame = frame.f_back
        found.reverse()

    sys.argv = ["guerdon", "run", *words]
    sys.setprofile(look)
    try:
        with contextlib.redirect_stdout(sys.stderr), contextlib.suppress(SystemExit):
            cli.main()
    finally:
        sys.setprofile(None)
    return found


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    Path("study.yaml").write_text(TEXT)
    for name, words in RUNS.items():
        frames = frames_to_the_loss(words)
        if not frames:
            raise SystemExit(f"{name}: no loss was computed by the functions that LOSSES names")
        sys.stdout.write("\n".join([f"{name}: {len(frames) - 1}", *(f"  {one}" for one in frames)]) + "\n")
