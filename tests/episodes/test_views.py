"""Episodes with several cameras: each is a feature of the data set, and is read back by its name."""

from dataclasses import replace

import numpy as np
import pytest

from guerdon.episodes.layout import camera_names
from guerdon.episodes.read import read_episodes, summarize
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.types import Episode
from tables import refuses


def episode(seed, rows=7):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 255, (rows, 16, 24, 3), dtype=np.uint8)
    actions = np.concatenate([np.zeros((1, 2)), rng.normal(size=(rows - 1, 2))]).astype(np.float32)
    return Episode(id=str(seed), task="look", frames=frames, actions=actions, views={"wrist": 255 - frames[:, :8]})


def test_every_camera_comes_back_by_name(tmp_path):
    with EpisodeWriter(tmp_path, camera="top") as writer:
        for seed in range(2):
            writer.add(episode(seed))
    assert set(summarize(tmp_path).cameras) == {"top", "wrist"}
    for seed, (top, wrist) in enumerate(
        zip(read_episodes(tmp_path, camera="top"), read_episodes(tmp_path, camera="wrist"), strict=True)
    ):
        assert np.array_equal(top.frames, episode(seed).frames)
        assert np.array_equal(wrist.frames, episode(seed).views["wrist"])
    with pytest.raises(DataError, match="several cameras"):
        next(read_episodes(tmp_path))


def test_a_key_with_a_slash_is_a_camera_with_a_dot(tmp_path):
    """LeRobot refuses names with slashes."""
    with EpisodeWriter(tmp_path, camera="top") as writer:
        one = replace(episode(0), views={"arm/wrist": episode(0).views["wrist"]})
        writer.add(one)
        twice = replace(one, id="1", views={**one.views, "arm.wrist": one.views["arm/wrist"]})
        with pytest.raises(DataError, match=r"two of its cameras have one name: arm/wrist, arm\.wrist"):
            writer.add(twice)
    assert set(summarize(tmp_path).cameras) == {"top", "arm.wrist"}
    for name in ("arm/wrist", "arm.wrist"):
        (found,) = read_episodes(tmp_path, camera=name)
        assert np.array_equal(found.frames, one.views["arm/wrist"])
    (both,) = read_episodes(tmp_path, camera="top", views=["arm/wrist"])
    assert np.array_equal(both.views["arm/wrist"], one.views["arm/wrist"])
    assert "arm/wrist" in camera_names("arm.wrist"), "as a world calls it that a model of this data looks at"


def test_every_camera_has_a_video_of_its_own(tmp_path):
    pytest.importorskip("av")
    still = np.full((7, 16, 24, 3), 200, np.uint8)
    with EpisodeWriter(tmp_path, camera="top", video=True) as writer:
        for seed in range(2):
            writer.add(Episode(id=str(seed), task="look", frames=still, views={"wrist": still // 4}))
    for camera, level in (("top", 200), ("wrist", 50)):
        found = list(read_episodes(tmp_path, camera=camera))
        assert len(found) == 2
        assert all(abs(one.frames.mean() - level) < 4 for one in found)


def test_a_data_set_keeps_its_cameras(tmp_path):
    with EpisodeWriter(tmp_path, camera="top") as writer:
        writer.add(episode(0))
        alone = Episode(id="9", task="look", frames=episode(9).frames, actions=episode(9).actions)
        with refuses("observation.images.wrist"):
            writer.add(alone)


def test_rows_are_cut_from_all_cameras_alike():
    whole = episode(0)
    assert np.array_equal(whole[2:5].views["wrist"], whole.views["wrist"][2:5])
    assert np.array_equal(whole.take([4, 0]).views["wrist"], whole.views["wrist"][[4, 0]])
    with pytest.raises(ValueError, match="different lengths"):
        Episode(id="0", task="", frames=whole.frames, views={"wrist": whole.views["wrist"][1:]})
    with pytest.raises(ValueError, match=r"wrist must be uint8"):
        Episode(id="0", task="", frames=whole.frames, views={"wrist": whole.views["wrist"].astype(float)})


def test_roles_belong_to_their_texts():
    told = Episode(id="0", task="add", texts=("3+5", "8", "so 8"), roles=("assistant", "tool", "assistant"), group="a")
    assert told.take([2, 1]).roles == ("assistant", "tool")
    assert (told[1:].roles, told[1:].group, len(told)) == (("tool", "assistant"), "a", 3)
    with pytest.raises(ValueError, match="different lengths"):
        Episode(id="0", task="add", texts=("3+5", "8"), roles=("assistant",))
    with pytest.raises(ValueError, match="no column"):
        Episode(id="0", task="add", roles=("assistant",))
