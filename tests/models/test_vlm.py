"""Vision-language reward models: what they ask, what they make of answers, and what they refuse."""

import numpy as np
import pytest
from vlm_samples import FAMILIES, Scripted, episode, tiny_backend, tiny_folder

from guerdon.models.explained_score import Judge, JudgeOptions, judge
from guerdon.models.load import load_reward_model
from guerdon.models.vlm.vlm import LOWEST_LOG_PROB, VLMCard, VLMRewardModel, load_vlm
from guerdon.models.vlm.vlm_prompts import Picture, Video, VLMReply
from guerdon.settings.vlm import VLMSettings
from guerdon.types import Episode, Failure, RewardModel
from tables import cases, first, refuses

PATH = {"path": "somewhere"}


def model(kind="qwen_vl", backend=None, card=None, **settings):
    return VLMRewardModel(kind, VLMSettings(**PATH, **settings), backend or Scripted(), card)


def test_completed_softly_is_the_share_of_yes():
    backend = Scripted(choices=[(0.6, 0.2), (0.001, 0.003), (0.5, 0.0)])
    judged = model(backend=backend).judge([episode(3)], JudgeOptions())[0]
    assert judged.score.steps == pytest.approx([0.75, 0.25, 1.0])
    assert judged.score.total == 1.0
    assert judged.tokens == 21
    assert "p(yes) 0.5" in judged.text
    assert [q.prompt.text for q in backend.asked] == ["The task is close the door, is it completed?"] * 3
    for row, question in enumerate(backend.asked):
        (picture,) = question.media
        np.testing.assert_array_equal(picture.pixels, episode(3).frames[row])


@pytest.mark.parametrize("pair", [(1e-17, 2e-17), (0.0, 0.0), (0.0, 4e-4), (4e-4, 5e-4)])
def test_a_model_that_says_neither_yes_nor_no_is_no_measurement(pair):
    """It reasons first, perhaps: what is left of yes and no is noise."""
    score = model(backend=Scripted(choices=[(0.6, 0.2), pair])).score([episode(2)])[0]
    assert score.failure.reason == "low_probability"
    assert "row 1 (1 of 2 rows)" in score.failure.detail
    assert "answer: hard" in score.failure.detail


@pytest.mark.parametrize("pair", [(0.0006, 0.0006), (0.002, 0.0), (1.0, 0.0)])
def test_unlikely_answers_that_can_be_told_apart_are_measurements(pair):
    score = model(backend=Scripted(choices=[pair])).score([episode(1)])[0]
    assert score.total == pytest.approx(pair[0] / sum(pair))


def test_completed_hard_is_what_it_writes():
    backend = Scripted(["Yes", "No.", "1"])
    assert model(backend=backend, answer="hard").score([episode(3)])[0].steps.tolist() == [1.0, 0.0, 1.0]
    score = model(backend=Scripted(["Yes", "unsuccessful", ""]), answer="hard").score([episode(3)])[0]
    assert score.failure == Failure("no_judgement", score.failure.detail)
    assert "row 1 (2 of 3 rows)" in score.failure.detail


def test_progress_asks_about_a_video_and_reads_a_percentage():
    backend = Scripted(["85%"])
    found = model(backend=backend, question="progress", nframes=4)
    judged = found.judge([episode(10)], JudgeOptions())[0]
    assert (judged.score.total, judged.score.steps, judged.text) == (0.85, None, "85%")
    (video,) = backend.asked[0].media
    assert isinstance(video, Video)
    np.testing.assert_array_equal(video.frames, episode(10).frames[[0, 3, 6, 9]])
    assert found.info.granularity == "total"
    assert (found.info.range, found.info.success_threshold) == ((0.0, 1.0), None)


def test_progress_of_every_row_looks_back_only():
    backend = Scripted(["10", "20", "30"])
    score = model(backend=backend, question="progress", rows="all", nframes=2).score([episode(3)])[0]
    assert score.steps == pytest.approx([0.1, 0.2, 0.3])
    seen = [q.media[0].frames for q in backend.asked]
    assert [len(s) for s in seen] == [1, 2, 2]
    np.testing.assert_array_equal(seen[2], episode(3).frames[[0, 2]])


@pytest.mark.parametrize(
    ("text", "mode", "wanted"),
    [
        ("1", "auto", 0.01), ("0.5", "auto", 0.5), ("0.5", "percentage", 0.005), ("1", "unit", 1.0),
        ("85", "unit", "out_of_range"), ("<think>3 of 5", "auto", "truncated"), ("unsuccessful", "auto", "no_number"),
    ],
)  # fmt: skip
def test_score_modes_and_failures(text, mode, wanted):
    for by_option in (False, True):
        found = model(backend=Scripted([text]), question="progress", **({} if by_option else {"score_mode": mode}))
        options = JudgeOptions(score_mode=mode if by_option else None)
        score = found.judge([episode(2)], options)[0].score
        if isinstance(wanted, str):
            assert score.failure.reason == wanted
        else:
            assert score.total == pytest.approx(wanted)


def test_an_answer_that_was_cut_off_is_no_answer():
    cut = VLMReply("<think> 1 2 3", tokens=5, whole=False)
    for kind in ("qwen_vl", "primo_r1"):
        more = {"question": "progress"} if kind == "qwen_vl" else {}
        judged = model(kind, Scripted([cut]), **more).judge([episode(2)], JudgeOptions())[0]
        assert judged.score.failure.reason == "truncated"
        assert judged.text == cut.text
    cut = VLMReply("<answer>80</answer> and 1", whole=False)
    assert model("primo_r1", Scripted([cut])).score([episode(2)])[0].failure.reason == "truncated"


@pytest.mark.parametrize(
    ("kind", "more", "text", "value"),
    [
        ("qwen_vl", {"question": "progress"}, "The task is 85% complete.", 0.85),
        ("qwen_vl", {"answer": "hard"}, "Yes, the drawer is closed.", 1.0),
        ("primo_r1", {}, "<answer>About 40% of the task is done.</answer>", 0.4),
        ("trend", {"window": 2}, "The trend is positive.", 1.0),
        ("preference", {"window": 2}, "Second. The drawer is nearly closed.", 1.0),
    ],
)
def test_a_value_from_a_sentence_counts_only_where_the_key_says_so(kind, more, text, value):
    rows = episode(2)[1:] if kind == "qwen_vl" else episode(2)
    judged = model(kind, Scripted([text]), **more).judge([rows], JudgeOptions())[0]
    assert judged.score.failure.reason == "fallback"
    assert "allow_fallback" in judged.score.failure.detail
    assert (judged.text, judged.parse_status) == (text, None)
    judged = model(kind, Scripted([text]), allow_fallback=True, **more).judge([rows], JudgeOptions())[0]
    assert (judged.score.steps[-1] if judged.score.steps is not None else judged.score.total) == pytest.approx(value)
    assert judged.parse_status == "fallback"


def test_the_status_of_an_episode_is_the_worst_of_its_rows():
    found = model(backend=Scripted(["Yes", "The task is not completed.", "No"]), answer="hard", allow_fallback=True)
    assert found.judge([episode(3)], JudgeOptions())[0].parse_status == "fallback"
    found = model(backend=Scripted(["Yes", "No"]), answer="hard")
    assert found.judge([episode(2)], JudgeOptions())[0].parse_status == "ok"
    found = model(backend=Scripted(choices=[(0.6, 0.2)]))  # nothing is written
    assert found.judge([episode(1)], JudgeOptions())[0].parse_status is None


def test_a_yes_that_was_cut_off_counts_only_where_the_key_says_so():
    cut = VLMReply("Yes,", whole=False)
    failure = model(backend=Scripted([cut]), answer="hard").score([episode(1)])[0].failure
    assert failure.reason == "fallback"
    assert "without its end" in failure.detail
    assert model(backend=Scripted([cut]), answer="hard", allow_fallback=True).score([episode(1)])[0].total == 1.0
    cut = VLMReply("Yes, it is in", whole=False)  # ... complete
    assert (
        model(backend=Scripted([cut]), answer="hard", allow_fallback=True).score([episode(1)])[0].failure.reason
        == "no_judgement"
    )


def test_primo_shows_first_picture_video_and_last_picture():
    backend = Scripted(["<think><planning>a 1</planning></think><answer>72</answer>"])
    judged = model("primo_r1", backend, nframes=3).judge([episode(9)], JudgeOptions())[0]
    assert judged.score.total == pytest.approx(0.72)
    first, video, last = backend.asked[0].media
    assert (type(first), type(video), type(last)) == (Picture, Video, Picture)
    np.testing.assert_array_equal(first.pixels, episode(9).frames[0])
    np.testing.assert_array_equal(video.frames, episode(9).frames[[0, 4, 8]])
    np.testing.assert_array_equal(last.pixels, episode(9).frames[8])
    assert "<planning>" in backend.asked[0].prompt.system
    assert backend.how[0].max_tokens == 4096


class Failing(Scripted):
    """A backend that measures no probability."""

    def __init__(self, failure):
        super().__init__()
        self.failure = failure

    def word_log_probs(self, questions, groups):
        return [self.failure for _ in questions]


def test_true_is_a_log_probability():
    backend = Scripted(choices=[(0.25,), (0.0,)])
    scores = model("true_logprob", backend).score([episode(3), episode(3, seed=1)])
    assert scores[0].total == pytest.approx(np.log(0.25))
    assert scores[1].total == LOWEST_LOG_PROB
    assert backend.groups == [((" True",),)]
    assert backend.asked[0].prompt.template.open
    lost = Failure("no_reply", "the endpoint is not there")
    assert model("true_logprob", Failing(lost)).score([episode(2)])[0].failure.reason == "no_reply"
    info = model("true_logprob").info
    assert info.range == (LOWEST_LOG_PROB, 0.0)


def test_trend_looks_at_short_windows():
    replies = ['{"trend": "positive"}', "negative", "unclear", '{"trend": "positive"}']
    backend = Scripted(replies)
    score = model("trend", backend, window=3).score([episode(5)])[0]
    assert score.steps.tolist() == [
        0.0,
        1.0,
        pytest.approx(-0.2),
        0.0,
        1.0,
    ]  # row 0 has no past: unclear, and nobody is asked
    assert score.total == pytest.approx(0.36)
    frames = episode(5).frames
    for question, rows in zip(backend.asked, ([0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]), strict=True):
        np.testing.assert_array_equal(question.media[0].frames, frames[rows])
    info = model("trend", window=3).info
    assert (info.range, info.frames_needed, info.granularity) == ((-0.2, 1.0), 3, "step")
    score = model("trend", Scripted(["positive", "no idea"])).score([episode(3)])[0]
    assert score.failure.reason == "no_judgement"


def test_preference_compares_first_and_last_of_a_window():
    backend = Scripted(["second", "First.", "same"])
    score = model("preference", backend, window=2).score([episode(4)])[0]
    assert score.steps == pytest.approx([0.0, 1.0, -0.2, 0.0])
    before, after = backend.asked[1].media
    np.testing.assert_array_equal(before.pixels, episode(4).frames[1])
    np.testing.assert_array_equal(after.pixels, episode(4).frames[2])


def test_the_same_question_is_asked_once():
    frames = np.zeros((4, 8, 8, 3), np.uint8)
    backend = Scripted(choices=[(0.5, 0.5)])
    scores = model(backend=backend).score([Episode(id=n, task="wait", frames=frames) for n in "ab"])
    assert len(backend.asked) == 1
    assert [s.steps.tolist() for s in scores] == [[0.5] * 4] * 2


def test_bad_episodes_fail_alone():
    good, blind = episode(1), Episode(id="b", task="wait", states=np.zeros((3, 2), np.float32))
    mute = episode(1, task=" ")
    empty = Episode(id="e", task="wait", frames=np.zeros((0, 8, 8, 3), np.uint8))
    broken, thin = Failure("timeout", "no reply"), episode(1, size=(1, 201))
    found = model(backend=Scripted(choices=[(0.5, 0.5), broken]))
    scores = found.score([blind, good, mute, empty, thin, episode(1, seed=1)])
    reasons = [s.failure.reason if s.failure else None for s in scores]
    assert reasons == ["no_frames", None, "no_task", "no_frames", "bad_frames", "timeout"]


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (1, 200), (37, 11)])
def test_odd_frames_are_looked_at(size):
    score = VLMRewardModel("qwen_vl", VLMSettings(**PATH), tiny_backend()).score([episode(1, size=size)])[0]
    assert 0 < score.total < 1


def test_the_score_mode_that_leaves_the_scale_to_the_prompt_is_taken_by_every_kind():
    auto = JudgeOptions(score_mode="auto")
    assert model(backend=Scripted(choices=[(0.6, 0.2)])).judge([episode(1)], auto)[0].score.total == 0.75
    assert model(backend=Scripted(["No"]), answer="hard").judge([episode(1)], auto)[0].score.total == 0.0
    assert model("true_logprob", backend=Scripted(choices=[(0.5,)])).judge([episode(1)], auto)[0].score.total < 0
    assert model(backend=Scripted(["85%"]), question="progress").judge([episode(9)], auto)[0].score.total == 0.85


def test_options_of_a_caller():
    backend = Scripted(["50", "51"])
    found = model(backend=backend, question="progress")
    options = JudgeOptions(nframes=2, max_pixels=100, prompt="completion_percentage_image")
    assert found.judge([episode(6)], options)[0].score.total == pytest.approx(0.5)
    (picture,) = backend.asked[0].media
    assert picture.max_pixels == 100
    found.judge([episode(6)], JudgeOptions(nframes=2))
    assert len(backend.asked[1].media[0].frames) == 2
    for wrong, key, why in (
        (JudgeOptions(prompt="nope"), "prompt", "unknown"),
        (JudgeOptions(prompt="trend"), "prompt", "another kind"),
        (JudgeOptions(prompt="completed", score_mode="unit"), "score_mode", "not a number"),
    ):
        with refuses(key) as refused:
            found.judge([episode(2)], wrong)
        assert why in str(refused.value)


@cases(
    ("kind", "settings", "key"),
    [
        ("primo_r1", {"question": "progress"}, "reward.model.vlm.question"),
        ("primo_r1", {"window": 3}, "reward.model.vlm.window"),
        ("trend", {"score_mode": "unit"}, "reward.model.vlm.score_mode"),
        ("true_logprob", {"temperature": 0.5}, "reward.model.vlm.temperature"),
        ("qwen_vl", {"nframes": 3}, "reward.model.vlm.nframes"),
        ("qwen_vl", {"score_mode": "unit"}, "reward.model.vlm.score_mode"),
        ("qwen_vl", {"max_tokens": 3}, "reward.model.vlm.max_tokens"),
        ("qwen_vl", {"allow_fallback": True}, "reward.model.vlm.allow_fallback"),
        ("true_logprob", {"allow_fallback": True}, "reward.model.vlm.allow_fallback"),
        ("qwen_vl", {"question": "progress", "answer": "hard"}, "reward.model.vlm.answer"),
        ("qwen_vl", {"question": "progress", "prompt": "completed"}, "reward.model.vlm.question"),
        ("qwen_vl", {"prompt": "completion_percentage", "answer": "soft"}, "reward.model.vlm.answer"),
        ("qwen_vl", {"prompt": "primo"}, "prompt"),
    ],
)  # fmt: skip
def test_settings_that_do_nothing_are_refused(kind, settings, key):
    with refuses(key):
        model(kind, **settings)


def test_info_takes_what_the_checkpoint_says():
    info = model(card=VLMCard({}, "base", adapter=False, threshold=0.8, horizon=100.0)).info
    assert (info.success_threshold, info.progress_horizon) == (0.8, 100.0)
    assert model().info.success_threshold == 0.5


@pytest.mark.parametrize("architecture", first(FAMILIES, 1))
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen_vl", {}),
        ("qwen_vl", {"input": "video", "rows": "all", "nframes": 3}),
        ("true_logprob", {}),
    ],
)  # fmt: skip
def test_real_models_give_scores_that_do_not_depend_on_batches(architecture, kind, settings):
    found = VLMRewardModel(kind, VLMSettings(**PATH, **settings), tiny_backend(architecture))
    assert isinstance(found, RewardModel)
    assert isinstance(found, Judge)
    episodes = [episode(3), episode(2, seed=1, task="open the long drawer"), episode(1, seed=2, size=(32, 16))]
    together, alone = judge(found, episodes, JudgeOptions()), [found.score([e])[0] for e in episodes]
    for a, b, e in zip(together, alone, episodes, strict=True):
        assert a.score.total == pytest.approx(b.total, abs=1e-5)
        assert a.tokens > 0
        if found.info.granularity == "step":
            assert len(a.score.steps) == len(e)
            np.testing.assert_allclose(a.score.steps, b.steps, atol=1e-5)
    low, high = found.info.range
    assert all(low <= a.score.total <= high for a in together)
    assert len({a.score.total for a in together}) == 3


def test_an_untrained_model_that_babbles_fails():
    settings = VLMSettings(**PATH, question="progress")
    score = VLMRewardModel("qwen_vl", settings, tiny_backend()).score([episode(2)])[0]
    assert score.failure is not None
    assert score.total is None


def test_models_load_by_all_their_names():
    for name in ("qwen_vl", "QwenProcessRM"):
        found = load_reward_model(name, tiny_folder())
        assert isinstance(found, VLMRewardModel)
        assert (found.settings.answer == "hard") == (name == "QwenProcessRM")
    local = {"backend": "transformers"}
    assert load_reward_model("qwen2_5_vl_vllm", tiny_folder(), vlm=local).settings.question == "progress"
    assert load_reward_model("PRIMO-R1", tiny_folder(), vlm=local).kind == "primo_r1"
    assert load_reward_model("true_logprob", vlm=VLMSettings(path=str(tiny_folder()))).kind == "true_logprob"
    dummy = load_reward_model("DummyRM")
    assert [s.total for s in dummy.score([episode(2), episode(3)])] == [0.0, 0.0]


def test_loading_refuses_what_does_not_fit():
    with refuses("model_type"):
        load_reward_model("qwen_vl")
    with refuses("arch"):
        load_reward_model("qwen_vl", tiny_folder(), arch="resnet18")
    for model_type in ("trend", "true_logprob"):
        with refuses("vlm.path", f"{model_type} needs a model: checkpoint_path"):
            load_vlm(model_type)
    with refuses("vlm.path", "both vlm.path and checkpoint_path"):
        load_vlm("trend", tiny_folder(), vlm={"path": "other"})
    with refuses("vlm"):
        load_reward_model("constant", vlm={})
    with refuses("vlm.nframes"):
        load_reward_model("qwen_vl", tiny_folder(), vlm={"nframes": 0})
    with refuses("vlm.path"):
        load_reward_model("qwen_vl", tiny_folder(), vlm={"path": "other"})
    with refuses("reward.model.vlm.question"):
        load_vlm("trend", vlm=VLMSettings(path=str(tiny_folder()), question="progress"))
