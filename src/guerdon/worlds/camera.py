"""Pictures of a MuJoCo scene, taken later than the moment they show and, if wanted, in other processes.

A `snapshot` is the few hundred numbers that place every geom, light and camera; taking one costs microseconds,
drawing one about 5 to 10 ms on a CPU. So a rollout takes snapshots while it simulates and draws them all at its
end, in this process or spread over several. One OpenGL context serves all copies of an environment.
This module does not know what the scene means, who acts in it or what the pictures are for.

    camera = MuJoCoCamera(model, "corner", (64, 64))
    frames_N_H_W_C = camera.render([camera.snapshot(data)])
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.errors import MissingDependencyError, boundary
from guerdon.types import ByteArray

Snapshot = NDArray[np.float64]

_PLACED = (
    "geom_xpos",
    "geom_xmat",
    "site_xpos",
    "site_xmat",
    "cam_xpos",
    "cam_xmat",
    "light_xpos",
    "light_xdir",
)
_HEADLESS = (
    "headless rendering failed; on Debian: apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri "
    "(or libosmesa6 with MUJOCO_GL=osmesa); `guerdon doctor` checks it"
)
_UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")


def choose_headless_backend() -> None:
    """Set the environment so that MuJoCo draws without a screen; must run before MuJoCo is imported.

    Explicit settings of the user win. Software rasterisers get one thread per process: guerdon spreads work
    over processes, and threads that spin for each other slow both.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("LP_NUM_THREADS", "1")


class MuJoCoCamera:
    """One camera of one MuJoCo model.

    Attributes:
        size: (height, width) of the pictures in pixels.
    """

    def __init__(self, model: Any, camera: str, size: tuple[int, int]) -> None:
        import mujoco

        names = [mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_CAMERA, i) for i in range(model.ncam)]
        if camera not in names:
            raise ValueError(f"env.camera is {camera!r}, this scene has: {', '.join(map(str, names))}")
        self.model = model
        self.camera = camera
        self.size = size
        self._data = mujoco.MjData(model)
        self._renderer: Any = None
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0  # goal markers are not part of the world that a real camera sees
        self._turn = camera in _UPSIDE_DOWN

    @staticmethod
    def snapshot(data: Any) -> Snapshot:
        """Where everything stands now: a flat copy of the placements in an `mujoco.MjData`."""
        return np.concatenate([getattr(data, name).ravel() for name in _PLACED])

    def render(self, snapshots: Sequence[Snapshot]) -> ByteArray:
        """Draw snapshots.

        Args:
            snapshots: N snapshots of data of this model.

        Returns:
            (N, H, W, 3) uint8.

        Raises:
            MissingDependencyError: no OpenGL driver could be started.
        """
        height, width = self.size
        frames = np.empty((len(snapshots), height, width, 3), dtype=np.uint8)
        if len(snapshots) and self._renderer is None:
            self._renderer = self._start()
        for i, snapshot in enumerate(snapshots):
            offset = 0
            for name in _PLACED:
                target = getattr(self._data, name)
                target[...] = snapshot[offset : offset + target.size].reshape(target.shape)
                offset += target.size
            self._renderer.update_scene(self._data, camera=self.camera, scene_option=self._option)
            picture = self._renderer.render()
            frames[i] = picture[::-1, ::-1] if self._turn else picture
        return frames

    def _start(self) -> Any:
        with boundary(MissingDependencyError, _HEADLESS):
            import mujoco

            quality = self.model.vis.quality
            quality.shadowsize, quality.offsamples = 0, 0  # ten times faster on a CPU
            renderer = mujoco.Renderer(self.model, *self.size)
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            return renderer

    def close(self) -> None:
        """Free the OpenGL context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


class CameraPool:
    """The same camera in several processes, for machines with cores to spare. Same pictures, in the same order."""

    def __init__(self, model: Any, camera: str, size: tuple[int, int], workers: int) -> None:
        import mujoco

        buffer = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        context = multiprocessing.get_context("spawn")
        self.size = size
        self.snapshot = MuJoCoCamera.snapshot
        self._workers: list[tuple[Any, Connection]] = []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_draw_forever, args=(theirs, buffer.tobytes(), camera, size), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def render(self, snapshots: Sequence[Snapshot]) -> ByteArray:
        """Draw snapshots, an equal share in each process; see `MuJoCoCamera.render`."""
        height, width = self.size
        if not len(snapshots):
            return np.empty((0, height, width, 3), dtype=np.uint8)
        shares = np.array_split(np.arange(len(snapshots)), len(self._workers))
        for (_, pipe), share in zip(self._workers, shares, strict=True):
            if len(share):
                pipe.send(np.stack([snapshots[i] for i in share]))
        parts = []
        for (_, pipe), share in zip(self._workers, shares, strict=True):
            if not len(share):
                continue
            with boundary(MissingDependencyError, f"a rendering process ended; {_HEADLESS}"):
                answer = pipe.recv()
            if isinstance(answer, str):
                raise MissingDependencyError(answer)
            parts.append(answer)
        return np.concatenate(parts)

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._workers:
            pipe.close()
            process.join(timeout=5)
        self._workers = []


def _draw_forever(pipe: Connection, model_bytes: bytes, camera: str, size: tuple[int, int]) -> None:
    """Body of a rendering process: arrays of snapshots in, arrays of frames (or one line of error) out."""
    choose_headless_backend()
    import mujoco

    model = mujoco.MjModel.from_binary_path("scene.mjb", {"scene.mjb": model_bytes})
    eye = MuJoCoCamera(model, camera, size)
    while True:
        try:
            snapshots = pipe.recv()
        except EOFError:
            eye.close()
            return
        try:
            pipe.send(eye.render(snapshots))
        except MissingDependencyError as error:
            pipe.send(str(error))
