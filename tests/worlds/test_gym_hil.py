"""gym-hil's environments with a person at a keyboard, of a virtual display, or at a virtual gamepad of SDL."""

import ctypes
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from guerdon.collect.control import ControlCollector
from guerdon.settings.policy import MLPPolicySettings
from guerdon.settings.world import GymnasiumSettings

pytest.importorskip("gym_hil", reason="gym-hil is not installed")
pytestmark = pytest.mark.slow
KWARGS = {"use_viewer": False, "reset_delay_seconds": 0.0, "image_obs": False}


def collector(device="Keyboard", **given):
    env = GymnasiumSettings(
        task=f"gym_hil:gym_hil/PandaPickCube{device}-v0", num_envs=1, native_reward="dense", kwargs={**KWARGS, **given}
    )
    return ControlCollector(env, MLPPolicySettings(hidden=(8,)), seed=0, rollout_steps=4, algorithm="sac")


@pytest.fixture
def keyboard(monkeypatch):
    """A keyboard of a display of its own."""
    if shutil.which("Xvfb") is None:
        pytest.skip("Xvfb is not installed (Debian's xvfb)")
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", "1", "-screen", "0", "64x64x24"], stdout=subprocess.PIPE, text=True
    )
    monkeypatch.setenv("DISPLAY", f":{server.stdout.readline().strip()}")
    from Xlib import XK, X, display
    from Xlib.ext import xtest

    screen = display.Display()

    def key(name, *, down):
        """Press or release a key, as a keyboard does."""
        xtest.fake_input(
            screen, X.KeyPress if down else X.KeyRelease, screen.keysym_to_keycode(XK.string_to_keysym(name))
        )
        screen.sync()

    yield key
    screen.close()
    server.terminate()
    server.wait()


def until(holds, seconds=20.0):
    """Wait until a key has arrived."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def controller_of(one):
    """What reads the device of a person."""
    wrapper = one.world.env.unwrapped.envs[0]
    while not hasattr(wrapper, "controller"):
        wrapper = wrapper.env
    return wrapper.controller


@pytest.fixture
def gamepad(monkeypatch):
    """A gamepad that pygame sees; sets an axis in [-1, 1] or a button."""
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame.init()
    loaded = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libSDL2-2" in line)
    sdl = ctypes.CDLL(loaded)
    sdl.SDL_JoystickOpen.restype = ctypes.c_void_p
    index = sdl.SDL_JoystickAttachVirtual(1, 4, 12, 0)  # a game controller: axes, buttons, no hats
    stick = ctypes.c_void_p(sdl.SDL_JoystickOpen(index))

    def put(*, axis=None, button=None, value):
        if axis is not None:
            sdl.SDL_JoystickSetVirtualAxis(stick, axis, ctypes.c_int16(round(32767 * value)))
        else:
            sdl.SDL_JoystickSetVirtualButton(stick, button, ctypes.c_uint8(value))

    yield put
    sdl.SDL_JoystickDetachVirtual(index)
    pygame.quit()


def test_a_person_at_the_gamepad_takes_over(gamepad):
    one = collector("Gamepad")
    policy = one.build_policy()
    before = one.collect(policy)
    assert not before.intervened.any()
    buttons = controller_of(one).controller_config["buttons"]
    gamepad(button=buttons["rb"], value=1)
    gamepad(axis=controller_of(one).controller_config["axes"]["left_y"], value=-1)
    helped = one.collect(policy)
    assert helped.intervened.all()
    assert np.allclose(helped.actions[0], [[1.0, 0.0, 0.0, 1.0]] * 4, atol=1e-3)
    gamepad(button=buttons["y"], value=1)
    last = one.collect(policy)
    assert last.terminated[0, 0]
    assert last.success[0, 0]
    one.close()


def test_a_person_at_the_keyboard_takes_over(keyboard):
    one = collector()
    policy = one.build_policy()
    before = one.collect(policy)
    assert before.intervened is not None
    assert not before.intervened.any()
    states = controller_of(one).key_states
    keyboard("space", down=True)
    until(lambda: states["intervention"])
    keyboard("Up", down=True)
    until(lambda: states["forward_x"])
    helped = one.collect(policy)
    keyboard("Up", down=False)
    assert helped.intervened.all()
    assert np.array_equal(helped.actions[0], [[1.0, 0.0, 0.0, 1.0]] * 4)
    assert not one.world.exact_resume
    keyboard("Return", down=True)
    until(lambda: controller_of(one).episode_end_status == "success")
    last = one.collect(policy)
    assert last.terminated[0, 0]
    assert last.success[0, 0]
    assert last.rewards[0, 0] == 1.0
    one.close()
