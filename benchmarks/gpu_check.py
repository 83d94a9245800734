"""What guerdon does on this machine's GPU, part by part: tests, speed, memory against the estimate, collectives.

Every part is a process of its own with a limit of time; one that fails gives its reason, and the rest goes on. The
table goes to standard output, table and numbers go to `--out`. At most 25 minutes on one card of 80 GB.

    make gpu-check
    make gpu-check PARTS=quick MINUTES=6
    python benchmarks/gpu_check.py --only=collective,vla
    python benchmarks/gpu_check.py --tiny          every part with small shapes, on a CPU as well

Parts: `tests-...`, a suite with its tensors on the GPU. `smollm2-...` (135M parameters, of a package; random weights of
that shape where it is not installed) and `1.5B-...` (the shape of Qwen2-1.5B, random weights): `write`, `hf` and `vllm`
are generation by guerdon's own engine, by transformers and by vLLM (which then gives its memory back and wakes up
again); `guerdon`, `trl` and `verl` whole steps (generate, check, update), guerdon's with the peak of memory as a share
of the estimate of docs/memory.md, and with MFU. `1.5B-grpo_profiled` is a GRPO step under torch's profiler, whose trace
and table stay in `--folder`; `preferences-guerdon` and `-trl` are what the operators of a training on preferences take.
`quick` is a group of six minutes: NCCL, the profiled step, TRL's, both trainings on preferences. `vla`: an action chunk
of a 7B-shaped OpenVLA-OFT. `collective`: sums and broadcasts between the GPUs, NCCL with one process where there is one
GPU.

MFU = 6 x parameters x tokens of the update (prompts and responses) / seconds of the update / peak rate in bfloat16. The
recomputation of gradient checkpointing and the products of attention with itself are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from harness import MARK, Stopwatch, machine_line, report_measurement, table
from text_sides import SIZES, Size, make_model, one, requests

ROOT = Path(__file__).parents[1]
SUITES = ("labels", "evaluate", "models", "train", "policies", "rl")
ON_GPU = {"prompts": 32, "samples": 8, "length": 256, "at_once": 256, "written": 256, "warm": 1, "steps": 2}
TINY = {"prompts": 2, "samples": 2, "length": 4, "at_once": 2, "written": 4, "warm": 1, "steps": 1}
MODELS = {
    "smollm2": replace(SIZES["smollm2"], lora=None, **ON_GPU),
    "1.5B": Size(1536, 28, 12, 2, 8960, 151_936, **ON_GPU),
}
SIDES = ("write_bfloat16", "hf_bfloat16", "vllm_bfloat16", "guerdon_defaults", "trl_grpo_bf16", "verl_grpo_bf16")
BUCKET = 64 * 2**20  # bytes, as weights are sent to collectors


def card() -> str | None:
    """The name of the GPU, as `guerdon.settings.gpus` has it or as CUDA does; None without one."""
    from guerdon.settings.gpus import GPUS

    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(0)
    return next((known for known in GPUS if known in name.replace(" ", "")), name)


def model_folder(model: str, folder: Path, *, tiny: bool) -> str:
    """The path of a model, made where it is not there yet."""
    from guerdon.compute.packaged import local_model
    from guerdon.errors import MissingDependencyError

    if model == "smollm2" and not tiny:
        with contextlib.suppress(MissingDependencyError):
            return local_model("package:smollm2")
    path = folder / model
    return str(path) if path.is_dir() else make_model(path, size_of(model, tiny=tiny))


def size_of(model: str, *, tiny: bool) -> Size:
    """How much is measured of a model."""
    return replace(SIZES["0.4M"], **TINY) if tiny else MODELS[model]


def text_part(model: str, side: str, *, folder: Path, tiny: bool) -> dict[str, Any]:
    """One measurement of generation, or of whole steps, of a language model."""
    size, path = size_of(model, tiny=tiny), model_folder(model, folder, tiny=tiny)
    found = one(side, path, size)
    result = {"tokens per second": found["tokens"] * found.get("updates", 1) / found["seconds"]}
    if found["gpu_peak"]:
        result["peak, GB"] = found["gpu_peak"] / 1e9
    if "given_back" in found:
        result["given back asleep, GB"] = found["given_back"] / 1e9
    if side.startswith("guerdon"):
        prompts = sum(map(len, requests(path, replace(size, at_once=size.prompts))[1])) * size.samples
        result |= update_figures(found, size, path, prompts)
    return result


def update_figures(found: dict[str, Any], size: Size, path: str, prompt_tokens: int) -> dict[str, float]:
    """Seconds and MFU of guerdon's update, and its peak of memory as a share of the estimate; on a known GPU."""
    from guerdon.plan.gpu import rollout_memory, update_memory
    from guerdon.plan.text_size import read_config, shape_of
    from guerdon.settings.gpus import GPUS, tokens_per_pass

    shape, rows = shape_of(read_config(Path(path) / "config.json")), size.prompts * size.samples
    longest = prompt_tokens // rows + size.length
    seconds, tokens = found["phases"]["update"] / size.steps, prompt_tokens + found["tokens"]
    most = min(tokens_per_pass(shape.layers, shape.width), tokens)
    parts = update_memory(
        shape, rank=None, tokens=most, answered=most * size.length // longest, checkpointing=False
    )  # fmt: skip
    rollout = sum(rollout_memory(shape, rows=rows, length=longest).values())
    estimate = max(sum(parts.values()), parts["weights"] + parts["Adam"] + rollout)
    figures = {"update, s": seconds, "estimate, GB": estimate / 1e9}
    if found["gpu_peak"]:
        figures["peak / estimate"] = found["gpu_peak"] / estimate
    if (name := card()) in GPUS:
        figures["MFU"] = 6 * shape.parameters * tokens / seconds / GPUS[str(name)].peak
    return figures


def vla_part(*, folder: Path, tiny: bool) -> dict[str, float]:
    """Seconds of an action chunk of OpenVLA-OFT with random weights, for one observation and for eight."""
    import gymnasium
    import numpy as np

    from guerdon.compute.devices import resolve_device
    from guerdon.policies.vla.build import tiny_token_network
    from guerdon.policies.vla.policy import bounds_as_statistics, hashed_words
    from guerdon.policies.vla.token import TokenVLA
    from guerdon.settings.vla_policy import TinyVLASettings, VLAPolicySettings

    small = TinyVLASettings(vision="vit")
    settings = VLAPolicySettings(tiny=small, num_action_chunks=8)
    with torch.device("cpu" if tiny else resolve_device("auto")):
        network = tiny_token_network(small, 0) if tiny else openvla()
    space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)
    policy = TokenVLA(settings, network, hashed_words(500), bounds_as_statistics(space), ())
    policy.to(network.action_head.weight.device)
    rng, result = np.random.default_rng(0), {"parameters, 1e9": sum(p.numel() for p in policy.parameters()) / 1e9}
    for copies in (1, 8):
        rows = np.zeros(copies, [("task", "U40"), ("frames", np.uint8, (*policy.image_size, 3))])
        rows["task"] = "close the window"
        times = []
        for _ in range(2 if tiny else 12):
            watch = Stopwatch()
            policy.act(rows, rng)
            times.append(watch.read()["seconds"])
        result[f"chunk of {copies}, ms"] = 1e3 * float(np.median(times[1:]))
    if torch.cuda.is_available():
        result["peak, GB"] = torch.cuda.max_memory_allocated() / 1e9
    return result


def openvla() -> Any:
    """The network of OpenVLA-OFT with discrete actions, of random weights in bfloat16."""
    from transformers import LlamaConfig

    from guerdon.plan.gpu import PUBLISHED_VLA
    from guerdon.policies.vla.prismatic import PrismaticNetwork
    from guerdon.policies.vla.published import TOWERS
    from guerdon.policies.vla.vision import DinoSiglipTowers

    language = LlamaConfig(**PUBLISHED_VLA["token"], num_attention_heads=32)
    torch.set_default_dtype(torch.bfloat16)
    try:
        return PrismaticNetwork(
            DinoSiglipTowers(list(TOWERS.values())), language, vocabulary=32_000, bins=256, image_size=224,
            proprio_size=0, fused=True,
        )  # fmt: skip
    finally:
        torch.set_default_dtype(torch.float32)


def collective_part(*, folder: Path, tiny: bool) -> dict[str, float]:
    """Gigabytes per second of sums and broadcasts of a bucket between processes, each with a GPU, or on the CPU."""
    processes = min(torch.cuda.device_count(), 2) or 2
    file = folder / "rates.json"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", __file__,
        f"--rank-of={file}", *(["--tiny"] if tiny else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"torchrun ended with {done.returncode}: {reason(done.stderr)}")
    return {"processes": processes, **json.loads(file.read_text())}


def one_rank(file: Path, *, tiny: bool) -> None:
    """What each process of `collective_part` does; the first writes the rates."""
    from torch import distributed as dist

    from guerdon.compute.distributed import is_first, joined

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with joined():
        alone = not dist.is_initialized()
        if alone:  # one GPU: `joined` makes no group for one process
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo", store=dist.HashStore(), world_size=1, rank=0
            )
        bucket, rates = torch.ones(2**10 if tiny else BUCKET // 4, device=device), {}
        for name, call in {"all_reduce": dist.all_reduce, "broadcast": partial(dist.broadcast, src=0)}.items():
            call(bucket)
            watch, times = Stopwatch(), 2 if tiny else 20
            for _ in range(times):
                call(bucket)
            rates[f"{name}, GB/s"] = bucket.nbytes * times / watch.read()["seconds"] / 1e9
        if is_first():
            file.write_text(json.dumps(rates))
        if alone:
            dist.destroy_process_group()


def tests_part(suite: str, *, folder: Path, tiny: bool, limit: float) -> dict[str, Any]:
    """A suite's quick tests with tensors on the GPU: how many passed, and the names of those that did not."""
    file, cut = folder / f"{suite}.xml", False
    which = ["tests/test_devices.py"] if tiny else [f"tests/{suite}", "-m", "not slow", "-n", "auto"]
    command = [sys.executable, "-m", "pytest", "-q", *which, f"--junitxml={file}", "-p", "no:cacheprovider"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            cut = True
            process.send_signal(signal.SIGINT)  # pytest then writes what it has
            process.wait(30)
    if not file.is_file():
        raise RuntimeError(f"pytest ended with {process.returncode} and wrote no report")
    cases = list(ElementTree.parse(file).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    result: dict[str, Any] = {"passed": len(cases) - len(bad) - skipped, "failed": len(bad), "skipped": skipped}
    if cut:
        result["stopped after, s"] = limit
    return result | ({"names": [f"{case.get('classname')}::{case.get('name')}" for case in bad]} if bad else {})


def profiled_part(*, folder: Path, tiny: bool) -> dict[str, Any]:
    """GRPO steps of the 1.5B-shaped model under the profiler: seconds by what they are for; the trace is kept."""
    from text_sides import run_guerdon

    size, path = size_of("1.5B", tiny=tiny), model_folder("1.5B", folder, tiny=tiny)
    traces = folder / "profile"
    found = run_guerdon(path, size, matched=False, algorithm={"adv_estimator": "grpo"}, traces=traces)
    row = json.loads((traces / "times.json").read_text())["processes"][0]
    result = {"tokens per second": found["tokens"] * found["updates"] / found["seconds"]}
    result |= {f"{name}, s": seconds for name, seconds in row.items() if name != "process"}
    return result | {"trace": str(traces)}


def preferences_part(side: str, *, folder: Path, tiny: bool) -> dict[str, Any]:
    """A gradient step of a training on preferences (bfloat16, checkpointing): pairs per second, and its operators."""
    import preference_sides as sides
    from torch.profiler import ProfilerActivity, profile

    data, gpu = folder / "preferences", torch.cuda.is_available()
    batch, size = (2, sides.SIZES["0.4M"]) if tiny else (32, sides.SIZES["360M"])
    if not data.is_dir():
        data.mkdir()
        sides.make_shared(data, size)
        sides.write_rows(data / "half.jsonl", sides.make_pairs(batch * 8, sides.SHAPES["half"], 3))
    given = {"batch": batch, "bf16": True, "checkpointing": True, "gpu": gpu}
    found = sides.train_once(side, data, "half", steps=5, warm=2, **given)
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    seen = profile(activities=kinds)
    sides.train_once(side, data, "half", steps=2, warm=1, profiler=seen, **given)
    events = seen.key_averages()
    spent = {one.key: one.self_device_time_total if gpu else one.self_cpu_time_total for one in events}
    most = sorted(spent, key=lambda name: -spent[name])[:8]
    whole = sum(spent.values()) or 1.0
    return {
        "pairs per second": found["pairs"] / found["seconds"],
        "launches": sum(one.count for one in events if one.key.startswith("cudaLaunch")),
        "operators": sum(one.count for one in events if one.key.startswith("aten::")),
        "waits": sum(one.count for one in events if "Synchronize" in one.key or one.key == "aten::item"),
        **{name[:60]: f"{spent[name] / whole:.0%}" for name in most},
    }


PARTS: dict[str, tuple[float, Callable[..., dict[str, Any]]]] = {  # seconds at most, and what is measured
    "collective": (60.0, collective_part),
    "vla": (150.0, vla_part),
    "1.5B-grpo_profiled": (80.0, profiled_part),
    **{f"preferences-{side}": (50.0, partial(preferences_part, side)) for side in ("guerdon", "trl")},
    **{f"{model}-{side}": (120.0, partial(text_part, model, side)) for model in MODELS for side in SIDES},
    **{f"tests-{suite}": (120.0, partial(tests_part, suite, limit=80.0)) for suite in SUITES},
}


GROUPED = {
    "quick": ("collective", "1.5B-grpo_profiled", "1.5B-trl_grpo_bf16", "preferences-guerdon", "preferences-trl")
}


def reason(said: str) -> str:
    """The last line of what a process said that is not empty, in at most 300 characters."""
    lines = [line for line in said.splitlines() if line.strip()]
    return re.sub(r"\s+", " ", lines[-1].removeprefix("guerdon.errors."))[-300:] if lines else "nothing was said"


def measured(name: str, folder: Path, *, tiny: bool) -> dict[str, Any]:
    """A part in a process of its own: its numbers, or why there are none."""
    limit, start = PARTS[name][0], time.monotonic()
    command = [sys.executable, __file__, f"--part={name}", f"--folder={folder}", *(["--tiny"] if tiny else [])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, said = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"part": name, "reason": f"not done after {limit:.0f} s", "seconds": limit}
    row: dict[str, Any] = {"part": name, "seconds": time.monotonic() - start}
    found = [line for line in out.splitlines() if line.startswith(MARK)]
    if process.returncode or not found:
        return row | {"reason": reason(said), "said": said[-4000:]}
    return row | json.loads(found[-1].removeprefix(MARK))


def shown(row: dict[str, Any]) -> list[str]:
    """A line of the table."""
    numbers = {k: v for k, v in row.items() if k not in ("part", "seconds", "names", "said")}
    cells = [f"{k} {v:.3g}" if isinstance(v, float) else f"{k}: {v}" if isinstance(v, str) else f"{k} {v}"
             for k, v in numbers.items()]  # fmt: skip
    return [row["part"], f"{row['seconds']:.0f}", "; ".join(cells)]


def main() -> None:
    """Measure all parts, or one in this process (`--part`)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    groups = ", ".join(f"{name} ({', '.join(parts)})" for name, parts in GROUPED.items())
    parser.add_argument("--only", help=f"parts, separated by commas, of {', '.join(PARTS)}; or {groups}")
    parser.add_argument("--minutes", type=float, default=25.0, help="no part begins that could end after this time")
    parser.add_argument("--tiny", action="store_true", help="small shapes, on a CPU as well")
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check.json"))
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="where models are made and kept for the next time")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        one_rank(options.rank_of, tiny=options.tiny)
        return
    if options.part:
        report_measurement(PARTS[options.part][1](folder=options.folder, tiny=options.tiny))
        return
    named = options.only.split(",") if options.only else list(PARTS)
    wanted = [part for name in named for part in GROUPED.get(name, (name,))]
    if unknown := sorted(set(wanted) - set(PARTS)):
        parser.error(f"--only: no part is called {', '.join(unknown)}; known are {', '.join(PARTS)}")
    if card() is None and not options.tiny:
        parser.error("this machine has no GPU that torch can use: --tiny runs everything with small shapes on the CPU")
    where = machine_line(["transformers", "trl", "vllm", "verl"])
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    rows, start = [], time.monotonic()
    with contextlib.nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in wanted:
            if time.monotonic() - start + PARTS[name][0] > 60 * options.minutes:
                rows.append({"part": name, "seconds": 0.0, "reason": f"left out after {options.minutes:g} minutes"})
            else:
                rows.append(measured(name, Path(folder), tiny=options.tiny))
            print(": ".join(shown(rows[-1])[::2]), flush=True)
            lines = table(["part", "s", "measured"], [shown(row) for row in rows])
            text = f"{where} GPUs: {', '.join(gpus) or 'none'}.\n\n{lines}\n"
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({"machine": where, "gpus": gpus, "parts": rows, "table": text}, indent=1))
    print(f"\n{text}\nall numbers: {options.out}")


if __name__ == "__main__":
    main()
