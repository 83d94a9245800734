"""`guerdon serve --ray`: replicas of the server on a Ray cluster, as many as the requests need.

Every replica is the application of `guerdon serve` in a process of its own. Ray's proxy receives the requests and gives
each to a replica with few of them; Ray starts and ends replicas by the number of requests that run and wait.

    deploy(settings)                                                 # until a signal comes

A configuration file of Ray Serve, such as that of KubeRay's RayService, names `build` as its import_path and gives the
keys of the server as its args.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

from fastapi import FastAPI

from guerdon.config.loading import to_plain, validate
from guerdon.config.modules import MODULES_FOLDER
from guerdon.engines.ray_cluster import connected, free_port
from guerdon.errors import ConfigError, needs
from guerdon.processes.progress import doing, heartbeat
from guerdon.serve.app import build_app
from guerdon.serve.backends import model_loader, refuse_early
from guerdon.serve.lifecycle import say_served
from guerdon.serve.protocol import address
from guerdon.serve.sample import served_sample
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import RayServeSettings, ServeSettings

NAME = "guerdon"
_OF_ONE_PROCESS = {"/metrics", "/v1/reload"}
"""Routes that would speak of, or change, one of several replicas."""


def deploy(settings: ServeSettings) -> None:
    """Serve on a cluster until a signal comes; then accepted requests are answered, and the replicas end.

    Raises:
        ConfigError: the cluster cannot be reached, it serves something else on this address, or a model cannot be
            loaded.
        MissingDependencyError: Ray Serve is not installed.
    """
    wanted = settings.ray
    if wanted is None:
        raise ConfigError(
            "a server on a cluster needs the section ray; without it, launch() serves in this process", key="ray"
        )
    refuse_early(settings)
    serve = _ray_serve()
    ray, owned = connected(wanted.address)
    try:
        if _is_serving(ray):
            raise ConfigError(
                "Ray Serve runs on this cluster already, with an address of its own: end it with `serve shutdown`, or "
                "add this server to it with `serve deploy` and import_path guerdon.engines.ray_serve:build"
            )
        port = settings.port or free_port(settings.host)
        serve.start(http_options={"host": settings.host, "port": port})
        try:
            _serve_until_signal(serve, settings, port)
        finally:
            serve.shutdown()
    finally:
        if owned:
            ray.shutdown()


def build(given: Mapping[str, Any]) -> Any:
    """An application of Ray Serve, from the keys of a server's file.

    Args:
        given: the keys. Ray's proxy listens for other machines, so a token is needed (GUERDON_TOKEN), or `insecure`.

    Raises:
        ConfigError: the keys are wrong.
    """
    token = os.environ.get("GUERDON_TOKEN")
    listens = {"host": "0.0.0.0"}  # noqa: S104 (which needs a token)
    data = {**listens, **({"token": token} if token else {}), **given, "ray": given.get("ray") or {}}
    return _application(_ray_serve(), validate(ServeSettings, data, origin="args of the application"))


def _ray_serve() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported
    with needs("guerdon serve --ray needs Ray Serve: pip install 'guerdon[serve,ray-serve]'"):
        from ray import serve
    return serve


def _is_serving(ray: Any) -> bool:
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return False
    return True


def _serve_until_signal(serve: Any, settings: ServeSettings, port: int) -> None:
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        try:
            with heartbeat("serve"), doing(f"loading {', '.join(settings.models)} on the cluster"):
                serve.run(_application(serve, settings), name=NAME, route_prefix="/")
        except RuntimeError as error:
            raise ConfigError(f"the server cannot be deployed on the cluster: {error}") from error
        say_served(settings.models, address(settings.host, port))
        ended.wait()
        serve.delete(NAME)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _application(serve: Any, settings: ServeSettings) -> Any:
    """The deployment: what a replica builds, and how many of them there are."""
    wanted = settings.ray or RayServeSettings()
    plain = to_plain(settings)
    modules = list(sys.path)
    users_modules = os.environ.get(MODULES_FOLDER)

    def app() -> FastAPI:
        return _replica(plain, modules, users_modules)

    return serve.deployment(
        serve.ingress(app)(),
        name=NAME,
        ray_actor_options={"num_cpus": wanted.replica_cpus, "num_gpus": wanted.replica_gpus},
        max_ongoing_requests=settings.limits.concurrency,
        graceful_shutdown_timeout_s=settings.limits.drain_s,
        logging_config={"enable_access_log": False},
        autoscaling_config={
            "min_replicas": wanted.min_replicas,
            "max_replicas": wanted.max_replicas,
            "target_ongoing_requests": wanted.target_requests,
            "upscale_delay_s": wanted.upscale_delay_s,
            "downscale_delay_s": wanted.downscale_delay_s,
        },
    ).bind()


def _replica(plain: Mapping[str, Any], modules: list[str], users_modules: str | None) -> FastAPI:
    """The application of one replica; its models load before it gets requests."""
    sys.path += [path for path in modules if path not in sys.path]
    if users_modules is not None:
        os.environ[MODULES_FOLDER] = users_modules
    settings = validate(ServeSettings, plain, origin="a replica")
    loaders = {name: model_loader(name, model) for name, model in settings.models.items()}
    models = ServedModels(
        loaders, default=settings.default, batch=settings.batch, limits=settings.limits, sample=served_sample(settings)
    )
    built = build_app(models, settings)
    if settings.ray is not None and settings.ray.max_replicas > 1:
        built.router.routes[:] = [r for r in built.router.routes if getattr(r, "path", None) not in _OF_ONE_PROCESS]
    return built
