"""Time and memory of large runs, by a simulation of one iteration from measured, published and assumed inputs.

The same simulation must first predict the iterations that `scale_measure.py` measured with 1, 2 and 4 collectors within
20 %; until it does, no larger cluster is shown. Every input has a low and a high value and says where it comes from;
results are ranges: the low end has the best value of every input, the high end the worst.

    python benchmarks/scale_model.py              # the check, and the tables of docs/scale.md
    python benchmarks/scale_model.py --write      # into docs/scale.md
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.plan.estimate import size_of_start
from guerdon.plan.gpu import ACTION, INSTRUCTION, PATCHES
from guerdon.settings.gpus import GPUS
from guerdon.settings.text_policy import TextPolicySettings

TOLERANCE = 0.2
MEASURED = Path(__file__).with_name("scale_measured.json")
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
BEGIN, END = "<!-- written by benchmarks/scale_model.py -->", "<!-- end -->"
SHAPE = {  # of the 7B models: Qwen2.5-7B
    "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip


# The simulation.


def finish_times(workers: Sequence[Sequence[float]], cores: float) -> list[float]:
    """When each worker has finished its parts, one after another, where all share the cores evenly.

    Args:
        workers: seconds of a core that each part of each worker needs.
        cores: how many there are.
    """
    left = [sum(parts) for parts in workers]
    done, now = [0.0] * len(left), 0.0
    while active := [i for i, need in enumerate(left) if need > 1e-12]:
        rate = min(1.0, cores / len(active))
        step = min(left[i] for i in active)
        now += step / rate
        for i in active:
            left[i] -= step
            if left[i] <= 1e-12:
                done[i] = now
    return done


def iteration_seconds(shards: Sequence[float], collectors: int, after: float, cores: float) -> float:
    """Seconds of a synchronous iteration: collectors share the shards out, then the learner works alone.

    Args:
        shards: seconds of a core to collect each.
        collectors: at work at the same time; each has every n-th shard.
        after: seconds of a core of the learner: what crosses the seam, scores, update.
        cores: of all collectors and the learner together.
    """
    return max(finish_times([shards[k::collectors] for k in range(collectors)], cores)) + after


def decode_seconds(lengths: Sequence[int], at_once: int, read: tuple[float, float], compute: float) -> float:
    """Seconds to write responses on one GPU with continuous batching: a finished one makes room for the next.

    Args:
        lengths: tokens of each response.
        at_once: most responses at a time (memory of keys and values).
        read: seconds to read the weights in a decoding step, and the keys and values of each response.
        compute: seconds to compute a token of each response; the slower of reading and computing counts.
    """
    waiting, running, now = sorted(lengths), [], 0.0
    while waiting or running:
        while waiting and len(running) < at_once:
            running.append(waiting.pop())
        tokens = min(running)
        now += tokens * max(read[0] + read[1] * len(running), compute * len(running))
        running = [left - tokens for left in running if left > tokens]
    return now


# The check.


def check(measured: dict[str, Any]) -> list[dict[str, float]]:
    """Measured and predicted seconds of an iteration, by number of collectors: medians over the rounds."""
    rows = []
    for collectors in (1, 2, 4):
        pairs = []
        for one in measured["rounds"]:
            busy = one["alone" if collectors == 1 else "both"]  # both: two processes at the same time
            (alone,) = one["alone"]
            after = measured["shards"] * measured["seam"] + measured["put"] + alone["update"]
            predicted = [iteration_seconds(part["shards"], collectors, after, measured["cores"]) for part in busy]
            pairs.append((one["runs"][str(collectors)], statistics.fmean(predicted)))
        found, predicted = (statistics.median(column) for column in zip(*pairs, strict=True))
        row = {"collectors": collectors, "measured": found, "predicted": predicted, "error": predicted / found - 1.0}
        rows.append({**row, "rounds": len(pairs)})
    return rows


# Inputs.


@dataclass(frozen=True)
class Input:
    """A number of the model.

    Attributes:
        low, high: the best and the worst value for speed (or memory).
        unit: of both.
        kind: `measured`, `vendor's`, `published`, `assumed`.
        source: where it comes from.
    """

    low: float
    high: float
    unit: str
    kind: str
    source: str

    def at(self, end: int) -> float:
        """The best (0) or the worst (1) value."""
        return self.high if end else self.low


def parameters() -> float:
    """Of a 7B model, by the estimator of `--dry-run`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPE))
        return size_of_start(TextPolicySettings(path=folder)).millions * 1e6


def _libero(column: int) -> tuple[float, float]:
    """Highest and lowest speed of the tasks of LIBERO's four suites of ten tasks, in the table of docs/libero.md.

    Args:
        column: of the table, from its end: -2 steps/s, -1 pictures/s.
    """
    lines = PAGE.with_name("libero.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("| libero_")]
    found = [float(row[column]) for row in rows if row[0] in SUITES]
    return max(found), min(found)


SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10")
MEMORY, PEAK, _ = GPUS["H100"]
INPUTS = {
    "parameters": Input(parameters(), parameters(), "", "published", "shape of Qwen2.5-7B, counted as by --dry-run"),
    "memory": Input(MEMORY, MEMORY, "bytes", "vendor's", "H100 SXM data sheet"),
    "peak": Input(PEAK, PEAK, "FLOP/s", "vendor's", "H100 SXM data sheet, bfloat16 without sparsity"),
    "bandwidth": Input(3.35e12, 3.35e12, "bytes/s", "vendor's", "H100 SXM data sheet, HBM3"),
    "nvlink": Input(450e9, 450e9, "bytes/s", "vendor's", "NVLink 4, one direction, between the 8 GPUs of a node"),
    "network": Input(50e9, 25e9, "bytes/s", "assumed", "of a GPU to other nodes: 400 or 200 Gbit/s"),
    "used": Input(0.5, 0.3, "", "assumed", "share of the peak that training and scoring reach (46 % in 2204.02311)"),
    "read": Input(0.8, 0.5, "", "assumed", "share of the bandwidth that decoding reaches"),
    "store": Input(50e6 / 0.037, 50e6 / 0.064, "bytes/s", "measured",
                   "weights into Ray's object store: 50 MB in 37 to 64 ms (loaded 2-core machine)"),
    "fetch": Input(50e6 / 0.25, 50e6 / 0.30, "bytes/s", "measured",
                   "weights to an actor and an answer back: 50 MB in 250 to 300 ms (loaded 2-core machine)"),
    "sent": Input(2, 4, "bytes", "assumed",
                  "of a weight that is gathered or sent: bfloat16, or float32 as guerdon's learners hold it"),
    "pcie": Input(50e9, 20e9, "bytes/s", "assumed", "of a GPU to memory of the CPU, PCIe 5"),
    "wire": Input(12.5e9, 3.1e9, "bytes/s", "assumed", "of a node for Ray's object store: 100 or 25 Gbit/s"),
    "cores": Input(192, 96, "", "assumed", "CPU cores of a node with 8 GPUs"),
    "simulator": Input(*_libero(-2), "steps/s", "measured",
                       "LIBERO, per core-second, no picture: fastest and slowest of 40 tasks (docs/libero.md)"),
    "picture": Input(*_libero(-1), "pictures/s", "measured",
                     "LIBERO, one camera drawn on the CPU, per core-second: as above"),
    "mean": Input(800, 1500, "tokens", "assumed", "mean length of a response"),
    "spread": Input(0.5, 0.7, "", "assumed", "standard deviation of the logarithm of lengths (lognormal)"),
}  # fmt: skip
PROMPTS, SAMPLES, MOST, PROMPT_TOKENS = 256, 4, 4096, 200  # a batch of language: responses and their limit
SIMULATORS, EPISODE, CHUNK = 1000, 280, 8  # of LIBERO; steps of an episode; actions of a decision
PICTURES, VLM_PICTURES, VLM_TOKENS = 2, 16, 300  # of a decision; those that the VLM sees of an episode; its words
GPUS_OF_NODE, GRADIENT_STEPS = 8, 4
VISION = PATCHES["token"] * PICTURES + INSTRUCTION + ACTION * CHUNK  # tokens of a decision
VLM_READS = PATCHES["token"] // 4 * VLM_PICTURES + 200  # tokens of an episode: pictures of 64 tokens, and words
CACHED = 2 * 2 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"] * 128  # bytes of keys and values of a token
WRITING = "keys and values"  # of memory: what is there while responses are written, and not in an update
UPDATING = "activations and logits"  # the other way around
PARTS = {
    "language": ("write", "score", "update", "weights"),
    "robots": ("simulate", "act", "score", "update", "weights"),
}


def _get(name: str, end: int) -> float:
    return INPUTS[name].at(end)


def _flops(gpus: int, end: int) -> float:
    return gpus * _get("peak", end) * _get("used", end)


def _update_seconds(tokens: float, gpus: int, end: int) -> float:
    """Of fully sharded training: computing and gathering overlap, so that the slower of them counts.

    8 P operations per token with recomputed activations; parameters gathered twice and gradients scattered once per
    gradient step, on every GPU.
    """
    size = _get("parameters", end)
    speed = _get("nvlink", end) if gpus <= GPUS_OF_NODE else _get("network", end)
    return max(8 * size * tokens / _flops(gpus, end), GRADIENT_STEPS * 3 * _get("sent", end) * size / speed)


def _weights_seconds(size: float, gpus: int, end: int, *, separate: bool) -> float:
    """From the learner to the collectors, as `cluster.weight_transfer: auto` sends them.

    Collectors on GPUs of their own (`separate`) get one broadcast of NCCL, of buckets that come from and go through
    memory of the CPU; others Ray's object store, one copy per node, in a tree.
    """
    if separate:
        link = _get("nvlink", end) if gpus < GPUS_OF_NODE else _get("network", end)
        return size * (2 / _get("pcie", end) + 1 / link)
    nodes = max(gpus // GPUS_OF_NODE, 1)
    hops = math.ceil(math.log2(nodes)) if nodes > 1 else 0
    return size / _get("store", end) + size / _get("fetch", end) + hops * size / _get("wire", end)


def _lengths(end: int) -> np.ndarray:
    """Tokens of responses, lognormal with the wanted mean before the limit; always the same ones."""
    mean, spread = _get("mean", end), _get("spread", end)
    drawn = np.random.default_rng(0).lognormal(math.log(mean) - spread**2 / 2, spread, PROMPTS * SAMPLES)
    return np.clip(drawn, 16, MOST).astype(int)


def language(gpus: int, end: int, *, writers: int | None = None, adapters: bool = False) -> dict[str, float]:
    """Seconds of the parts of an iteration: a 7B policy, and a 7B PRM that learns (PRIME: reference, PRM, update).

    Args:
        gpus: that train and score; without `writers` they write, too.
        end: 0 the best values of the inputs, 1 the worst.
        writers: GPUs that only write.
        adapters: what trains is an adapter of rank 16, so that only it goes to the collectors.
    """
    size, separate, writers = _get("parameters", end), writers is not None, writers or gpus
    lengths = _lengths(end)
    tokens = float(lengths.sum() + PROMPTS * SAMPLES * PROMPT_TOKENS)
    held = memory(gpus, kind="language", adapters=adapters, writes_only=separate)
    at_once = responses_at_once(held)
    read = _get("bandwidth", end) * _get("read", end)
    reads = (2 * size / read, CACHED * (PROMPT_TOKENS + float(lengths.mean()) / 2) / read)
    longest = [int(n) for n in sorted(lengths)[writers - 1 :: writers]]  # of the GPU with the longest responses
    sent = _get("sent", end) * (size if not adapters else 40e6)
    return {
        "write": decode_seconds(longest, at_once, reads, 2 * size / _flops(1, end)),
        "score": 3 * 2 * size * tokens / _flops(gpus, end),  # policy, reference and PRM, once forwards
        "update": 2 * _update_seconds(tokens, gpus, end) * (0.75 if adapters else 1.0),  # policy and PRM
        "weights": _weights_seconds(sent, writers, end, separate=separate),
    }


def robots(
    gpus: int, end: int, *, cores: float | None = None, adapters: bool = False, separate: bool = False
) -> dict[str, float]:
    """Seconds of the parts of an iteration: 1,000 simulators play one episode each for a 7B VLA; a VLM scores it.

    Args:
        gpus: that act, score and train.
        end: 0 the best values of the inputs, 1 the worst.
        cores: for simulators; None: those of the nodes with the GPUs.
        adapters: only adapters are trained and sent.
        separate: so many GPUs act, and so many others learn.
    """
    size, read = _get("parameters", end), _get("bandwidth", end) * _get("read", end)
    cores = cores or _get("cores", end) * max(gpus // GPUS_OF_NODE, 1)
    a_step = 1 / _get("simulator", end) + PICTURES / CHUNK / _get("picture", end)  # of a core; pictures per decision
    decisions = EPISODE / CHUNK
    acted = max(2 * size * VISION * SIMULATORS / _flops(gpus, end), 2 * size / read)  # of one decision of all copies
    per_core = math.ceil(SIMULATORS / min(cores, SIMULATORS))
    simulated = finish_times([[EPISODE * a_step] * per_core], 1.0)[0]
    wrote = VLM_TOKENS * 2 * size / read * math.ceil(SIMULATORS / gpus / 256)
    return {
        "simulate": simulated,
        "act": decisions * acted,
        "score": 2 * size * VLM_READS * SIMULATORS / _flops(gpus, end) + wrote,
        "update": _update_seconds(SIMULATORS * decisions * VISION, gpus, end) * (0.75 if adapters else 1.0),
        "weights": _weights_seconds(_get("sent", end) * (40e6 if adapters else size), gpus, end, separate=separate),
    }


def overlapped(parts: dict[str, float], behind: Sequence[str]) -> float:
    """Seconds of an iteration where these parts run while the others do (`runner.max_staleness` 1)."""
    return max(sum(parts[name] for name in behind), sum(s for name, s in parts.items() if name not in behind))


def memory(gpus: int, *, kind: str, adapters: bool = False, writes_only: bool = False) -> dict[str, float]:
    """Bytes on each GPU, with everything on all of them.

    Keys and values are those of as many responses as a GPU has to write, or as there is room for, each as long as it
    may become.

    Args:
        gpus: how many.
        kind: `language` or `robots`.
        adapters: what is trained is small, so that a model has no moments and gradients of its size.
        writes_only: nothing is trained on these GPUs.
    """
    size, share = _get("parameters", 0), 4 if adapters else 16  # bytes of a parameter that is trained
    tokens = VISION * 4 if kind == "robots" else MOST
    kept = 2 * tokens * SHAPE["hidden_size"] * SHAPE["num_hidden_layers"]  # inputs of layers; the rest is recomputed
    found = {} if writes_only else {f"policy: {share} P / GPUs": share * size / gpus}
    if kind == "language" and not writes_only:
        found |= {f"PRM: {share} P / GPUs": share * size / gpus, "reference: 4 P / GPUs": 4 * size / gpus}
    elif kind == "robots":
        found |= {"VLM, frozen: 2 P": 2 * size}
    found["copy that acts: 4 P"] = 4 * size
    if kind == "language":
        response = CACHED * (PROMPT_TOKENS + MOST)
        found[WRITING] = response * min(responses_at_once(found), PROMPTS * SAMPLES / gpus)
    found[UPDATING] = kept + (0.0 if kind == "robots" else 4 * tokens * SHAPE["vocab_size"])
    return found


def responses_at_once(held: dict[str, float]) -> int:
    """Responses whose keys and values find room on a GPU beside what else it holds; 0.9 of its memory is used."""
    room = 0.9 * _get("memory", 0) - sum(size for name, size in held.items() if name not in (WRITING, UPDATING))
    return max(int(room / (CACHED * (PROMPT_TOKENS + MOST))), 1)


def together(parts: dict[str, float]) -> float:
    """Bytes of a GPU at its fullest: writing and updating take turns."""
    turns = [parts.get(name, 0.0) for name in (WRITING, UPDATING)]
    return sum(parts.values()) - min(turns)


# Tables.


def _range(values: Sequence[float]) -> str:
    low, high = sorted(values)
    return f"{_short(low)} to {_short(high)}" if _short(low) != _short(high) else _short(low)


def _short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}" if seconds >= 0.1 else f"{seconds:.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def _largest(parts: Sequence[dict[str, float]]) -> str:
    """The longest part at the best and at the worst end."""
    names = [max(one, key=lambda name: one[name]) for one in parts]
    return names[0] if len(set(names)) == 1 else " or ".join(dict.fromkeys(names))


def tables(measured: dict[str, Any]) -> str:
    """The tables of docs/scale.md.

    Raises:
        SystemExit: the simulation does not predict what was measured.
    """
    rows = check(measured)
    wrong = [row for row in rows if abs(row["error"]) > TOLERANCE]
    if wrong:
        sys.exit(f"the model misses measured runs by more than {TOLERANCE:.0%}, so nothing larger is shown: {wrong}")
    lines = ["### Check against measured runs", ""]
    lines += _table(
        ("collectors", "rounds", "measured, s", "predicted, s", "error"),
        [
            (f"{r['collectors']:.0f}", f"{r['rounds']:.0f}", f"{r['measured']:.2f}", f"{r['predicted']:.2f}",
             f"{r['error']:+.0%}")
            for r in rows
        ],
    )  # fmt: skip
    loads = [one["load"] for one in measured["rounds"]]
    lines += [
        f"Measured {measured['when'][:10]} on {measured['cores']} cores with a load of {min(loads):.0f} to "
        f"{max(loads):.0f} from other work.", "",
    ]  # fmt: skip
    for kind, function, title in (("language", language, "Language model"), ("robots", robots, "Robots")):
        lines += [f"### {title}: seconds of an iteration", ""]
        head = ("GPUs", *PARTS[kind], "broadcast", "one after another", "overlapped", "longest part", "measured")
        for adapters in (False, True):
            body = []
            for gpus in (8, 64, 512):
                ends = [function(gpus, end, adapters=adapters) for end in (0, 1)]
                behind = ("write",) if kind == "language" else ("simulate", "act")
                half = {"writers": gpus // 2} if kind == "language" else {"separate": True}
                halves = [function(gpus // 2, end, adapters=adapters, **half) for end in (0, 1)]
                body.append(
                    (
                        f"{gpus}", *(_range([one[name] for one in ends]) for name in PARTS[kind]),
                        _range([one["weights"] for one in halves]),
                        _range([sum(one.values()) for one in ends]),
                        _range([overlapped(one, behind) for one in halves]), _largest(ends), "",
                    )
                )  # fmt: skip
            lines += ["With adapters of rank 16:" if adapters else "All parameters trained:", "", *_table(head, body)]
    lines += ["### Robots: cores for simulators", ""]
    counts = (125, 250, 500, 1000)
    lines += _table(
        ("cores", "seconds of an episode of 1,000 simulators", "measured"),
        [(f"{n}", _range([robots(64, end, cores=n)["simulate"] for end in (0, 1)]), "") for n in counts],
    )
    lines += ["### Memory of each GPU, GB", ""]
    for kind in PARTS:
        names = list(memory(8, kind=kind))
        body = []
        for gpus in (8, 64, 512):
            parts = memory(gpus, kind=kind)
            body.append((f"{gpus}", *(_short(parts[n] / 1e9) for n in names), _short(together(parts) / 1e9), ""))
        lines += [f"{kind.capitalize()}:", "", *_table(("GPUs", *names, "together", "measured"), body)]
    lines += ["### Inputs", ""]
    lines += _table(
        ("input", "best", "worst", "unit", "kind", "origin"),
        [(n, f"{i.low:.4g}", f"{i.high:.4g}", i.unit, i.kind, i.source) for n, i in INPUTS.items()],
    )
    return "\n".join(lines)


def main() -> None:
    """Check, and print or write the tables."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--write", action="store_true")
    given = arguments.parse_args()
    found = tables(json.loads(MEASURED.read_text()))
    if not given.write:
        print(found)
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{found}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
