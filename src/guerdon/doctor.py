"""Checks of this machine: packages, rendering, video, disk, third-party parts; each with a fix.

Rendering is tried in another process, since a broken OpenGL driver may crash or hang the process that loads it.

    guerdon doctor          # a table; exit status 1 when something that guerdon needs is broken
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from guerdon.errors import TRAIN
from guerdon.processes.cores import usable_cores

Status = Literal["ok", "warn", "fail"]

PACKAGES = {
    "egl": "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri",
    "osmesa": "apt-get install libosmesa6",
}
_RENDER_SECONDS = 60.0
_DISK_FAIL, _DISK_WARN = 1.0, 5.0  # GB free

_SPHERE = """
import json
import mujoco
scene = '''<mujoco><worldbody><light pos="0 0 3"/><camera name="c" pos="0 -1 0" xyaxes="1 0 0 0 0 1"/>
<geom type="sphere" size="0.2" rgba="1 0 0 1"/></worldbody></mujoco>'''
model = mujoco.MjModel.from_xml_string(scene)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 48, 64) as renderer:
    renderer.update_scene(data, camera="c")
    picture = renderer.render().astype(int)
middle, corner = picture[24, 32].tolist(), picture[1, 1].tolist()
print(json.dumps({"middle": middle, "corner": corner, "spread": int(picture.max() - picture.min())}))
"""


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: of what was checked.
        status: `fail` where guerdon cannot work, `warn` where something optional is missing.
        detail: what was found.
        fix: how to fix it; empty where nothing is wrong.
    """

    name: str
    status: Status
    detail: str
    fix: str = ""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Python is recent enough."""
    shown = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", "fail", shown, "install Python 3.11 or newer and make the environment with it")
    return Check("Python", "ok", f"{shown} on {platform.system()} {platform.machine()}")


def check_package(name: str, *, extra: str | None = None, purpose: str = "", module: str = "") -> Check:
    """A package can be imported, tried in a process of its own.

    Args:
        name: of the distribution.
        module: its name, where it is another one.
        extra: the extra of guerdon that brings it; None when guerdon cannot work without.
        purpose: what it is for.
    """
    target = f"'guerdon[{extra}]'" if extra else "guerdon"
    status: Status = "warn" if extra else "fail"
    why = f" ({purpose})" if purpose else ""
    version = _version(name)
    if version is None:
        return Check(name, status, f"not installed{why}", f"pip install {target}")
    _, error = _printed(f"import {module or name}", 120)
    if error:
        fix = f"pip install --force-reinstall {target}"
        return Check(name, "fail", f"{version} cannot be imported: {error}", fix)
    return Check(name, "ok", f"{version}{why}")


def check_opencv() -> Check:
    """OpenCV, whichever of its builds is installed, can be imported."""
    builds = ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python")
    found = next((name for name in builds if _version(name) is not None), builds[0])
    return check_package(found, extra="games", purpose="pictures of env.atari", module="cv2")


def _printed(
    script: str, seconds: float, environ: Mapping[str, str] | None = None, *, late: str = "it does not end"
) -> tuple[str, str]:
    """The last line that a script prints in a process of its own; and why it failed, "" where it did not."""
    command = [sys.executable, "-c", script]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=seconds, env=environ, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"{late} within {seconds:g} s"
    printed, said = (text.strip().rpartition("\n")[2].strip() for text in (done.stdout, done.stderr))
    return printed, (said or printed or "no message")[:200] if done.returncode else ""


def check_torch() -> Check:
    """PyTorch imports; its threads, its device and whether bfloat16 is fast here."""
    try:
        import torch
    except (ImportError, OSError) as exc:
        return Check("torch", "fail", f"cannot be imported: {exc}", "pip install 'guerdon[train]'")
    threads = f"{torch.get_num_threads()} threads on {usable_cores()} cores"
    if torch.cuda.is_available():
        half = "with" if torch.cuda.is_bf16_supported() else "without"
        return Check("torch", "ok", f"{torch.__version__}, {torch.cuda.get_device_name(0)} {half} bfloat16, {threads}")
    flags = sorted(cpu_flags() & {"amx_bf16", "avx512_bf16"})
    half = f"fast bfloat16 ({', '.join(flags)})" if flags else "no fast bfloat16"
    return Check("torch", "ok", f"{torch.__version__}, CPU, {half}, {threads}")


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """The instruction sets that Linux lists; empty elsewhere."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.partition(":")[2].split()}


def check_rendering(
    *, seconds: float = _RENDER_SECONDS, environ: Mapping[str, str] | None = None, script: str = _SPHERE
) -> Check:
    """MuJoCo draws a red sphere without a screen, and the pixels show it.

    Args:
        seconds: how long the drawing process may take.
        environ: its environment; ours by default. `MUJOCO_GL` picks the backend, EGL without it.
        script: what it runs; it prints one line of JSON.
    """
    name = "headless rendering"
    if _version("mujoco") is None:
        return Check(name, "warn", "MuJoCo is not installed", "pip install 'guerdon[metaworld]'")
    env = dict(os.environ if environ is None else environ)
    backend = env.setdefault("MUJOCO_GL", "egl").lower()
    env.setdefault("LP_NUM_THREADS", "1")
    packages = PACKAGES.get(backend, PACKAGES["egl"])
    fix = f"on Debian: {packages}" + (f" (or {PACKAGES['osmesa']} and MUJOCO_GL=osmesa)" if backend == "egl" else "")
    printed, error = _printed(script, seconds, env, late="no picture")
    if error:
        return Check(name, "fail", f"{backend}: {error}", fix)
    drawn = json.loads(printed)
    red, green, blue = drawn["middle"]
    if drawn["spread"] < 30 or red < 60 or red < 2 * max(green, blue):
        return Check(name, "fail", f"{backend}: drew {drawn['middle']} where a red sphere should be", fix)
    return Check(name, "ok", f"{backend} draws ({drawn['middle']} in the middle, {drawn['corner']} in the corner)")


def check_libero(*, seconds: float = 120.0) -> Check:
    """LIBERO's package, its assets and what it imports, tried in a process of its own; nothing is downloaded.

    Args:
        seconds: how long the import may take.
    """
    from guerdon.errors import MissingDependencyError
    from guerdon.worlds import libero_files

    name, fix = "LIBERO", f"{libero_files.INSTALL}, in an environment of its own (docs/libero.md)"
    version = _version("hf-libero")
    try:
        libero_files.package_folder()
    except MissingDependencyError:
        version = None
    if version is None:
        return Check(name, "warn", "not installed (130 robot tasks)", fix)
    try:
        assets = libero_files.assets_folder()
    except MissingDependencyError as exc:
        return Check(name, "fail", f"{version}: {exc}", fix)
    script = "from guerdon.worlds.libero_files import init_states, libero_task\n"
    script += "print(len(init_states(libero_task('libero_10', '0'))))"
    printed, error = _printed(script, seconds)
    if error or not printed.isdecimal():
        return Check(name, "fail", f"{version} cannot be used: {error or printed or 'no message'}", fix)
    if changes := libero_files.mujoco_changes(importlib.metadata.version("mujoco")):
        fix = f"pip install 'mujoco{libero_files.MUJOCO}'"
        return Check(name, "warn", f"{version}, {changes.removesuffix(f': {fix}')}", fix)
    return Check(name, "ok", f"{version}, scenes in {assets}")


def check_maniskill(*, seconds: float = 300.0, environ: Mapping[str, str] | None = None) -> Check:
    """ManiSkill makes a scene, plans and draws, tried in a process of its own: a wrong driver or numpy may end it.

    Args:
        seconds: how long that may take.
        environ: its environment; ours by default.
    """
    from guerdon.worlds import maniskill

    name = "ManiSkill"
    version = _version("mani-skill")
    if version is None:
        return Check(name, "warn", "not installed (robot tasks)", maniskill.INSTALL)
    script = "from guerdon.worlds.maniskill import ManiSkillEye, ManiSkillVectorEnv\n"
    script += "env = ManiSkillVectorEnv('PushCube-v1', 1, frame_size=(64, 64)); env.reset(seed=[0])\n"
    script += "print(int(ManiSkillEye(env).look(0)['render_camera'].std()))"
    printed, error = _printed(script, seconds, environ)
    if error or not printed.isdecimal():
        return Check(name, "fail", f"{version}: {error or printed or 'no message'}", maniskill.DRIVER)
    if int(printed) < 5:
        return Check(name, "fail", f"{version}: the picture of a scene is blank", maniskill.DRIVER)
    if int(importlib.metadata.version("numpy").split(".")[0]) >= 2:
        why = f"{version} draws; its motion planner (collect: type expert) needs numpy 1"
        return Check(name, "warn", why, "pip install 'numpy<2'")
    return Check(name, "ok", f"{version} makes a scene and draws it")


def check_torchvision() -> Check:
    """Whether torchvision is absent or loads: builds for another torch do not, and break transformers too."""
    name = "torchvision"
    version = _version(name)
    if version is None:
        return Check(name, "ok", "not installed, nor needed")
    _, error = _printed("import torchvision", 120)
    if error:
        why = f"{version} does not fit this torch: {error}"
        return Check(name, "warn", why, "pip uninstall torchvision (LIBERO brings it and does not use it)")
    return Check(name, "ok", version)


def check_video() -> Check:
    """PyAV writes an MP4 file and reads the same pictures back."""
    name, fix = "MP4 video", "pip install 'guerdon[video]'"
    import numpy as np

    from guerdon.episodes.video import VideoWriter, decode_video
    from guerdon.errors import GuerdonError, MissingDependencyError, boundary

    frames_T_H_W_C = np.zeros((8, 64, 64, 3), dtype=np.uint8)
    for t in range(8):
        frames_T_H_W_C[t, :, : 8 * (t + 1)] = (200, 120, 40)
    try:
        with boundary(GuerdonError, "cannot encode"), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "probe.mp4"
            with VideoWriter(path, height=64, width=64, fps=10) as video:
                video.add(frames_T_H_W_C)
            back_T_H_W_C = decode_video(path, np.arange(8) / 10, fps=10)
    except MissingDependencyError:
        return Check(name, "warn", "PyAV is not installed (MP4 episodes)", fix)
    except GuerdonError as exc:
        return Check(name, "fail", str(exc), f"{fix} --force-reinstall")
    error = float(np.abs(back_T_H_W_C.astype(int) - frames_T_H_W_C.astype(int)).mean())
    if error > 12:
        return Check(name, "fail", f"pictures come back {error:.1f} of 255 off", f"{fix} --force-reinstall")
    return Check(name, "ok", f"written and read back, {error:.1f} of 255 off on average")


def check_programs() -> Check:
    """Programs of a model run in isolation, tried with one; only code tasks need it."""
    from guerdon.errors import MissingDependencyError
    from guerdon.tasks.code.code_tests import ALLOW_IT, check_isolation

    name = "programs of a model"
    try:
        memory = check_isolation()
    except MissingDependencyError as error:
        return Check(name, "warn", str(error).removesuffix(f". To run programs of a model, {ALLOW_IT}"), ALLOW_IT)
    limit = "a control group limits" if memory == "group" else "a share for each process limits"
    return Check(name, "ok", f"run in isolation; {limit} the memory of those that start others")


def check_disk(folder: Path, *, free_bytes: int | None = None) -> Check:
    """There is room for runs where they will be written."""
    if free_bytes is None:
        free_bytes = shutil.disk_usage(_existing(folder)).free
    free = free_bytes / 1e9
    found = f"{free:.1f} GB free for {folder}"
    if free >= _DISK_WARN:
        return Check("disk space", "ok", found, "")
    status: Status = "fail" if free < _DISK_FAIL else "warn"
    fix = f"free some space or set work_dir elsewhere; a study needs about {_DISK_WARN:g} GB"
    return Check("disk space", status, found, fix)


def check_output(folder: Path) -> Check:
    """Runs can be written to the folder; nothing is left behind."""
    home = _existing(folder)
    try:
        with tempfile.NamedTemporaryFile(dir=home, prefix=".guerdon-"):
            pass
    except OSError as exc:
        fix = f"make {home} a folder that you may write to, or set work_dir elsewhere"
        return Check("output folder", "fail", f"cannot write to {home.absolute()}: {exc.strerror}", fix)
    return Check("output folder", "ok", f"{folder} can be written")


def check_compiler(environ: Mapping[str, str] | None = None) -> Check:
    """Whether torch.compile is switched off, which changes speed but no result."""
    value = (os.environ if environ is None else environ).get("TORCHDYNAMO_DISABLE", "")
    off = value not in ("", "0")
    found = f"off: TORCHDYNAMO_DISABLE={value}" if off else "on where a setting asks for it"
    return Check("torch.compile", "ok", found)


def check_browser() -> Check:
    """A Chromium for the browser tests of the report; nothing else needs it."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return Check("Chromium", "ok", f"{found} (browser tests)")
    return Check("Chromium", "warn", "not installed (only browser tests use it)", "on Debian: apt-get install chromium")


def check_extras() -> list[Check]:
    """The optional packages: one line for each extra that is installed, one for all others.

    What belongs to an extra, and in which versions, is read from guerdon's own metadata; nothing is imported.
    """
    extras = _extras()
    checks = {name: _check_extra(name, extras) for name in sorted(extras)}
    found = [check for check in checks.values() if check is not None]
    absent = [name for name, check in checks.items() if check is None]
    if absent:
        what = f"not installed, or only in part: {', '.join(absent)} (pip install 'guerdon[NAME]')"
        found.append(Check("other extras", "ok", what))
    return found


def _check_extra(name: str, extras: Mapping[str, list[Requirement]]) -> Check | None:
    """The versions of an extra's packages; None where one of them is not installed."""
    wanted = [one for one in extras[name] if one.name != "guerdon"]
    included = [one for other in extras[name] if other.name == "guerdon" for one in _all_of(other.extras, extras)]
    versions = {one.name: _version(one.name) for one in [*wanted, *included]}
    if None in versions.values():
        return None
    wrong = [one for one in wanted if not one.specifier.contains(str(versions[one.name]), prereleases=True)]
    if wrong:
        what = ", ".join(f"{one.name} {versions[one.name]} is not {one.name}{one.specifier}" for one in wrong)
        return Check(f"extra {name}", "warn", what, f"pip install 'guerdon[{name}]'")
    said = dict.fromkeys(f"{one.name} {versions[one.name]}" for one in wanted)  # once each
    return Check(f"extra {name}", "ok", ", ".join(said))


def _extras() -> dict[str, list[Requirement]]:
    """What each extra for users requires."""
    extras: dict[str, list[Requirement]] = {}
    lines = importlib.metadata.requires("guerdon") if _version("guerdon") else None
    for line in lines or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue
        for name in re.findall(r"extra == '([^']+)'", str(marker).replace('"', "'")):
            if marker.evaluate({"extra": name}) and name not in ("dev", "bench"):
                extras.setdefault(name, []).append(requirement)
    return extras


def _all_of(names: Iterable[str], extras: Mapping[str, list[Requirement]]) -> list[Requirement]:
    """What these extras require together."""
    return [one for name in names for one in extras.get(name, [])]


def _version(package: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_parts() -> list[Check]:
    """Every part that an installed package registers can be imported, and none is hidden behind another."""
    from guerdon.config.registry import package_of
    from guerdon.errors import GuerdonError
    from guerdon.settings.parts import REGISTRIES

    found = []
    for registry in REGISTRIES:
        for entry in registry.hidden():
            other = "a part of guerdon" if entry.name in registry.builtins else "another package's"
            why = f"of {package_of(entry)} is never used: {other} has the same name"
            fix = f"write {entry.value} in the study, or let the package register another name"
            found.append(Check(f"{registry.kind} {entry.name}", "warn", why, fix))
        for name, entry in registry.registered().items():
            package = package_of(entry)
            what = f"{registry.kind} {name}"
            try:
                registry.factory(name)
            except GuerdonError as error:
                found.append(Check(what, "warn", f"of {package}: {error}", f"repair or uninstall {package}"))
            else:
                found.append(Check(what, "ok", f"{entry.value} of {package}"))
    return found


def run_checks(output_dir: Path | str = Path("runs")) -> list[Check]:
    """All checks, in the order in which to fix them.

    Args:
        output_dir: where runs will be written.
    """
    folder = Path(output_dir)
    core_only = all(_version(name) is None for name in TRAIN)
    return [
        check_python(),
        *([_CORE_ONLY] if core_only else _training_checks()),
        check_video(),
        check_programs(),
        check_disk(folder),
        check_output(folder),
        check_browser(),
        *check_extras(),
        *([] if core_only else check_parts()),
    ]


_CORE_ONLY = Check(
    "guerdon[train]",
    "ok",
    "core only: fine. It audits, scores and evaluates by a server or a judge, and writes reports; "
    "pip install 'guerdon[train]' for models and environments",
)


def _training_checks() -> list[Check]:
    """Checks of what models and environments need."""
    return [
        check_torch(),
        check_package("transformers", extra="train", purpose="reward models"),
        check_package("mujoco", extra="metaworld", purpose="simulation"),
        check_package("metaworld", extra="metaworld", purpose="the robot benchmark"),
        check_package("ale-py", extra="games", purpose="Atari games", module="ale_py"),
        check_opencv(),
        check_rendering(),
        check_libero(),
        check_maniskill(),
        check_torchvision(),
        check_compiler(),
    ]


def main(output_dir: Path | str = Path("runs")) -> int:
    """Print a table of all checks.

    Returns:
        The exit status: 1 when a check failed, else 0.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    checks = run_checks(output_dir)
    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table("", "check", "found", box=None, pad_edge=False)
    for check in checks:
        found = escape(check.detail) + (f"\n-> {escape(check.fix)}" if check.fix else "")
        table.add_row(f"[{colours[check.status]}]{check.status}[/]", check.name, found)
    console = Console()
    console.print(table)
    failed = sum(check.status == "fail" for check in checks)
    warned = sum(check.status == "warn" for check in checks)
    console.print(f"{len(checks)} checks: {failed} failed, {warned} warnings")
    return 1 if failed else 0


def _existing(folder: Path) -> Path:
    """The folder itself or the nearest one above it that exists."""
    for candidate in (folder.absolute(), *folder.absolute().parents):
        if candidate.exists():
            return candidate
    return Path.cwd()


if __name__ == "__main__":
    sys.exit(main())
