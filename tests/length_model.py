"""A reward model of texts that tests of scoring files share."""

from guerdon.types import Failure, RewardInfo, Score


class Length:
    """The number of characters of a response; responses with `broken` in them cannot be measured (None: all can)."""

    info = RewardInfo(name="length", range=(0.0, 1e9), granularity="total", modality="text", frames_needed=0)

    def __init__(self, broken=None, dies_after=None):
        self.broken, self.left, self.seen = broken, dies_after, []

    def score(self, episodes):
        if self.left is not None and len(self.seen) >= self.left:
            raise KeyboardInterrupt
        texts = ["".join(episode.texts) for episode in episodes]
        self.seen += texts
        late = Score(failure=Failure("late", "30 s"))
        return [late if self.broken and self.broken in text else Score(total=float(len(text))) for text in texts]
