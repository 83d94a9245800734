"""Real reward models behind the foreign wire formats: a real server says what the same model says here."""

import sys
from pathlib import Path

import numpy as np
import pytest
from foreign import b64, npy, picture
from processes import start_server

from guerdon.episodes.video import VideoWriter
from guerdon.models.load import load_reward_model
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_heads import OutcomeModel, StepwiseModel
from guerdon.models.text.text_load import load_text_model
from guerdon.types import Episode

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from tiny_text_policies import tiny_policy
from vlm_samples import tiny_folder

from rl_models import write_image_model

CLOSE = {"abs": 1e-6}
STEPS = ("3+5=8\n\n", "8-2=7\n\n", "The answer is 7.")
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n{}"
FRAMES = np.random.default_rng(3).integers(0, 256, (6, 24, 24, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The models, and a server that has them too."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "videos").mkdir()
    StepwiseModel(tiny_policy(), TextModelCard("stepwise", "chat", "bce")).write(folder / "prm")
    OutcomeModel(tiny_policy(), TextModelCard("outcome", "chat", "bradley_terry")).write(folder / "orm")
    image, _ = write_image_model(folder)
    vlm = {"question": "completed", "answer": "soft", "bf16": False}
    cpu = {"device": "cpu"}  # there and here
    served = {
        "prm": {"model_path": str(folder / "prm"), "backend": "text", "options": cpu},
        "orm": {"model_path": str(folder / "orm"), "backend": "text", "options": cpu},
        "resnet": {"model_path": str(image), "backend": "resnet", "options": cpu},
        "qwen": {"model_path": str(tiny_folder()), "backend": "qwen_vl", "options": {"vlm": vlm, **cpu}},
    }
    local = {
        "prm": load_text_model(str(folder / "prm"), **cpu),
        "orm": load_text_model(str(folder / "orm"), **cpu),
        "resnet": load_reward_model("resnet", image, **cpu),
        "qwen": load_reward_model("qwen_vl", str(tiny_folder()), vlm=vlm, **cpu),
    }
    running = start_server(folder, models=served, media={"root": str(folder / "videos")})
    running.videos = folder / "videos"
    yield running, local
    assert running.stop(60) == 0  # to take down torch alone takes seconds on a busy machine


def test_steps_and_responses_of_text(here):
    running, local = here
    score = local["prm"].score([Episode(id="", task="3+5-2=?", texts=STEPS)])[0]
    text = TEMPLATE.format("3+5-2=?", "".join(STEPS)) + "<|im_end|>\n"
    prompt = TEMPLATE.format("3+5-2=?", "")
    rows = running.post("/pooling?separator=%0A%0A", {"model": "prm", "input": text}).json()["data"][0]["data"]
    assert [row[1] for row in rows] == pytest.approx(score.steps.tolist(), **CLOSE)
    for how, value in (("last", score.steps[-1]), ("min", score.steps.min()), ("prod", score.steps.prod())):
        body = {"query": [text], "prompts": [prompt], "labels": ["6"]}
        reply = running.post(f"/get_reward?model=prm&aggregate={how}", body)
        assert reply.json()["rewards"] == pytest.approx([value], **CLOSE)
    bare = tuple(step.strip() for step in STEPS)
    marked = {"role": "assistant", "content": "".join(step + "<extra_0>" for step in bare)}
    asked = [{"role": "user", "content": "3+5-2=?"}, marked]
    rows = running.post("/pooling", {"model": "prm", "messages": asked}).json()["data"][0]["data"]
    expected = local["prm"].score([Episode(id="", task="3+5-2=?", texts=bare)])[0].steps
    assert [row[1] for row in rows] == pytest.approx(expected.tolist(), **CLOSE)


def test_logits_of_whole_responses(here):
    running, local = here
    answers = ["It is 6.", "It is 7, because 3+5=8."]
    episodes = [Episode(id="", task="3+5-2=?", texts=(answer,)) for answer in answers]
    values = [score.total for score in local["orm"].score(episodes)]
    texts = [TEMPLATE.format("3+5-2=?", answer) + "<|im_end|>\n" for answer in answers]
    classified = running.post("/classify", {"model": "orm", "input": texts, "use_activation": False}).json()
    assert [item["probs"][-1] for item in classified["data"]] == pytest.approx(values, **CLOSE)
    assert classified["usage"]["prompt_tokens"] > 0
    one = running.post("/rm?model=orm", {"prompt": "3+5-2=?", "response": answers[0], "label": "6"})
    assert one.json() == pytest.approx(values[0], **CLOSE)
    long = running.post("/classify", {"model": "orm", "input": TEMPLATE.format("q", "x" * 100_000)})
    assert (long.status_code, long.json()["error"]["code"]) == (422, "failed_measurement")
    assert "too_long" in long.json()["error"]["message"]


def test_frames(here):
    running, local = here
    task = "close the door"
    for name in ("resnet", "qwen"):
        expected = local[name].score([Episode(id="", task=task, frames=FRAMES)])[0].total
        body = {"task_text": task, "backend": name, "nframes": 128}
        sent = [{"npy_base64": b64(npy(FRAMES))}, {"frames_base64": [b64(picture(frame)) for frame in FRAMES]}]
        for upload in sent:
            reply = running.post("/score", {**body, **upload})
            assert reply.status_code == 200, reply.text
            assert reply.json()["score"] == pytest.approx(expected, **CLOSE)
        form = running.post("/score", data=body, files={"video": ("frames.npy", npy(FRAMES))})
        assert form.json()["score"] == pytest.approx(expected, **CLOSE)


def test_a_video_by_its_path_is_what_the_video_holds(here):
    running, _ = here
    with VideoWriter(running.videos / "a.mp4", height=24, width=24, fps=4) as video:
        video.add(FRAMES)
    body = {"task_text": "close the door", "backend": "resnet", "video_path": "a.mp4"}
    named = running.post("/score", body).json()["score"]
    sent = {"video": ("a.mp4", (running.videos / "a.mp4").read_bytes())}
    assert (
        running.post("/score", data={"task_text": "close the door", "backend": "resnet"}, files=sent).json()["score"]
        == named
    )


def test_a_choice_that_the_model_does_not_have_says_so(here):
    running, _ = here
    body = {"task_text": "t", "backend": "qwen", "npy_base64": b64(npy(FRAMES))}
    for choice, words in (
        ({"prompt": "nobody knows it"}, "nobody knows it"),
        ({"score_mode": "percentage"}, "score_mode"),
    ):
        reply = running.post("/score", {**body, "backend_kwargs": choice})
        assert reply.status_code == 422
        assert words in reply.json()["error"]["message"]


def test_a_trend_for_rlinf_from_a_frame_classifier(here):
    running, local = here
    steps = local["resnet"].score([Episode(id="", task="t", frames=FRAMES[:5])])[0].steps
    word = "positive" if steps[-1] - steps[0] > 0.05 else "negative" if steps[-1] - steps[0] < -0.05 else "unclear"
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64(picture(frame))}}
        for frame in FRAMES[:5]
    ]
    parts.append({"type": "text", "text": "Answer with exactly one word: positive, negative, or unclear."})
    reply = running.post("/v1/chat/completions", {"model": "resnet", "messages": [{"role": "user", "content": parts}]})
    assert reply.json()["choices"][0]["message"]["content"] == word
