"""Installs the wheel with one extra in an environment of its own, and runs what the extra is for.

    make test-wheel EXTRA=video
    python tests/wheel_extra.py video --folder .venv-extra

It prints the row of the table in docs/releasing.md: the extra, the day, the size of its environment, and what ran.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
VIDEO = (
    "import numpy as np, guerdon\n"
    "from guerdon.episodes.video import count_frames\n"
    "with guerdon.EpisodeWriter('data', fps=10, camera='top', video=True) as writer:\n"
    "    writer.add(guerdon.Episode(id='a', task='t', frames=np.zeros((3, 16, 16, 3), np.uint8)))\n"
    "assert next(guerdon.read_episodes('data')).frames.shape == (3, 16, 16, 3)\n"
)
RUN = ("-m", "guerdon", "run")
SMALL = ("runner.total_steps=32", "runner.eval_every=32", "runner.eval_episodes=1", "algorithm.rollout_steps=16")
WORKS = {
    "train": (*RUN, "CartPole-v1", *SMALL),
    "gymnasium": (*RUN, "HalfCheetah-v5", *SMALL, "env.max_episode_steps=10", "runner.film_frames=2"),
    "metaworld": (*RUN, "--dry-run", str(ROOT / "studies" / "demo.yaml")),
    "games": (*RUN, "LunarLander-v3", *SMALL, "env.max_episode_steps=10"),
    "video": ("-c", VIDEO),
    "text": ("-m", "guerdon", "quickstart", "--text", "--dry-run"),
    "serve": ("-m", "guerdon", "serve", "--dry-run", "--custom-backend", "json:loads"),
    "vision": ("-c", "from guerdon.compute.packaged import efficientnet_lite0; efficientnet_lite0()"),
    "sb3": ("-c", "import guerdon.integrations.sb3"),
    "trl": ("-c", "import guerdon.integrations.trl"),
    "verifiers": ("-c", "import guerdon.integrations.verifiers"),
    "openenv": ("-c", "import guerdon.integrations.openenv"),
    "ray": ("-m", "guerdon", "run", "CartPole-v1", "engine=ray", *SMALL),
    "docs": ("-m", "sphinx", "--version"),
}
"""What is run for an extra; of others the versions of the packages that it names are read."""


def requirements(extra: str) -> list[str]:
    """The packages that an extra names, without versions; of guerdon's other extras theirs."""
    every = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    if extra not in every:
        raise SystemExit(f"no extra {extra}; there are {', '.join(every)}")
    return every[extra]


def size_of(folder: Path) -> int:
    """Megabytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) >> 20


def _shown(words: tuple[str, ...] | None) -> str:
    """What ran, for the table."""
    if words is None:
        return "its packages are there"
    if words[0] == "-m":
        dry = ["--dry-run"] if "--dry-run" in words[4:] else []
        return f"`{' '.join([*words[1:4], *dry])}`"
    return "a data set written and read" if words[1] is VIDEO else f"`{words[1]}`"


def main() -> None:
    """Build, install, run, and print the row."""
    parser = argparse.ArgumentParser(description="The wheel with one extra.")
    parser.add_argument("extra", help="of pyproject.toml")
    parser.add_argument("--folder", type=Path, default=Path(".venv-extra"), help="of the environment; replaced")
    given = parser.parse_args()
    named = requirements(given.extra)
    folder = given.folder.resolve()
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    shutil.rmtree(folder, ignore_errors=True)

    def run(*words: str | Path, cwd: Path = ROOT) -> str:
        done = subprocess.run([*map(str, words)], cwd=cwd, env=clean, text=True, capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, words))[:300]}: status {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout

    for name in ("build", "env"):
        run(sys.executable, "-m", "venv", folder / name)
    pip = ("-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt")
    run(folder / "build" / "bin" / "python", *pip, "build")
    run(folder / "build" / "bin" / "python", "-m", "build", "--wheel", "--outdir", folder / "dist")
    (wheel,) = (folder / "dist").glob("*.whl")
    python = folder / "env" / "bin" / "python"
    run(python, *pip, f"{wheel}[{given.extra}]")
    place = folder / "work"
    place.mkdir()
    words = WORKS.get(given.extra)
    shown = _shown(words)
    if words is None:
        names = [one.split("[")[0].split(">")[0].split("<")[0] for one in named if not one.startswith("guerdon")]
        words = ("-c", f"import importlib.metadata as m; print([m.version(n) for n in {names}])")
    run(python, *words, cwd=place)
    run(python, "-m", "guerdon", "--help", cwd=place)
    print(f"| `{given.extra}` | {datetime.date.today()} | {size_of(folder / 'env'):,} MB | {shown} |")


if __name__ == "__main__":
    main()
