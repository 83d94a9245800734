"""What happens where drawing cannot start, and at the end of a program that drew: one clear line, no noise."""

import os
import subprocess
import sys

import pytest

from tables import first

SCENE = """
from guerdon.worlds.camera import MuJoCoCamera, import_mujoco
mujoco = import_mujoco()
model = mujoco.MjModel.from_xml_string('''<mujoco><worldbody><light pos="0 0 3"/>
<camera name="corner" pos="0 -1 0" xyaxes="1 0 0 0 0 1"/><geom type="sphere" size="0.2"/></worldbody></mujoco>''')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
camera = MuJoCoCamera(model, "corner", (16, 16))
"""
DRAW = SCENE + "print(camera.render([camera.snapshot(data)]).mean() > 0)\n"
REPORT = """
from guerdon.errors import GuerdonError
try:
{body}
except GuerdonError as error:
    import sys
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


def python(code, **environ):
    """Run code in a fresh interpreter; `None` takes a variable away."""
    env = dict(os.environ) | {k: v for k, v in environ.items() if v is not None}
    for name in (k for k, v in environ.items() if v is None):
        env.pop(name, None)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=280)


def reported(code):
    return REPORT.format(body="".join(f"    {line}\n" for line in code.splitlines()))


def test_drawing_and_leaving_without_a_close_is_quiet():
    done = python(DRAW)
    assert done.stdout == "True\n", done.stderr
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_gymnasium_environment_that_nobody_closed_is_quiet():
    code = """
from guerdon.settings.world import GymnasiumSettings
from guerdon.worlds.build import build_world
given = {"task": "InvertedPendulum-v5", "native_reward": "dense", "num_envs": 1, "frame_size": 16}
world = build_world(GymnasiumSettings(**given), seed=0)
print(world.render(list(world.reset().first_looks.values())).shape)
"""
    done = python(code)
    assert done.stdout == "(1, 16, 16, 3)\n", done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "environ",
    first(
        [
            {"MUJOCO_GL": "nonsense"},
            {"MUJOCO_GL": "disable"},
            {"MUJOCO_GL": "glfw", "DISPLAY": None, "WAYLAND_DISPLAY": None},
            {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "99"},
            {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "egl"},
        ],
        1,
    ),
    ids=lambda environ: environ["MUJOCO_GL"],
)
def test_no_driver_is_one_line_that_says_what_to_do(environ):
    done = python(reported(DRAW), **environ)
    assert done.returncode == 1
    *before, line = done.stderr.splitlines()
    assert line.startswith("MissingDependencyError: ")
    assert f"MUJOCO_GL={environ['MUJOCO_GL']}" in line
    assert "apt-get install libegl1" in line
    assert "guerdon doctor" in line
    assert not [b for b in before if "Traceback" in b or "ignored" in b]
    assert not before or environ["MUJOCO_GL"] == "glfw", "GLFW warns by itself"


def test_mujoco_imported_too_early_says_so():
    done = python(reported("import mujoco\n" + DRAW), MUJOCO_GL=None, PYOPENGL_PLATFORM=None, DISPLAY=None)
    assert done.returncode == 1
    assert "imported before guerdon" in done.stderr
    assert "set MUJOCO_GL=egl" in done.stderr
    assert "Exception ignored" not in done.stderr


def test_pygame_writes_nothing_where_there_is_no_screen():
    pytest.importorskip("pygame")
    lost = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER")
    environment = {name: value for name, value in os.environ.items() if name not in lost}
    code = (
        "from guerdon.worlds.build import build_world; from guerdon.settings.world import GymnasiumSettings; "
        "import numpy as np; "
        "w = build_world(GymnasiumSettings(task='CartPole-v1', num_envs=1, native_reward='dense'), seed=0); "
        "looks = w.reset(np.ones(1, bool)).first_looks; assert w.render(list(looks.values())).any(); w.close()"
    )
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "XDG_RUNTIME_DIR" not in found.stderr + found.stdout
