"""What four-turn conversations cost next to single responses of as many tokens: a gradient step, and generation.

    python benchmarks/agent_turns.py --core=0 --pairs=5

One core and its CPU time. Both sides have the same model with random weights (made in code), equally long sequences and
as many sampled tokens: a conversation is a prompt, four replies and three results of 20 tokens between them; a single
response has a prompt that is longer by these results. Sides take turns; the ratio is that of medians, with the range
over pairs. Targets: a gradient step at most 1.25 times as long, sampled tokens per second at least 0.8.
"""

from __future__ import annotations

import argparse
import platform
import statistics

from harness import Stopwatch, pin

TURNS, RESULT, PROMPT = 4, 20, 64


def main() -> None:
    """Measure both and print two rows of a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--reply", type=int, default=32, help="tokens of each of the four replies")
    parser.add_argument("--rows", type=int, default=8, help="conversations, and single responses")
    parser.add_argument("--hidden", type=int, default=384)
    given = parser.parse_args()
    pin([given.core])
    measured = {"gradient step": gradient_steps(given), "generation": generations(given)}
    print(f"{platform.processor() or platform.machine()}, {given}")
    for what, pairs in measured.items():
        ratios = [turns / single for turns, single in pairs]
        turns, single = (statistics.median(side) for side in zip(*pairs, strict=True))
        low, high = min(ratios), max(ratios)
        print(
            f"| {what} | {turns:.2f} s | {single:.2f} s | {turns / single:.2f} ({low:.2f} to {high:.2f}) | "
            f"{single / turns:.2f} |"
        )


def model(given: argparse.Namespace):
    """A policy with random weights."""
    import torch

    from guerdon.policies.language.text_files import load_policy
    from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings

    torch.set_num_threads(1)
    tiny = TinyModelSettings(
        tokenizer="bytes", hidden_size=given.hidden, layers=6, heads=6, kv_heads=2, intermediate=3 * given.hidden
    )
    return load_policy(TextPolicySettings(tiny=tiny, bf16=False), seed=0)


def batches(given: argparse.Namespace):
    """The calls of conversations, and single responses: the same tokens in sequences of the same length."""
    import numpy as np

    from guerdon.collect.conversations import Call, Conversation, arrays_of
    from guerdon.policies.batches.tokens import token_batch
    from guerdon.policies.language.tiny_text import byte_tokenizer
    from guerdon.tasks.prompts import Prompt

    rng = np.random.default_rng(0)
    prompt = Prompt("p", ({"role": "user", "content": "q"},), "", "none")
    talks, prompts, responses = [], [], []
    for _ in range(given.rows):
        ids = rng.integers(10, 200, PROMPT)
        calls = []
        for turn in range(TURNS):
            said = rng.integers(10, 200, given.reply)
            calls.append(Call(ids, said, np.zeros(given.reply, np.float32), True))
            result = rng.integers(10, 200, RESULT if turn < TURNS - 1 else 0)
            ids = np.concatenate([ids, said, result])
        talks.append(Conversation(prompt, (), tuple(calls)))
        longer = PROMPT + RESULT * (TURNS - 1)
        prompts.append(rng.integers(10, 200, longer))
        responses.append(rng.integers(10, 200, TURNS * given.reply))
    single = token_batch(prompts, responses, np.ones(given.rows, np.bool_), pad_id=0)
    return arrays_of(talks, byte_tokenizer()).batch, single


def gradient_steps(given: argparse.Namespace) -> list[tuple[float, float]]:
    """Core-seconds of a forward and backward pass over conversations, and over single responses."""
    policy, sides = model(given), batches(given)

    def step(batch: object) -> float:
        clock = Stopwatch()
        policy.evaluate(batch, entropy=True).log_probs.sum().backward()
        for parameter in policy.parameters():
            parameter.grad = None
        return clock.read()["core_seconds"]

    for batch in sides:
        step(batch)
    return [(step(sides[0]), step(sides[1])) for _ in range(given.pairs)]


def generations(given: argparse.Namespace) -> list[tuple[float, float]]:
    """Core-seconds in which conversations, and single responses, of as many tokens are sampled."""
    import numpy as np

    from guerdon.collect.conversations import ConversationLoop
    from guerdon.policies.language.generate import LocalEngine
    from guerdon.settings.agent import OwnAgentSettings
    from guerdon.settings.data import PromptsDataSettings
    from guerdon.settings.text_policy import LocalGenerationSettings
    from guerdon.tasks.prompts import Prompt

    policy = model(given)
    engine = LocalEngine(policy, LocalGenerationSettings())
    engine._is_stop_V.zero_()  # every reply has all its tokens
    data = PromptsDataSettings(path="none", max_response_length=given.reply)
    settings = OwnAgentSettings(type=f"{__name__}:Talk", max_turns=TURNS)
    tokenizer, none = policy.tokenizer, np.zeros(0, dtype=np.int64)
    longer: list[np.ndarray] = []
    rows = [Prompt(f"{k}", ({"role": "user", "content": "q" * PROMPT},), "", "none") for k in range(given.rows)]

    def converse() -> float:
        from guerdon.collect.agents import WorldAgent

        loop = ConversationLoop(tokenizer, engine, WorldAgent(settings), settings, data, stops=none, room=None)
        clock = Stopwatch()
        found = loop.lead(rows, root=1)
        engine.rest()
        seconds = clock.read()["core_seconds"]
        written = TURNS * given.reply
        (whole,) = {len(one.calls[-1].prompt) + given.reply for one in found}
        (before,) = {len(one.calls[0].prompt) for one in found}
        assert {sum(len(call.ids) for call in one.calls) for one in found} == {written}
        assert whole - written - before == RESULT * (TURNS - 1), (whole, written, before)
        longer[:] = [np.random.default_rng(k).integers(10, 200, whole - written) for k in range(len(rows))]
        return seconds

    def write() -> float:
        clock = Stopwatch()
        engine.generate(longer, 1, max_new_tokens=TURNS * given.reply, rng=np.random.default_rng(1))
        engine.rest()
        return clock.read()["core_seconds"]

    converse(), write()
    return [(converse(), write()) for _ in range(given.pairs)]


class Talk:
    """A world whose messages have 20 tokens with the marks of the turns; it never ends an episode."""

    def reset(self, row):
        """The prompt."""
        from guerdon.collect.agents import WorldStep

        return WorldStep(row["messages"])

    def step(self, message):
        """A few letters; the template adds the marks."""
        from guerdon.collect.agents import WorldStep

        return WorldStep(({"role": "user", "content": "r" * 17},))


if __name__ == "__main__":
    main()
