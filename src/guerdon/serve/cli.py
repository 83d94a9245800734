"""The words of the command `guerdon serve`. Nothing heavy is imported before a server starts.

guerdon serve --backend PRIMO-R1 --model-path /models/PRIMO-R1-7B --gpu-ids 0,1
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from guerdon.errors import ConfigError


def serve(
    words: Annotated[
        list[str] | None, typer.Argument(help="A YAML file of the server, dotted overrides, or both.", metavar="FILE")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="What to serve: qwen2_5_vl_vllm, PRIMO-R1, resnet, text, ...")
    ] = None,
    model_path: Annotated[str | None, typer.Option(help="Its checkpoint, or a hub id.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model: name=path or name=backend:path (repeatable).")
    ] = None,
    custom_backend: Annotated[
        str | None,
        typer.Option("--custom-backend", "--custom-backend-factory", help="Your own backend, as module:factory."),
    ] = None,
    default: Annotated[str | None, typer.Option(help="Model of requests that name none.")] = None,
    host: Annotated[str | None, typer.Option(help="Address; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default 18080, 0: any free one.")] = None,
    token: Annotated[str | None, typer.Option(envvar="GUERDON_TOKEN", help="Secret that requests must send.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow other machines without a token.")] = False,
    media_root: Annotated[str | None, typer.Option(help="Folder of files for video_path.")] = None,
    gpu_ids: Annotated[str | None, typer.Option(help="GPUs to use, such as 0,1.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(help="GPUs that share a vLLM model.")] = None,
    primo_tensor_parallel_size: Annotated[int | None, typer.Option(help="The same, for PRIMO-R1.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Context length of vLLM.")] = None,
    gpu_memory_utilization: Annotated[float | None, typer.Option(help="Share of a GPU's memory for vLLM.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    processes: Annotated[
        str | None, typer.Option(help="Copies of the model, each in its own process; default auto, none: no copies.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads of the model.")] = None,
    update_dir: Annotated[str | None, typer.Option(help="Enable updates of the model; folder of its states.")] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Serve with replicas on a Ray cluster.")] = False,
    min_replicas: Annotated[int | None, typer.Option(help="With --ray: replicas at least; default 1.")] = None,
    max_replicas: Annotated[int | None, typer.Option(help="With --ray: replicas at most; default 4.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the settings and print them in full; serve nothing.")
    ] = False,
) -> None:
    """Serve reward models over HTTP: /v1/rewards, /score, and the formats of RL trainers."""
    flags = {**locals(), "insecure": insecure or None, "ray": {} if ray else None}
    from guerdon.plan.stages import stage
    from guerdon.serve.launch import serve_settings

    files = [word for word in words or [] if "=" not in word]
    if len(files) > 1:
        raise ConfigError(f"{files[1]}: one file describes a server, and {files[0]} is given already")
    overrides = [word for word in words or [] if "=" in word]
    settings, server = serve_settings(Path(files[0]) if files else None, overrides, flags), stage("serve")
    if dry_run:
        from guerdon.config.loading import to_yaml

        server.check(settings)
        sys.stdout.write(to_yaml(settings))
    else:
        server.work(settings)
