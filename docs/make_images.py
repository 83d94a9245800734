"""Takes the screenshots of the documentation with headless Chromium: a report, and the pages of `guerdon annotate`.

python docs/make_images.py                              runs the quickstart first
python docs/make_images.py runs/quickstart/report.html  uses a report that exists
python docs/make_images.py --annotate                   the pages of guerdon annotate alone

Prints the path of every picture.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
import chromium  # the driver of the tests

IMAGES = Path(__file__).with_name("images")
PARTS = {  # file: the sections of the report that it shows, and the width and most height of the picture
    "report.png": (("conclusion", "curves", "numbers"), 1100, 2200),
    "cards.png": (("models",), 1100, 1600),
    "episodes.png": (("videos",), 1100, 1100),
}
PROMPT = r"A train goes $60$ km in $\frac{3}{4}$ of an hour. How many km does it go in $2$ hours at the same speed?"
RIGHT = r"""Its speed is
$$\frac{60}{3/4} = 60 \cdot \frac{4}{3} = 80$$
km an hour, so in $2$ hours it goes $80 \cdot 2 = \boxed{160}$ km."""
WRONG = r"""In $\frac{3}{4}$ of an hour it goes $60$ km, so in an hour $60 \cdot \frac{3}{4} = 45$ km,
and in two $\boxed{90}$ km."""
STEPS = [
    r"The speed is the way divided by the time: $v = \frac{s}{t}$.",
    r"So $v = \frac{60}{3/4} = 60 \cdot \frac{3}{4} = 45$ km an hour.",
    r"In $2$ hours it goes $45 \cdot 2 = \boxed{90}$ km.",
]
ROWS = {  # of which the page of each kind of item shows the first
    "responses": {"prompt": PROMPT, "response": RIGHT},
    "pairs": {"prompt": PROMPT, "response_1": RIGHT, "response_2": WRONG},
    "steps": {"problem": PROMPT, "steps": STEPS, "label": 1},
}
PRESSED = {"steps": [("ArrowDown", 40)] * 2, "episodes": [("ArrowRight", 39)] * 34 + [("m", 0)]}  # before the picture
STUDY = """
env: {type: metaworld, task: window-close, frame_size: 240}
collect: {save_dir: FOLDER, episodes: 2, mixture: [{type: expert}]}
"""


def main() -> None:
    """Write every picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=Path, help="a report.html; without it the quickstart is run")
    parser.add_argument("--annotate", action="store_true", help="only the pages of guerdon annotate")
    given = parser.parse_args()
    report = given.report
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        annotate_pages(Path(folder))
        if given.annotate:
            return
        if report is None:
            subprocess.run([sys.executable, "-m", "guerdon", "quickstart", "--folder", folder], check=True)
            report = Path(folder) / "report.html"
        for name, (sections, width, height) in PARTS.items():
            photograph(report.read_text(encoding="utf-8"), sections, (width, height), IMAGES / name, Path(folder))


def annotate_pages(folder: Path) -> None:
    """Write a picture of the page of `guerdon annotate` for each kind of item."""
    guerdon = [sys.executable, "-m", "guerdon"]
    for kind, row in ROWS.items():
        rows = [row, {**row, "id": "2"}]
        (folder / f"{kind}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
    (folder / "study.yaml").write_text(STUDY.replace("FOLDER", str(folder / "episodes")), encoding="utf-8")
    subprocess.run([*guerdon, "collect", str(folder / "study.yaml")], check=True)
    for kind in ("episodes", *ROWS):
        data = folder / kind if kind == "episodes" else folder / f"{kind}.jsonl"
        command = [*guerdon, "annotate", str(data), "-o", str(folder / f"{kind}.labels"), "--as", kind, "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            address = next(line.split()[-1] for line in server.stderr if "http://" in line)
            with chromium.Page(folder / f"{kind}.profile", 1100, 800) as tab:
                tab.size(1100, 700)
                tab.open(address)
                tab.wait("document.documentElement.dataset.item && jobs.length === 0 && !isBusy")
                for key, code in PRESSED.get(kind, ()):
                    tab.key(key, code)
                    tab.wait("current.kind !== 'episodes' || current.shown === current.at")
                tab.pixels("body").quantize(64).save(IMAGES / f"annotate_{kind}.png", optimize=True)
            server.terminate()


def photograph(page: str, sections: tuple[str, ...], size: tuple[int, int], target: Path, folder: Path) -> None:
    """Write a picture of some sections of a report, cut at the end of what they show."""
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("no Chromium: apt-get install chromium")
    shown = "".join(f":not(#{name})" for name in sections)
    header = "" if "conclusion" in sections else "header, nav { display: none }"
    style = f"<style>section[id]{shown} {{ display: none }} {header}</style></head>"
    (folder / "part.html").write_text(page.replace("</head>", style, 1), encoding="utf-8")
    picture = folder / "part.png"
    width, height = size
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    where = [f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", (folder / "part.html").as_uri()]
    subprocess.run([browser, *options, *where], check=True, capture_output=True)
    image = Image.open(picture).convert("RGB")
    ground = Image.new("RGB", image.size, image.getpixel((2, image.height - 2)))
    box = ImageChops.difference(image, ground).getbbox() or (0, 0, width, height)
    cut = image.crop((0, 0, width, min(height, box[3] + 24)))
    cut.quantize(64).save(target, optimize=True)
    print(f"wrote {target} ({cut.width} x {cut.height})")


if __name__ == "__main__":
    main()
