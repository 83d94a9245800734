"""Videos of training episodes: which, under which names, what they show, and that the run does not notice."""

import errno
import re

import numpy as np
import pytest

from guerdon.episodes.video import count_frames, decode_video
from guerdon.rl import videos
from guerdon.rl.run import run_folder
from guerdon.rl.videos import PANEL, shown, video_name
from guerdon.settings.study import Study
from rl_clock import Reader, clock_study, interrupted, lines, read_moment, reader_reward, result, start
from tables import refuses, sample

pytest.importorskip("av")
NAME = re.compile(r"rank_0--episode=(\d+)--success=(True|False|None)--task=(.{1,50})\.mp4")


def study_of(folder, name="run", *, env=None, **runner):
    runner = {"total_steps": 96, "eval_every": 96, "checkpoint_every": 24, **runner}
    return clock_study(
        folder, name=name, reward=reader_reward(combine_mode="add", score_every=2), runner=runner,
        env={"task_text": "Press: the red/blue button\nof the very long machine in the corner", **(env or {})},
    )  # fmt: skip


def files(study):
    return sorted((run_folder(study) / "videos").iterdir())


def test_names_are_those_of_the_guide():
    task = "pick up the black bowl, and place it on the plate of the left cabinet"
    assert video_name(2, 17, True, task) == (
        "rank_2--episode=17--success=True--task=pick_up_the_black_bowl__and_place_it_on_the_plate_.mp4"
    )
    assert video_name(0, 0, None, "../x") == "rank_0--episode=0--success=None--task=___x.mp4"


@pytest.mark.parametrize("mode", sample(["disabled", "next_step", "same_step"], "same_step"))
def test_every_finished_episode_is_a_whole_video(tmp_path, mode, monkeypatch):
    words = {}
    monkeypatch.setattr(
        videos, "shown",
        lambda frame, lines, factor: words.setdefault(read_moment(frame), lines) and shown(frame, lines, factor=factor),
    )  # fmt: skip
    study = study_of(tmp_path, save_video=True, video_share=1.0, env={"autoreset_mode": mode})
    loop = start(study)
    rollouts, measure = [], loop.sources["constant"].measure
    loop.sources["constant"].measure = lambda r, **k: rollouts.append((r, measure(r, **k))) or rollouts[-1][1]
    loop.run()
    found = [NAME.fullmatch(path.name) for path in files(study)]
    assert all(found)
    assert {one[3] for one in found} == {"press__the_red_blue_button_of_the_very_long_machin"}
    episodes = lines(study, "episodes")
    assert len(found) == len(episodes) > 8
    successes = sorted(one[2] == "True" for one in found)
    assert successes == sorted(row["success"] for row in episodes)
    assert sorted(count_frames(path) for path in files(study)) == sorted(row["length"] + 1 for row in episodes)
    checked = 0
    for rollout, rewards in rollouts:
        for segment in rollout.videos:
            for frame, step, row in zip(segment.frames_F, segment.steps_F, segment.rows_F, strict=True):
                if not segment.finished or read_moment(frame) not in words or not row:
                    continue
                b, said = segment.stream, words[read_moment(frame)]
                native, value = rollout.rewards[b, step], rewards.values[b, step]
                scored = row % 2 == 0 or (row == segment.rows_F[-1])
                assert said[1].startswith(f"step {row}")
                assert said[2] == f"action [{', '.join(f'{x:.2f}' for x in rollout.actions[b, step])}]"
                assert said[3] == f"value env {rollout.values['env'][b, step]:.3f}"
                assert said[5:] == [
                    f"log-prob {rollout.log_probs[b, step]:.3f}",
                    f"native reward {native:.3f}",
                    f"constant {value:.3f} (says {value:.3f})" if scored else "constant 0.000 (not scored)",
                ]
                checked += 1
    assert checked > 20


def test_the_picture_is_the_frame_beside_a_panel():
    frame = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    found = shown(frame, ["step 1", "x" * 60], factor=4)
    assert found.shape == (20, 28 + PANEL, 3)
    np.testing.assert_array_equal(found[:20:4, :28:4], frame)
    assert (found[:, 28:] == 255).mean() > 0.5
    assert (found[:, 28:] < 100).any()


def test_frames_survive_encoding(tmp_path):
    study = study_of(tmp_path, save_video=True, video_share=1.0, total_steps=24)
    start(study).run()
    path = files(study)[0]
    count = count_frames(path)
    frames = decode_video(path, np.arange(count) / 20, fps=20)
    assert frames.shape == (count, 200, 200 + PANEL, 3)
    counts = [round(float(frame[1:4, 1:4, 2].mean())) for frame in frames]  # the blue of the first pixel is the step
    np.testing.assert_allclose(counts, np.arange(count), atol=12)


def test_a_share_of_the_episodes_and_the_run_does_not_notice(tmp_path):
    studies = [
        study_of(tmp_path, "with", save_video=True, video_share=0.5, video_every=3, total_steps=160),
        study_of(tmp_path, "again", save_video=True, video_share=0.5, video_every=3, total_steps=160),
        study_of(tmp_path, "without", total_steps=160),
    ]
    for study in studies:
        start(study).run()
    assert result(studies[0]) == result(studies[1]) == result(studies[2])
    names = [[path.name for path in files(study)] for study in studies[:2]]
    assert names[0] == names[1]
    episodes = len(lines(studies[0], "episodes"))
    assert 0.2 * episodes < len(names[0]) < 0.8 * episodes
    assert not (run_folder(studies[2]) / "videos").exists()


def test_a_run_that_was_cut_off_leaves_whole_files_and_ends_the_same(tmp_path):
    whole, study = (study_of(tmp_path, name, save_video=True, video_share=1.0) for name in ("whole", "cut"))
    start(whole).run()
    interrupted(study, "update", 3)
    half = run_folder(study) / "videos" / ".rank_0--episode=99--success=True--task=x.mp4.part"
    half.write_bytes(b"half a file")
    start(study, resume=True).run()
    assert result(study) == result(whole)
    names = {path.name for path in files(study)}
    assert names <= {path.name for path in files(whole)}, "no half files, and no other episodes"
    assert len(names) > len(files(whole)) / 2
    assert all(count_frames(path) for path in files(study))


def test_a_full_disk_stops_the_run_and_another_error_of_a_video_does_not(tmp_path, monkeypatch, capsys):
    def broken(*args, **kwargs):
        raise errors.pop() if errors else ValueError("no such codec")

    monkeypatch.setattr(videos, "VideoWriter", broken)
    study = study_of(tmp_path, save_video=True, video_share=1.0)
    errors = [OSError(errno.ENOSPC, "No space left on device")]
    with pytest.raises(OSError, match="No space left on device"):
        start(study).run()
    other = study_of(tmp_path / "other", save_video=True, video_share=1.0)
    start(other).run()
    assert files(other) == []
    assert capsys.readouterr().err.count("no such codec") == 1


def test_cached_and_failed_values_are_said():
    reader = Reader()
    assert reader.info.name == "reader"
    from guerdon.rewards.source import RawRow, raw_scores
    from guerdon.types import Rewards

    failed = np.array([[False, True, False]])
    scores = raw_scores([RawRow(0, 0, 0.25, reused=True), RawRow(0, 2, 0.5)], 0.5)
    found = Rewards(np.array([[0.25, 0.0, 1.0]], np.float32), failed, scores=scores)
    said = [videos._paid("prm", found, 0, step) for step in range(3)]
    assert said == ["prm 0.250 (says 0.250, of a frame like it)", "prm failed", "prm 1.000 (says 0.500)"]


def test_what_would_do_nothing_is_refused():
    with refuses("video_share"):
        Study.model_validate({"runner": {"video_share": 0.2}})


def test_a_run_of_few_episodes_has_the_video_of_its_first(tmp_path):
    study = study_of(tmp_path, save_video=True, video_share=1e-9)
    start(study).run()
    (path,) = files(study)
    assert NAME.fullmatch(path.name)[1] == "0"


def test_a_run_in_which_no_episode_ends_has_a_video_without_an_outcome(tmp_path):
    study = study_of(
        tmp_path, save_video=True, total_steps=4, eval_every=4, env={"kwargs": {"fixed": 90}, "max_episode_steps": 99}
    )
    start(study).run()
    (path,) = files(study)
    assert NAME.fullmatch(path.name)[2] == "None"
    assert count_frames(path) >= 2
