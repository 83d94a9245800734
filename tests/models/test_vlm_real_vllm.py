"""A real vLLM serves a tiny Qwen2.5-VL: what it answers is what transformers answers in this process.

    GUERDON_VLLM=/path/to/vllm pytest -m slow tests/models/test_vlm_real_vllm.py

The environment of that vLLM needs torchvision, which its video processors import.
"""

import json

import pytest
from vllm_process import NEEDS_VLLM, vllm_server
from vlm_samples import episode

from guerdon.models.explained_score import JudgeOptions
from guerdon.models.load import load_reward_model
from guerdon.models.vlm.tiny_vlm import CHAT_TEMPLATE, write_tiny_vlm
from guerdon.settings.vlm import TinyVLMSettings

pytestmark = NEEDS_VLLM


def write_processor(folder, patch_size):
    """What the families' whole processor reads, beside what the tiny model has already."""
    pictures = json.loads((folder / "preprocessor_config.json").read_text())
    video = {**pictures, "video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": False}
    video.pop("image_processor_type")
    whole = {"image_processor": pictures, "video_processor": video, "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "processor_config.json").write_text(json.dumps(whole))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    assert CHAT_TEMPLATE in (folder / "chat_template.jinja").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The folder of a tiny model and the address of a vLLM that serves it."""
    folder = tmp_path_factory.mktemp("vllm") / "tiny"
    write_tiny_vlm(TinyVLMSettings(hidden_size=128, heads=2, intermediate=256), folder, seed=0)
    write_processor(folder, 8)
    options = [
        "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8",
        "--limit-mm-per-prompt", '{"image": 16, "video": 1}', "--max-logprobs", "20",
    ]  # fmt: skip
    with vllm_server(folder, *options) as address:
        yield folder, f"{address}/v1"


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("qwen_vl", {"answer": "hard", "max_tokens": 6}),
        ("qwen_vl", {"question": "progress", "nframes": 4, "max_tokens": 6, "video_as": "images"}),
        ("qwen_vl", {"question": "progress", "nframes": 4, "max_tokens": 6, "video_as": "video"}),
        ("primo_r1", {"nframes": 3, "max_tokens": 6, "video_as": "images"}),
    ],
)  # fmt: skip
def test_the_same_words_and_tokens(served, kind, asked):
    folder, url = served
    shown = [episode(4, seed=s, size=(32, 32)) for s in range(2)]
    here = load_reward_model(kind, vlm={"path": str(folder), "bf16": False, **asked})
    there = load_reward_model(kind, vlm={"backend": "openai", "openai": {"base_url": url, "model": "tiny"}, **asked})
    for ours, theirs in zip(here.judge(shown, JudgeOptions()), there.judge(shown, JudgeOptions()), strict=True):
        said = [judged.text.rstrip("\ufffd") for judged in (ours, theirs)]  # vLLM holds half characters back
        assert ours.tokens == theirs.tokens > 0
        if asked.get("video_as") == "video":  # goes as JPEG, and nobody says how fast its frames follow each other
            continue
        assert said[0] == said[1]
        assert ours.score.total == theirs.score.total
        assert (ours.score.failure and ours.score.failure.reason) == (
            theirs.score.failure and theirs.score.failure.reason
        )
