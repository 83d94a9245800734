"""LeRobot's side of `test_real_lerobot.py`, run by the interpreter that has `lerobot`: it knows nothing of guerdon.

python lerobot_side.py check FOLDER     # read FOLDER/{png,mp4} and compare with the .npz files beside them
python lerobot_side.py record FOLDER    # write FOLDER/{png,mp4}-theirs
"""

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

try:
    from lerobot.datasets import LeRobotDataset
except ImportError:  # lerobot 0.4
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

FORMS = ("png", "mp4")


def check(folder: Path) -> None:
    for form in FORMS:
        truth = np.load(folder / f"{form}.npz")
        lengths, fps = truth["lengths"].tolist(), int(truth["fps"])
        options = {"video_backend": "pyav"} if form == "mp4" else {}
        data = LeRobotDataset(repo_id="local/x", root=folder / form, **options)
        assert data.num_episodes == len(lengths)
        assert len(data) == sum(lengths) == data.meta.total_frames
        assert data.meta.episodes[4]["guerdon/id"] == "episode-4"
        assert [data.meta.episodes[i]["guerdon/outcome"] for i in range(3)] == [None, True, False]
        assert data.meta.stats["observation.images.main"]["mean"].shape == (3, 1, 1)
        assert data.meta.stats["action"]["count"] == len(data)
        tolerance = 1e-6 if form == "png" else 1.5 / 255
        ends = np.cumsum(lengths)
        for i in range(len(data)):
            item = data[i]
            image = item["observation.images.main"].permute(1, 2, 0).numpy()
            np.testing.assert_allclose(image, truth["frames"][i] / 255, atol=tolerance)
            np.testing.assert_array_equal(item["observation.state"].numpy(), truth["states"][i])
            last = i + 1 in ends
            action = np.zeros(4) if last else truth["actions"][i + 1]
            np.testing.assert_array_equal(item["action"].numpy(), action.astype(np.float32))
            reward = np.float32(0 if last else truth["rewards"][i + 1])
            np.testing.assert_array_equal(item["next.reward"].numpy(), reward)
            assert bool(item["next.success"]) == bool(truth["success"][i if last else i + 1])
            assert bool(item["next.done"]) == (last or i + 2 in ends)
            assert item["task"] == truth["tasks"][i]
        before = {"observation.state": [-1 / fps, 0.0]}
        window = LeRobotDataset(repo_id="local/x", root=folder / form, delta_timestamps=before, **options)
        assert window[2]["observation.state"].shape == (2, 6)
        batch = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
        assert batch["observation.images.main"].shape == (4, 3, 32, 48)
        print("checked", form, "by lerobot", version("lerobot"), "torch", torch.__version__)


def record(folder: Path) -> None:
    for form in FORMS:
        image = {"dtype": "image" if form == "png" else "video", "shape": (32, 48, 3)}
        features = {
            "observation.images.top": image | {"names": ["height", "width", "channels"]},
            "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
            "action": {"dtype": "float32", "shape": (1,), "names": None},
            "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        }
        root = folder / f"{form}-theirs"
        data = LeRobotDataset.create("local/x", fps=10, features=features, root=root, use_videos=form == "mp4")
        for number in range(3):
            for t in range(6 + number):
                data.add_frame(
                    {
                        "observation.images.top": np.full((32, 48, 3), 20 * t + number, np.uint8),
                        "observation.state": np.array([number, t], np.float32),
                        "action": np.array([t + 1], np.float32),
                        "next.success": np.array([number > 0 and t == 5 + number]),
                        "task": "pour the tea",
                    }
                )
            data.save_episode()
        data.finalize()
        print("recorded", form, "by lerobot", version("lerobot"))


if __name__ == "__main__":
    {"check": check, "record": record}[sys.argv[1]](Path(sys.argv[2]))
