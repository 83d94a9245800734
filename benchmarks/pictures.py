"""Pictures and videos on their way into models: this version's computing time against another one's.

Rows are what a data set (`decode_images`, `check_images`, `decode_video`), the server (its decoding process, and the
whole way through `Media`), a vision-language model and vision-language-action policies do with pictures. Both versions
get the same files. Each repetition starts a process for each version anew, because times of the same code differ from
process to process; rows run in interleaved pairs, the first of a pair in turn, each the least of six blocks in
alternation. Times are of computing on one thread, decoding processes included, so that another job on the machine
disturbs them little.

    python benchmarks/pictures.py --base=/path/to/base/src --repetitions=7
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine_line, table

BLOCK_SECONDS, BLOCKS = 0.1, 6  # of computing in a measurement; of a pair
TASKS = ("close the window", "open it")


def natural(count: int, height: int, width: int) -> np.ndarray:
    """(T, H, W, 3) uint8 pictures with smooth colours and some noise."""
    rng = np.random.default_rng(0)
    y, x, t = np.ogrid[:height, :width, :count]
    waves = [np.sin((y * a + x * b) / 40 + t / 5) for a, b in ((1, 2), (3, 1), (2, 2))]
    frames = 120 + 90 * np.stack(waves, -1).transpose(2, 0, 1, 3) + rng.normal(0, 6, (count, height, width, 3))
    return np.clip(frames, 0, 255).astype(np.uint8)


def encoded(frames: np.ndarray, kind: str) -> list[bytes]:
    """Each picture as a file."""
    from PIL import Image

    blobs = []
    for frame in frames:
        Image.fromarray(frame).save(file := io.BytesIO(), kind)
        blobs.append(file.getvalue())
    return blobs


def data_set_rows(folder: Path) -> dict[str, Callable[[], Any]]:
    """Pictures and videos of episodes."""
    from guerdon.episodes.images import check_images, decode_images
    from guerdon.episodes.video import decode_video

    frames, video = natural(20, 224, 224), folder / "video.mp4"
    jpegs, pngs, small = (*(encoded(frames, kind) for kind in ("JPEG", "PNG")), encoded(natural(20, 64, 64), "PNG"))
    times = np.arange(20, 40) / 20
    return {
        "data set: read 20 JPEGs of 224 px": lambda: decode_images(jpegs),
        "data set: read 20 PNGs of 224 px": lambda: decode_images(pngs),
        "data set: read 20 PNGs of 64 px": lambda: decode_images(small),
        "data set: check 20 JPEGs of 224 px": lambda: check_images(jpegs),
        "data set: check 20 PNGs of 224 px": lambda: check_images(pngs),
        "data set: 20 frames of a video, 224 px": lambda: decode_video(video, times, fps=20),
    }


def server_rows(folder: Path) -> dict[str, Callable[[], Any]]:
    """Requests with pictures and videos."""
    from guerdon.serve.decode import decode_pictures, decode_text, decode_video
    from guerdon.serve.media import Media
    from guerdon.settings.serve import MediaSettings

    limits = MediaSettings()
    jpegs, pngs, webps = (encoded(natural(8, 224, 224), kind) for kind in ("JPEG", "PNG", "WEBP"))
    small = encoded(natural(8, 64, 64), "PNG")
    texts, small_texts = ([base64.b64encode(blob) for blob in blobs] for blobs in (jpegs, small))
    video = (folder / "video.mp4").read_bytes()
    media, loop = Media(limits), asyncio.new_event_loop()

    def through(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: loop.run_until_complete(make())

    return {
        "server: decode 8 JPEGs of 224 px": lambda: decode_pictures(jpegs, limits),
        "server: decode 8 PNGs of 224 px": lambda: decode_pictures(pngs, limits),
        "server: decode 8 WebPs of 224 px": lambda: decode_pictures(webps, limits),
        "server: decode 8 JPEGs of 224 px, base64": lambda: decode_pictures([decode_text(t) for t in texts], limits),
        "server: decode 16 of 60 frames of a video, 224 px": lambda: decode_video(
            io.BytesIO(video), nframes=16, limits=limits
        ),
        "server: request of 8 JPEGs of 224 px, base64": through(lambda: media.pictures(texts, encoded=True)),
        "server: request of 8 PNGs of 64 px, base64": through(lambda: media.pictures(small_texts, encoded=True)),
        "server: request of a video, 16 of 60 frames": through(lambda: media.upload(video, nframes=16)),
    }


def vlm_rows() -> dict[str, Callable[[], Any]]:
    """A question about the frames of an episode, for a small Qwen2.5-VL."""
    from guerdon.models.load import load_source_model
    from guerdon.models.vlm.tiny_vlm import write_tiny_vlm
    from guerdon.settings.reward_models import VLMModelSettings
    from guerdon.settings.vlm import TinyVLMSettings
    from guerdon.types import Episode

    with tempfile.TemporaryDirectory() as name:
        path = write_tiny_vlm(TinyVLMSettings(architecture="qwen2_5_vl"), Path(name), seed=0)
        model = load_source_model(VLMModelSettings(vlm={"path": str(path)}))
    episodes = [Episode(id=str(i), task=TASKS[0], frames=natural(8, 64, 64)) for i in range(2)]
    return {"VLM: score 2 episodes of 8 pictures, 64 px": lambda: model.score(episodes)}


def policy_rows() -> dict[str, Callable[[], Any]]:
    """Decisions and training steps of small policies."""
    import gymnasium
    import torch

    from guerdon.policies.robots.control import build_policy
    from guerdon.settings.vla_policy import VLAPolicySettings

    space = gymnasium.spaces.Box(np.array([-1, -2], np.float32), np.array([1, 6], np.float32))
    columns = [("proprioception", np.float32, (3,)), ("task", "U40"), ("frames", np.uint8, (64, 64, 3))]
    seen = np.zeros(8, np.dtype(columns))
    seen["frames"], seen["task"] = natural(8, 64, 64), [TASKS[i % 2] for i in range(8)]
    actions, there = np.zeros((8, 3, 2), np.float32), np.ones((8, 3), np.bool_)
    rows: dict[str, Callable[[], Any]] = {}
    for family, more in (("token", {}), ("flow", {"num_steps": 3, "use_proprio": True})):
        given = {"type": "vla", "family": family, "tiny": {"image_size": 64}, "num_action_chunks": 3, **more}
        settings = VLAPolicySettings.model_validate(given)
        policy = build_policy(settings, (5,), space, sources=("env",), seed=0, proprioception_size=3)

        def act(policy: Any = policy) -> None:
            policy.act(seen, np.random.default_rng(0))

        def learn(policy: Any = policy) -> None:
            torch.manual_seed(0)
            policy.imitation_loss(seen, actions, there).mean().backward()

        rows |= {f"VLA, {family}: 8 decisions, 64 px": act, f"VLA, {family}: training step of 8, 64 px": learn}
    return rows


def simulator_rows() -> dict[str, Callable[[], Any]]:
    """Pictures of a simulator."""
    from guerdon.settings.world import MetaWorldSettings
    from guerdon.worlds.build import build_world

    rows: dict[str, Callable[[], Any]] = {}
    for size in (128, 256):
        made = build_world(MetaWorldSettings(task="window-close", frame_size=size), seed=0)
        made.reset()

        def draw(made: Any = made) -> None:
            made.render([made.eye.look(0) for _ in range(4)])

        rows[f"Meta-World: 4 pictures of {size} px"] = draw
    return rows


def computing() -> float:
    """CPU seconds of this process and of the decoding processes that it started (Linux)."""
    nanoseconds = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                files = stat.parent.glob("task/*/schedstat")
                nanoseconds += sum(int(file.read_text().split()[0]) for file in files)
        except OSError:
            continue
    return time.process_time() + nanoseconds / 1e9


def serve_side(folder: Path) -> None:
    """For each input line `[row, times]`, run the row that many times and print its CPU seconds."""
    rows = {**data_set_rows(folder), **server_rows(folder), **vlm_rows(), **policy_rows(), **simulator_rows()}
    print("row", json.dumps(list(rows)), flush=True)
    for line in sys.stdin:
        row, times = json.loads(line)
        before = computing()
        for _ in range(times):
            rows[row]()
        print("row", json.dumps(computing() - before), flush=True)
    os._exit(0)  # decoding processes end with their pipes


class Side:
    """A version's process.

    Args:
        source: its `src` folder.
        folder: where `video.mp4` is.
    """

    def __init__(self, source: str, folder: str) -> None:
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, f"--side={folder}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip
        self.rows: list[str] = self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("row ")), None)
        if line is None:
            sys.exit(f"the process of a version ended early; run {__file__} --side=FOLDER to see why")
        return json.loads(line.removeprefix("row "))

    def seconds(self, row: str, times: int) -> float:
        """Computing seconds of a row."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([row, times]) + "\n")
        self.process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def repetition(sources: list[str], folder: str, only: str, first: int) -> dict[str, tuple[float, float]]:
    """Computing milliseconds of each row, of both versions."""
    sides, found = [Side(source, folder) for source in sources], {}
    for row in (row for row in sides[0].rows if only in row):
        once = max(min(side.seconds(row, 1) for _ in range(3)) for side in sides)
        times = max(1, round(BLOCK_SECONDS / once))
        blocks = [{k: 1e3 * sides[k].seconds(row, times) / times for k in (first, 1 - first)} for _ in range(BLOCKS)]
        found[row] = (min(block[0] for block in blocks), min(block[1] for block in blocks))
    for side in sides:
        side.close()
    return found


def main() -> None:
    """Print the table, or measure one version (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", help="src folder of another version")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--only", default="", help="part of the names of the rows")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        return serve_side(given.side)
    from guerdon.episodes.video import VideoWriter

    here = str(Path(__file__).resolve().parent.parent / "src")
    print(machine_line(("pillow", "av", "transformers")) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        with VideoWriter(Path(folder) / "video.mp4", height=224, width=224, fps=20) as writer:
            writer.add(natural(60, 224, 224))
        sources = [given.base or here, here]
        runs = [repetition(sources, folder, given.only, i % 2) for i in range(given.repetitions)]
    rows = []
    for row in runs[0]:
        before, now = np.array([run[row] for run in runs]).T
        ratios = before / now
        spread = f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})"
        rows.append([row, f"{np.median(before):.2f}", f"{np.median(now):.2f}", spread])
    print(table(["computing, ms", "before", "now", "speed, now over before"], rows))
    return None


if __name__ == "__main__":
    main()
