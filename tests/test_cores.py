"""The cores that this process may use, read from files as the kernel writes them."""

import os

import pytest

from guerdon.comparison.study import plan_study
from guerdon.processes import cores
from guerdon.processes.cores import usable_cores
from guerdon.serve.launch import machine


@pytest.fixture(autouse=True)
def eight(monkeypatch):
    """This process may run on eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def kernel(root, files):
    """Files under a folder that stands for `/`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, 8),
        ({"": "max 100000"}, 8),
        ({"": "200000 100000"}, 2),  # a container: its own group is the top
        ({"a/b": "300000 100000"}, 3),
        ({"a": "200000 100000", "a/b": "max 100000"}, 2),  # the limit of a group above
        ({"a": "600000 100000", "a/b": "400000 50000"}, 6),
        ({"a/b": "50000 100000"}, 1),  # half a core
        ({"a/b": "350000 100000"}, 3),
        ({"a/b": "9900000 100000"}, 8),  # more than the machine has
        ({"other": "100000 100000"}, 8),  # of a group that this process is not in
        ({"a/b": "nonsense"}, 8),
        ({"a/b": "0 0"}, 8),
    ],
)
def test_the_quota_of_version_2_counts_in_every_group_above(tmp_path, limits, wanted):
    files = {f"sys/fs/cgroup/{group}/cpu.max": text + "\n" for group, text in limits.items()}
    group = "/a/b" if any(limits) or not limits else "/"
    root = kernel(tmp_path, {**files, "proc/self/mountinfo": V2, "proc/self/cgroup": f"0::{group}\n"})
    assert usable_cores(root) == wanted


@pytest.mark.parametrize(
    ("top", "group", "folder", "quota", "wanted"),
    [
        ("/", "/docker/x", "docker/x", 250_000, 2),
        ("/docker/x", "/docker/x", "", 400_000, 4),  # a container sees its own group as the top
        ("/docker/x", "/docker/xy", "", 400_000, 4),  # not below what is mounted
        ("/", "/docker/x/deep", "docker", 100_000, 1),
        ("/", "/docker/x", "docker/x", -1, 8),
    ],
)
def test_the_quota_of_version_1_counts(tmp_path, top, group, folder, quota, wanted):
    inside = f"sys/fs/cgroup/cpu,cpuacct/{folder}"
    files = {
        "proc/self/mountinfo": V1.format(top=top),
        "proc/self/cgroup": f"5:memory:/elsewhere\n4:cpu,cpuacct:{group}\n1:name=systemd:/\n0::/\n",
        f"{inside}/cpu.cfs_quota_us": f"{quota}\n",
        f"{inside}/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/elsewhere/cpu.cfs_quota_us": "100000\n",
        "sys/fs/cgroup/memory/elsewhere/cpu.cfs_period_us": "100000\n",
    }
    assert usable_cores(kernel(tmp_path, files)) == wanted


def test_without_such_files_the_cores_count(tmp_path):
    assert usable_cores(tmp_path) == 8


def test_studies_and_servers_plan_by_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "_quotas", lambda _: iter([3.9, 6.0]))
    assert machine().cores == 3
    study = tmp_path / "study.yaml"
    study.write_text(
        "env: {type: gymnasium, task: 'tiny_world:Dot-v1'}\npolicy: {type: mlp}\n"
        "compare: {baseline: A, seeds: [0, 1, 2, 3], arms: {A: {label: native}}}\n"
    )
    assert plan_study(study, []).parallel == 3
