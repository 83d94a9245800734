"""Models and configurations that grow without end: seconds and memory of a command until it refuses them.

Each row is a command in a process of its own, on a small sequence classifier that is changed in one place; the first
row is the same model as it is. Memory is the largest of the command and of the processes that it started so far.

    python benchmarks/growth.py
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from harness import machine_line, table
from transformers import LlamaConfig, LlamaForSequenceClassification

from guerdon.policies.language.tiny_text import byte_tokenizer

SAID = "{% for m in messages %}{{ m.content }}{% endfor %}"
LONG = SAID + "{% set long = messages[0].content if messages[0].content is string else '' %}"
TEMPLATES = {
    "a template with a loop in a loop": LONG + "{% for c in long %}{% for d in long %}{% endfor %}{% endfor %}",
    "a template that writes a text for each letter": LONG + "{% for c in long %}{{ long }}{% endfor %}",
    "a template that doubles a text": SAID
    + "{% set ns = namespace(x='xx') %}{% for m in messages %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "a template that multiplies a text": LONG + "{% set x = long * (long | length) %}",
}
TENFOLD = {"type": "Replace", "pattern": {"String": "1"}, "content": "1" * 10}


def changed(model: Path, name: str, file: str, **keys: Any) -> Path:
    """A copy of a model with other keys in one of its files."""
    folder = model.with_name(name)
    shutil.copytree(model, folder)
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | keys))
    return folder


def templated(model: Path, number: int, template: str) -> Path:
    """A copy of a model with another chat template."""
    folder = model.with_name(f"template{number}")
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def commands(work: Path) -> dict[str, list[str]]:
    """The words of each command, by what grows."""
    model, tokenizer = work / "model", byte_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id, **sizes)
    LlamaForSequenceClassification(config).save_pretrained(model)
    tokenizer.save_pretrained(model)
    models = {
        "nothing": model,
        "num_labels 1,000,000,000": changed(model, "labels", "config.json", num_labels=10**9),
        "a normalizer that multiplies": changed(
            model, "rules", "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [TENFOLD] * 12}
        ),
        **{name: templated(model, k, text) for k, (name, text) in enumerate(TEMPLATES.items())},
    }
    rows = work / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "1+1=?", "response": str(k)}) + "\n" for k in range(4)))
    pickled = work / "pickled"
    shutil.copytree(model, pickled)
    (pickled / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1).expand(10**11)}, pickled / "pytorch_model.bin")
    study = work / "study.yaml"
    grown = {"v0": ["x"] * 10} | {f"v{k}": [f"${{env.kwargs.v{k - 1}}}"] * 10 for k in range(1, 10)}
    study.write_text(json.dumps({"env": {"type": "gymnasium", "task": "CartPole-v1", "kwargs": grown}}))
    scored = {
        name: ["score", str(rows), "--model", str(folder), "--output", str(work / f"{folder.name}.jsonl")]
        for name, folder in models.items()
    }
    return {
        **scored,
        "a tensor with stride 0 and 100,000,000,000 elements": ["import", str(pickled), str(work / "imported")],
        "references of references": ["run", str(study), "--dry-run"],
    }


def measured(words: list[str]) -> list[str]:
    """Seconds, megabytes so far, status and last line of a command."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "guerdon", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    said = (done.stderr or done.stdout).strip().splitlines()[-1]
    return [f"{seconds:.1f}", f"{memory:.0f}", str(done.returncode), said.partition(": ")[2][-90:]]


def main() -> None:
    """Measure and print the table."""
    print(machine_line(("transformers",)) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        rows = [[name, *measured(words)] for name, words in commands(Path(folder)).items()]
    print(table(("what grows", "s", "MB so far", "status", "end of the line"), rows))


if __name__ == "__main__":
    main()
