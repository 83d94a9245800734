"""The manifest for Kubernetes: its commands and keys are those of guerdon."""

import shlex
from pathlib import Path

import yaml

from guerdon.config.loading import apply_overrides, validate
from guerdon.config.tree import Tree
from guerdon.settings.cluster import ClusterSettings
from guerdon.settings.serve import ServeSettings

MANIFEST = Path(__file__).parents[1] / "examples" / "kuberay.yaml"


def resources():
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


def groups(spec):
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def test_the_job_runs_a_study():
    spec = resources()["RayJob"]["spec"]
    shell, flag, line = shlex.split(spec["entrypoint"])
    assert (shell, flag) == ("bash", "-c")
    words = shlex.split(line.partition("&&")[2])
    assert words[:3] == ["guerdon", "compare", "study.yaml"]
    tree = apply_overrides(Tree(), words[3:])
    assert tree.data.pop("engine") == "ray"
    cluster = validate(ClusterSettings, tree.data.pop("cluster"), origin="the manifest")
    assert not tree.data
    worker = spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    limits = worker["resources"]["limits"]
    assert float(limits["cpu"]) >= cluster.job_cpus
    assert float(limits["nvidia.com/gpu"]) >= cluster.job_gpus
    folder = shlex.split(line)[1]
    for group in groups(spec["rayClusterSpec"]):
        (container,) = group["template"]["spec"]["containers"]
        assert folder in [mount["mountPath"] for mount in container["volumeMounts"]], "every node has the folder"


def test_the_service_is_a_server(monkeypatch):
    spec = resources()["RayService"]["spec"]
    (application,) = yaml.safe_load(spec["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, name) == ("guerdon.engines.ray_serve", "build")
    args = {"host": "0.0.0.0", "token": "secret-secret", **application["args"]}
    settings = validate(ServeSettings, args, origin="the manifest")
    assert settings.ray.max_replicas > settings.ray.min_replicas
    secrets = [
        [one["name"] for one in group["template"]["spec"]["containers"][0].get("env", [])]
        for group in groups(spec["rayClusterConfig"])
    ]
    assert all("GUERDON_TOKEN" in names for names in secrets)
