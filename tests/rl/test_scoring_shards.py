"""Batches that frozen reward models score in parts, in one process."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.engines.reward_models import RewardModels, ShardedModel
from guerdon.errors import DataError
from guerdon.models.constant import ConstantModel
from guerdon.settings.reward_source import RobotSource
from guerdon.types import Episode, RewardInfo, Score
from rl_clock import clock_study, reader_reward, result, start
from rl_models import image_reward
from tables import refuses
from text_rl import sum_study

INFO = RewardInfo("numbers", (0, 1e9))


def episodes(count):
    return [Episode(id=str(n), task="", texts=(str(n),)) for n in range(count)]


def numbers(part):
    return [Score(total=float(one.id)) for one in part]


@given(st.integers(0, 40), st.integers(1, 9))
def test_scores_are_in_the_order_of_their_episodes_and_parts_are_alike_in_size(count, shards):
    sizes = []

    def score(parts):
        sizes.extend(len(part) for part in parts)
        return [numbers(part) for part in parts]

    found = ShardedModel(INFO, shards, score).score(episodes(count))
    assert [one.total for one in found] == list(range(count))
    assert len(sizes) == min(shards, count)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_a_part_with_another_number_of_scores_is_refused():
    model = ShardedModel(INFO, 2, lambda parts: [numbers(parts[0])[:-1], [*numbers(parts[1]), Score(total=1.0)]])
    with pytest.raises(DataError, match="2 scores for 3 episodes"):
        model.score(episodes(6))


def test_a_model_that_changes_in_the_run_is_never_cut(tmp_path):
    frozen = RobotSource.model_validate({"model": {"model_type": "constant"}, "shaping": "raw"})
    section = {key: value for key, value in image_reward(tmp_path).items() if key != "use_reward_model"}
    refitted = RobotSource.model_validate(section)
    models = RewardModels(lambda settings: ConstantModel(value=1.0), shards=3)
    assert isinstance(models.model("a", frozen), ShardedModel)
    assert isinstance(models.model("b", refitted), ConstantModel)


def test_a_run_whose_scores_do_not_depend_on_their_company_is_the_same_in_parts(tmp_path):
    results = []
    for shards in (1, 4):
        reward = reader_reward(shaping="relative", score_every=2, scoring_shards=shards)
        study = clock_study(tmp_path, name=f"run{shards}", reward=reward)
        start(study, reader="own").run()
        results.append(result(study))
    assert results[0] == results[1]


def test_parts_that_nothing_would_score_are_refused(tmp_path):
    with refuses("reward.scoring_shards"):
        clock_study(tmp_path, reward={**image_reward(tmp_path), "scoring_shards": 2})
    source = {"model": {"model_type": "prime"}}
    reward = {"use_reward_model": True, "combine_mode": "add", "sources": {"prm": source}, "scoring_shards": 2}
    with refuses("reward.scoring_shards"):
        sum_study(tmp_path, reward=reward)


def test_pictures_of_several_workers_are_refused(tmp_path):
    reward = image_reward(tmp_path, update="none")
    reward["model"] = {k: v for k, v in reward["model"].items() if k not in ("update", "replay_path", "update_params")}
    reward["model"]["debug_save_dir"] = str(tmp_path)
    placed = {"engine": "ray", "cluster": {"reward_workers": 1}}
    given = clock_study(tmp_path, reward=reward).model_dump(exclude_unset=True)
    with refuses("reward.sources.resnet.debug_save_dir"):
        type(clock_study(tmp_path)).model_validate(given | placed)


def test_an_image_model_gives_nearly_the_same_in_parts(tmp_path):
    """The last digits depend on the parts, which is why their number is in the configuration."""
    from guerdon.models.load import load_reward_model
    from rl_models import episodes as pictures
    from rl_models import write_image_model

    model = load_reward_model("resnet", write_image_model(tmp_path)[0])
    frames = [one.take([row]) for one in pictures() for row in range(len(one))]
    cut = ShardedModel(model.info, 5, lambda parts: [model.score(part) for part in parts])
    whole = np.array([one.steps[0] for one in model.score(frames)])
    np.testing.assert_allclose([one.steps[0] for one in cut.score(frames)], whole, atol=0.02)
