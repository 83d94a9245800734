"""Inputs of vision-language models against transformers' own processors, and limits of pixels."""

import functools
import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vlm_samples import FAMILIES, tiny_folder

from guerdon.models.vlm.tiny_vlm import build_tokenizer
from guerdon.models.vlm.video_processor import video_processor
from guerdon.models.vlm.vlm_prompts import PROMPTS, Picture, Question, Video, make_question
from guerdon.models.vlm.vlm_transformers import VisionInputs, read_vlm
from tables import cases

# Patch sizes, limits and colours of the published checkpoints.
QWEN2 = {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 12845056}}
GREY = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PICTURES = {
    "qwen2_vl": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen3_vl": {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 16777216}, **GREY},
}
VIDEOS = PICTURES | {"qwen3_vl": {"patch_size": 16, "size": {"shortest_edge": 4096, "longest_edge": 25165824}}}


@functools.cache
def published(family):
    """Inputs as of the family's published checkpoints, with a small tokenizer."""
    return VisionInputs(
        build_tokenizer(),
        Qwen2VLImageProcessorPil(**PICTURES[family]),
        video_processor(family)(**VIDEOS[family]),
        family,
    )


def frames(count, height, width):
    t, y, x, c = np.ogrid[:count, :height, :width, :3]
    return ((t * 37 + y * 5 + x * 3 + c * 80 + (x * y) // 7) % 256).astype(np.uint8)


def asked(shown, prompt="completion_percentage", **options):
    return make_question(PROMPTS[prompt].fill("x"), shown, **{"nframes": 64, "max_pixels": 10**8, **options})


@cases(
    ("family", "shape", "grid", "values"),
    [
        ("qwen2_vl", (8, 64, 64), (4, 4, 4), [-1.792, -1.617, 0.738, 1.234, 1.123]),
        ("qwen2_vl", (2, 128, 128), (1, 10, 10), [-1.792, -1.257, 1.463, -0.566, 1.107]),
        ("qwen2_5_vl", (5, 37, 53), (3, 4, 6), [-1.792, -1.347, -0.186, 0.634, 1.146]),
        ("qwen2_5_vl", (17, 240, 100), (9, 18, 8), [-1.792, -0.777, -1.153, -1.617, 1.09]),
        ("qwen2_vl", (3, 512, 480), (2, 36, 34), [-1.792, 0.559, 0.127, -1.047, 0.955]),
        ("qwen3_vl", (8, 64, 64), (4, 4, 4), [-1.0, -0.929, 0.239, 0.937, 0.336]),
        ("qwen3_vl", (2, 128, 128), (1, 8, 8), [-1.0, 0.42, -0.843, 0.631, 0.336]),
        ("qwen3_vl", (5, 37, 53), (3, 2, 4), [-1.0, -0.882, 0.325, -0.749, 0.313]),
        ("qwen3_vl", (17, 240, 100), (9, 16, 6), [-1.0, 0.867, -0.569, -0.082, 0.299]),
        ("qwen3_vl", (3, 512, 480), (2, 32, 30), [-1.0, 0.208, 0.733, -0.694, 0.336]),
    ],
)
def test_videos_are_those_of_the_official_processor(family, shape, grid, values):
    """Grids and pixels were recorded from transformers 5.23 with torchvision 0.28, which this environment lacks."""
    batch = published(family).batch([asked(frames(*shape), fps=2.0)])
    assert batch["video_grid_thw"].tolist() == [list(grid)]
    patches = batch["pixel_values_videos"]
    count, size = patches.shape
    assert count == np.prod(grid)
    picked = [patches[0, 0], patches[count // 2, size // 2], patches[count // 3, -1], patches[-1, size // 3]]
    # one level of 255 is 0.0146 for Qwen2, where processors round differently
    np.testing.assert_allclose([*map(float, picked), float((patches**2).mean())], values, atol=0.016)


@cases("family", FAMILIES)
@cases("shape", [(1, 64, 64), (2, 16, 16), (3, 37, 53), (8, 64, 64), (17, 100, 31)])
def test_inputs_are_those_of_the_official_processor(family, shape):
    """Everything, bit for bit, where torchvision is installed."""
    pytest.importorskip("torchvision")
    import transformers
    from transformers.video_utils import VideoMetadata

    inputs, shown = published(family), frames(*shape)
    whole = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}
    kind = "Qwen3VLVideoProcessor" if family == "qwen3_vl" else "Qwen2VLVideoProcessor"
    videos = getattr(transformers, kind)(**VIDEOS[family])
    official = getattr(transformers, whole[family])(
        inputs.image_processor, inputs.tokenizer, videos, chat_template=inputs.tokenizer.chat_template
    )
    rows = [0, 0] if len(shown) == 1 else list(range(len(shown)))  # Qwen3-VL's refuses a single frame
    meta = VideoMetadata(total_num_frames=len(rows), fps=3.0, frames_indices=list(rows))
    for question, media in (
        (
            asked(shown, fps=3.0),
            {"videos": [shown[rows]], "video_metadata": [meta], "do_sample_frames": False},
        ),
        (asked(shown, video_as="images"), {"images": list(shown)}),
    ):
        theirs = official(text=[inputs.render(question)], return_tensors="pt", **media)
        ours = inputs.batch([question])
        assert set(theirs) <= set(ours)
        for name, values in theirs.items():
            assert torch.equal(torch.as_tensor(values).to(ours[name].dtype), ours[name]), name


def test_small_qwen3_videos_cost_few_tokens():
    """8 frames of 64x64: 4 moments of 2x2 patches, not of 65536 pixels; with the defaults of the library, of 4x4."""
    inputs = published("qwen3_vl")
    assert int((inputs.batch([asked(frames(8, 64, 64))])["mm_token_type_ids"] == 2).sum()) == 16
    defaults = VisionInputs(inputs.tokenizer, inputs.image_processor, video_processor("qwen3_vl")(), "qwen3_vl")
    assert int((defaults.batch([asked(frames(8, 64, 64))])["mm_token_type_ids"] == 2).sum()) == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_the_settings_of_videos_are_read_from_their_own_file(tmp_path, family):
    for file in tiny_folder(family).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    plain = read_vlm(tmp_path).inputs.batch([asked(frames(4, 64, 64)), asked(frames(1, 64, 64), "completed")])
    assert plain["video_grid_thw"].tolist() == [[2, 8, 8]]
    file = tmp_path / "video_preprocessor_config.json"
    record = json.loads(file.read_text())
    assert record["video_processor_type"].startswith("Qwen")
    few = 2 * 16 * 16 * (4 if family == "qwen3_vl" else 1)
    file.write_text(json.dumps(record | {"size": {"shortest_edge": 256, "longest_edge": few}}))
    small = read_vlm(tmp_path).inputs.batch([asked(frames(4, 64, 64)), asked(frames(1, 64, 64), "completed")])
    assert small["video_grid_thw"].tolist() == [[2, 2, 2]]
    assert small["image_grid_thw"].tolist() == plain["image_grid_thw"].tolist()
    file.unlink()  # as the library: then those of pictures hold
    assert read_vlm(tmp_path).inputs.video_processor.size["longest_edge"] == 1024 * 256


@given(
    family=st.sampled_from(FAMILIES),
    shape=st.tuples(st.integers(1, 9), st.integers(16, 200), st.integers(16, 200)),
    max_pixels=st.integers(784, 30_000),
    as_video=st.booleans(),
)
@example("qwen3_vl", (7, 100, 100), 10_000, True)
@example("qwen3_vl", (5, 100, 100), 10_000, True)
@example("qwen2_vl", (2, 100, 100), 10_000, False)  # 112x112 once its sides are whole patches
@example("qwen2_5_vl", (2, 16, 512), 784, True)
def test_no_frame_has_more_pixels_than_allowed(family, shape, max_pixels, as_video):
    """And a limit that the processor's own size keeps changes nothing."""
    inputs, shown = published(family), frames(*shape)
    name = "video_grid_thw" if as_video else "image_grid_thw"
    size = 16 if family == "qwen3_vl" else 14

    def pixels(limit):
        media = (Video(shown, 2.0, limit),) if as_video else (Picture(shown[0], limit),)
        slot = "completion_percentage" if as_video else "completed"
        grid = inputs.batch([Question(PROMPTS[slot].fill("x"), media)])[name]
        return int(grid[0, 1] * grid[0, 2]) * size**2

    free, limited = pixels(None), pixels(max_pixels)
    assert limited <= max(max_pixels, (2 * size) ** 2)
    if free <= max_pixels:
        assert limited == free
    elif max(shape[1:]) < 3 * min(shape[1:]):
        assert limited >= min(max_pixels / 5, free)


def test_no_torchvision_is_left_behind():
    video_processor("qwen2_vl")
    assert not any(name.startswith("torchvision") and not vars(m).get("__file__") for name, m in sys.modules.items())
