"""What foreign code can raise, and reward models that raise it at the word `poison`."""

import asyncio

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from guerdon.types import RewardInfo, Score

PANICS = "a" * 60 + "b"  # the regular expression below backtracks on it until the library gives up, by a panic


class Odd(BaseException):
    """As a library may define one."""


class Mute(Exception):
    """Cannot even be shown."""

    def __str__(self):
        raise Odd("no words")


def raised(error):
    """A function that raises this."""

    def function():
        raise error

    return function


def panicking(tokenizer):
    """A tokenizer of the library tokenizers, changed so that it panics on `PANICS`: a real one, a `BaseException`."""
    split = pre_tokenizers.Split(Regex("(a|aa)+$"), "isolated")
    own = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = split if own is None else pre_tokenizers.Sequence([split, own])
    return tokenizer


def panic():
    """Panic."""
    tokenizer = panicking(Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?")))
    assert tokenizer.encode("aab").ids == [1]
    return tokenizer.encode(PANICS)


def close_like():
    """Raise `GeneratorExit` in a plain function, where no generator is closed."""
    raise GeneratorExit


WAYS = {
    "panic": panic,
    "odd": raised(Odd("of a library")),
    "interrupt": raised(KeyboardInterrupt()),
    "cancel": raised(asyncio.CancelledError()),
    "exit": raised(SystemExit(0)),
    "generator": close_like,
    "mute": raised(Mute()),
    "value": raised(ValueError("wrong")),
}


class Raises:
    """The number of characters of a response; at `poison` it does what a way says."""

    info = RewardInfo(name="raises", range=(0.0, 1e9), granularity="total", modality="text", frames_needed=0)

    def __init__(self, way):
        self.way, self.calls = way, []

    def score(self, episodes):
        self.calls.append(len(episodes))
        texts = ["".join(episode.texts) for episode in episodes]
        if any("poison" in text for text in texts):
            WAYS[self.way]()
        return [Score(total=float(len(text))) for text in texts]


def make(way):
    """For a configuration."""
    return Raises(way)
