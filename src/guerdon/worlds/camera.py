"""Pictures of a MuJoCo scene, taken later than the moment they show and, if wanted, in other processes.

A `snapshot` is the few hundred numbers that place every geom, light and camera; taking one costs microseconds,
drawing one about 5 to 10 ms on a CPU. So a rollout takes snapshots while it simulates and draws them all at its
end, in this process or spread over several. One OpenGL context serves all copies of an environment.

    camera = MuJoCoCamera(model, "corner", (64, 64))
    frames_N_H_W_C = camera.render([camera.snapshot(data)])
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import weakref
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guerdon.errors import ConfigError, MissingDependencyError, boundary, did_you_mean, needs
from guerdon.processes.streams import keep_streams
from guerdon.processes.subprocess_worker import end_with_parent
from guerdon.types import ByteArray

Snapshot = NDArray[np.float64]

_PLACED = (
    "geom_xpos", "geom_xmat", "site_xpos", "site_xmat", "cam_xpos", "cam_xmat", "light_xpos", "light_xdir",
)  # fmt: skip
_DEBIAN = (
    "on Debian: apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri "
    "(or libosmesa6 with MUJOCO_GL=osmesa); `guerdon doctor` checks it"
)
_UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")


def choose_headless_backend() -> None:
    """Set the environment so that MuJoCo and pygame draw without a screen; must run before they are imported.

    Without a screen pygame looks for one, and writes that XDG_RUNTIME_DIR is not set. Explicit settings of the user
    win. Software rasterisers get one thread per process: guerdon spreads work over processes, and threads that spin
    for each other slow both.
    """
    os.environ.setdefault("MUJOCO_GL", "egl")
    os.environ.setdefault("LP_NUM_THREADS", "1")
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def import_mujoco(world: str = "metaworld") -> Any:
    """MuJoCo, set to draw without a screen unless the user chose otherwise.

    Args:
        world: whose extra brings it.

    Raises:
        MissingDependencyError: it is not installed, or the backend that `MUJOCO_GL` names does not load here.
    """
    choose_headless_backend()
    missing = f"env.type {world} needs the package {{name}}: pip install 'guerdon[{world}]'"
    broken = f"MuJoCo cannot be loaded with MUJOCO_GL={os.environ['MUJOCO_GL']}; {_DEBIAN}"
    with boundary(MissingDependencyError, broken), needs(missing, ModuleNotFoundError):
        import mujoco
    return mujoco


_OPEN: weakref.WeakSet[Any] = weakref.WeakSet()
_eye: MuJoCoCamera  # of a rendering process


def close_at_exit(drawer: Any) -> None:
    """Have something that has just drawn closed when Python ends, if it is still open.

    OpenGL contexts must go before the display they belong to, or each of them ends in a traceback. The display
    registers its own end when the first context opens, and what is registered last runs first.
    """
    _OPEN.add(drawer)
    atexit.unregister(_close_open)
    atexit.register(_close_open)


def _close_open() -> None:
    for drawer in list(_OPEN):
        drawer.close()


def check_camera(model: Any, camera: str) -> None:
    """Refuse the name of a camera that the scene of an `mujoco.MjModel` does not have.

    Raises:
        ConfigError: with the names there are.
    """
    import mujoco

    names = [str(mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_CAMERA, i)) for i in range(model.ncam)]
    if camera not in names:
        hint = did_you_mean(camera, names)
        raise ConfigError.about("env.camera", f"is {camera!r}, this scene has: {', '.join(names)}{hint}")


class MuJoCoCamera:
    """One camera of one MuJoCo model.

    Attributes:
        size: (height, width) of the pictures in pixels.

    Args:
        model: an `mujoco.MjModel`.
        camera: its name.
        size: (height, width).
        fast: without shadows, reflections and multisampling: ten times as fast on a CPU.
    """

    def __init__(self, model: Any, camera: str, size: tuple[int, int], *, fast: bool = True) -> None:
        import mujoco

        check_camera(model, camera)
        self.model = model
        self.camera = camera
        self.size = size
        self._fast = fast
        self._data = mujoco.MjData(model)
        self._renderer: Any = None
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0  # goal markers are not part of the world that a real camera sees
        self._turn = camera in _UPSIDE_DOWN

    @staticmethod
    def snapshot(data: Any) -> Snapshot:
        """The present state of the scene: a flat copy of the placements in an `mujoco.MjData`."""
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
            picture = self._draw(snapshot, self.camera)
            frames[i] = picture[::-1, ::-1] if self._turn else picture
        return frames

    def _draw(self, snapshot: Snapshot, camera: str) -> ByteArray:
        """(H, W, 3) one picture of the started renderer."""
        offset = 0
        for name in _PLACED:
            target = getattr(self._data, name)
            target[...] = snapshot[offset : offset + target.size].reshape(target.shape)
            offset += target.size
        self._renderer.update_scene(self._data, camera=camera, scene_option=self._option)
        return np.asarray(self._renderer.render())

    def _start(self) -> Any:
        with boundary(MissingDependencyError, _why_no_picture()):
            import mujoco

            visual, (height, width) = self.model.vis, self.size
            if self._fast:
                visual.quality.shadowsize, visual.quality.offsamples = 0, 0
            frame = visual.global_
            frame.offheight, frame.offwidth = max(frame.offheight, height), max(frame.offwidth, width)
            _let_failures_be_quiet(mujoco)
            renderer = mujoco.Renderer(self.model, height, width)
            if self._fast:
                renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
                renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        close_at_exit(self)
        return renderer

    def close(self) -> None:
        """Free the OpenGL context."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _let_failures_be_quiet(mujoco: Any) -> None:
    """Defaults for what MuJoCo's destructors read, so that one that failed to start adds no traceback of its own."""
    mujoco.Renderer._gl_context = mujoco.Renderer._mjr_context = None
    if hasattr(mujoco.gl_context, "GLContext"):
        mujoco.gl_context.GLContext._context = None


def _why_no_picture() -> str:
    """What to do when drawing does not start."""
    import mujoco.gl_context

    wanted = os.environ.get("MUJOCO_GL", "").lower()
    loaded = getattr(getattr(mujoco.gl_context, "GLContext", None), "__module__", "none").rpartition(".")[2]
    if wanted in ("egl", "osmesa") and loaded != wanted:
        return (
            f"headless rendering failed: MuJoCo was imported before guerdon and uses {loaded}; set MUJOCO_GL={wanted} "
            "in the environment before Python starts"
        )
    return f"headless rendering failed with MUJOCO_GL={wanted or 'unset'}; {_DEBIAN}"


class CameraPool:
    """The same camera in several processes, for machines with cores to spare. Same pictures, in the same order.

    Processes are spawned: a script that makes one needs the usual `if __name__ == "__main__":`.
    """

    def __init__(self, model: Any, camera: str, size: tuple[int, int], workers: int) -> None:
        import mujoco

        check_camera(model, camera)
        buffer = np.empty(mujoco.mj_sizeModel(model), dtype=np.uint8)
        mujoco.mj_saveModel(model, None, buffer)
        self.size, self._workers = size, workers
        self.snapshot = MuJoCoCamera.snapshot
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, context, _open_camera, (buffer.tobytes(), camera, size))

    def render(self, snapshots: Sequence[Snapshot]) -> ByteArray:
        """Draw snapshots, an equal share in each process; see `MuJoCoCamera.render`."""
        if not len(snapshots):
            return np.empty((0, *self.size, 3), dtype=np.uint8)
        shares = np.array_split(np.stack(snapshots), min(self._workers, len(snapshots)))
        with boundary(MissingDependencyError, f"a rendering process ended; {_DEBIAN}"):
            return np.concatenate(list(self._pool.map(_draw, shares)))

    def close(self) -> None:
        """End the processes."""
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()


def _open_camera(model_bytes: bytes, camera: str, size: tuple[int, int]) -> None:
    """Start of a rendering process: its camera."""
    global _eye
    keep_streams()
    end_with_parent(spawned=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle; its end stops this process
    model = import_mujoco().MjModel.from_binary_path("scene.mjb", {"scene.mjb": model_bytes})
    _eye = MuJoCoCamera(model, camera, size)


def _draw(snapshots_N: NDArray[np.float64]) -> ByteArray:
    return _eye.render(list(snapshots_N))
