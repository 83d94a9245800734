"""Load data sets that guerdon wrote with the real `lerobot` package and compare values. Not for pytest.

`lerobot` pins an older torch, so it needs an environment of its own. From the root of the project:

    python -m venv lerobot-env && lerobot-env/bin/pip install "lerobot[dataset]>=0.4"
    python tests/episodes/check_with_lerobot.py write some-folder
    lerobot-env/bin/python tests/episodes/check_with_lerobot.py check some-folder
    lerobot-env/bin/python tests/episodes/check_with_lerobot.py record some-folder
    python tests/episodes/check_with_lerobot.py read some-folder

`write` needs guerdon with its `video` extra and runs in guerdon's environment; `check` needs only lerobot
and the `.npz` files that `write` leaves beside the data sets. `record` and `read` are the other way round:
lerobot writes, guerdon reads. Each prints `ok` for each form (PNG, MP4) or
ends with an AssertionError. Passed with lerobot 0.6.1 (torch 2.11) for both forms, and with lerobot 0.4.4 for
PNG; 0.4 decodes MP4 through a torchvision reader that newer torchvision no longer has.
"""

import sys
from pathlib import Path

import numpy as np

LENGTHS = (5, 1, 9, 7, 2)
FPS = 10
FORMS = ("png", "mp4")


def write(folder: Path) -> None:
    from guerdon.episodes.read import read_episodes
    from guerdon.episodes.write import EpisodeWriter
    from guerdon.types import Episode

    random = np.random.default_rng(0)
    episodes = []
    for number, length in enumerate(LENGTHS):
        y, x = np.mgrid[0:32, 0:48]
        frames = np.stack([np.stack([y + t, x + 2 * t, np.full_like(x, 40 + number)], -1) for t in range(length)])
        actions = random.normal(size=(length, 4)).astype(np.float32)
        rewards = random.normal(size=length).astype(np.float32)
        actions[0] = rewards[0] = 0
        success = np.arange(length) == length - 1
        episodes.append(
            Episode(
                id=f"episode-{number}",
                task=("close the window", "press the button")[number % 2],
                frames=frames.astype(np.uint8),
                states=random.normal(size=(length, 6)).astype(np.float32),
                actions=actions,
                rewards=rewards,
                success=success,
                outcome=None if number == 0 else bool(number % 2),
            )
        )
    for form in FORMS:
        with EpisodeWriter(folder / form, fps=FPS, flush_every=2, video=form == "mp4") as writer:
            for episode in episodes:
                writer.add(episode)
        read = list(read_episodes(folder / form))
        columns = {name: np.concatenate([getattr(e, name) for e in read]) for name in ("frames", "states", "actions")}
        tasks = np.concatenate([[e.task] * len(e) for e in read])
        first = np.concatenate([np.arange(len(e)) == 0 for e in read])
        rewards = np.concatenate([e.rewards for e in read])
        np.savez(folder / f"{form}.npz", tasks=tasks, first=first, rewards=rewards, **columns)
        print("wrote", folder / form)


def check(folder: Path) -> None:
    import lerobot
    import torch

    try:
        from lerobot.datasets import LeRobotDataset
    except ImportError:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

    for form in FORMS:
        truth = np.load(folder / f"{form}.npz")
        options = {"video_backend": "pyav"} if form == "mp4" else {}
        data = LeRobotDataset(repo_id="local/x", root=folder / form, **options)
        assert data.num_episodes == len(LENGTHS)
        assert len(data) == sum(LENGTHS) == data.meta.total_frames
        assert data.meta.episodes[4]["guerdon/id"] == "episode-4"
        assert data.meta.stats["observation.images.main"]["mean"].shape == (3, 1, 1)
        assert data.meta.stats["action"]["count"] == len(data)
        tolerance = 1e-6 if form == "png" else 1.5 / 255
        ends = np.cumsum(LENGTHS)
        for i in range(len(data)):
            item = data[i]
            image = item["observation.images.main"].permute(1, 2, 0).numpy()
            np.testing.assert_allclose(image, truth["frames"][i] / 255, atol=tolerance)
            np.testing.assert_array_equal(item["observation.state"].numpy(), truth["states"][i])
            last = i + 1 in ends
            action = np.zeros(4) if last else truth["actions"][i + 1]
            np.testing.assert_array_equal(item["action"].numpy(), action.astype(np.float32))
            np.testing.assert_array_equal(
                item["next.reward"].numpy(), np.float32(0 if last else truth["rewards"][i + 1])
            )
            assert item["task"] == truth["tasks"][i]
            assert bool(item["next.done"]) == (last or i + 2 in ends)
        window = LeRobotDataset(
            repo_id="local/x",
            root=folder / form,
            delta_timestamps={"observation.state": [-1 / FPS, 0.0]},
            **options,
        )
        assert window[2]["observation.state"].shape == (2, 6)
        batch = next(iter(torch.utils.data.DataLoader(data, batch_size=4)))
        assert batch["observation.images.main"].shape == (4, 3, 32, 48)
        print("ok", form, "with lerobot", getattr(lerobot, "__version__", "?"), "torch", torch.__version__)


def record(folder: Path) -> None:
    from lerobot.datasets import LeRobotDataset

    for form in FORMS:
        image = {"dtype": "image" if form == "png" else "video", "shape": (32, 48, 3)}
        features = {
            "observation.images.top": image | {"names": ["height", "width", "channels"]},
            "observation.state": {"dtype": "float32", "shape": (2,), "names": None},
            "action": {"dtype": "float32", "shape": (1,), "names": None},
            "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        }
        data = LeRobotDataset.create(
            "local/x", fps=FPS, features=features, root=folder / f"{form}-theirs", use_videos=form == "mp4"
        )
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
        print("recorded", folder / f"{form}-theirs")


def read(folder: Path) -> None:
    from guerdon.episodes.read import read_episodes, summarize

    for form in FORMS:
        root = folder / f"{form}-theirs"
        summary = summarize(root)
        assert (summary.episodes, summary.frames, summary.successes, summary.skipped) == (3, 21, 2, ())
        for number, episode in enumerate(read_episodes(root)):
            steps = np.arange(6 + number)
            grey = 20 * steps + number
            assert np.abs(episode.frames - grey[:, None, None, None]).max() <= (0 if form == "png" else 4)
            np.testing.assert_array_equal(episode.states, np.stack([np.full_like(steps, number), steps], -1))
            np.testing.assert_array_equal(episode.actions[:, 0], steps)  # the action before row t is t
            assert episode.task == "pour the tea"
            assert episode.outcome is (number > 0)
        print("ok", form, "recorded by lerobot")


if __name__ == "__main__":
    commands = {"write": write, "check": check, "record": record, "read": read}
    commands[sys.argv[1]](Path(sys.argv[2]))
