"""Progress beside a LeRobot data set, for weighted cloning: `python examples/lerobot_progress.py`."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from guerdon import Episode, EpisodeWriter, Failure, RewardInfo, Score
from guerdon.integrations.lerobot import write_progress_file


class Brightness:
    """How bright a frame is; a black one cannot be measured."""

    info = RewardInfo(name="brightness", range=(0.0, 1.0))

    def score(self, episodes):
        return [self._one(float(episode.frames.mean()) / 255) for episode in episodes]

    def _one(self, value):
        return Score(steps=np.float32([value])) if value else Score(failure=Failure("black"))


def demonstration(name, levels):
    frames = np.stack([np.full((16, 16, 3), level, np.uint8) for level in levels])
    return Episode(id=name, task="switch on the light", frames=frames, states=np.zeros((len(levels), 1), np.float32))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        with EpisodeWriter(root, camera="front") as writer:
            writer.add(demonstration("good", [25, 100, 175, 250]))
            writer.add(demonstration("dark", [25, 0, 25, 25]))
        model = {"model_type": "lerobot_progress:Brightness"}  # this file, as python's path has its folder
        path = write_progress_file(root, model)
        for row in pq.read_table(path).to_pylist():
            print(row["episode_index"], row["frame_index"], f"{row['progress_sparse']:.2f}", row["failure"] or "")
