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
RUBRIC = """
[[criteria]]
name = "answers"
text = "The response answers the question that was asked."
weight = 2.0
choices = ["no", "partly", "yes"]

[[criteria]]
name = "steps"
text = "Each step of the calculation is right."

[[criteria]]
name = "invents"
text = "The response uses a number that is neither given nor calculated."
weight = -1.0
"""
PAGES = ("episodes", *ROWS, "rubric")  # the last one: responses by a rubric
PRESSED = {"steps": [("ArrowDown", 40)] * 2, "episodes": [("ArrowRight", 39)] * 34 + [("m", 0)]}  # before the picture
PRESSED["rubric"] = [("3", 0)]
STUDY = """
env: {type: metaworld, task: window-close, frame_size: 240}
collect: {save_dir: FOLDER, episodes: 2, mixture: [{type: expert}]}
"""


SCREENS = {  # file: the width and height of the first screen that it shows, and whether it is dark
    "quickstart-1280-light.png": (1280, 1300, False),
    "quickstart-1280-dark.png": (1280, 1300, True),
    "quickstart-420-light.png": (420, 1900, False),
    "quickstart-420-dark.png": (420, 1900, True),
}


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
        for name, (width, height, is_dark) in SCREENS.items():
            photograph_screen(report, (width, height), IMAGES / name, Path(folder), is_dark=is_dark)


def annotate_pages(folder: Path) -> None:
    """Write a picture of the page of `guerdon annotate` for each kind of item."""
    guerdon = [sys.executable, "-m", "guerdon"]
    for kind, row in ROWS.items():
        rows = [row, {**row, "id": "2"}]
        (folder / f"{kind}.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows), encoding="utf-8")
    (folder / "study.yaml").write_text(STUDY.replace("FOLDER", str(folder / "episodes")), encoding="utf-8")
    subprocess.run([*guerdon, "collect", str(folder / "study.yaml")], check=True)
    (folder / "rubric.toml").write_text(RUBRIC, encoding="utf-8")
    for kind in PAGES:
        of_rubric = kind == "rubric"
        items = "responses" if of_rubric else kind
        data = folder / kind if kind == "episodes" else folder / f"{items}.jsonl"
        command = [*guerdon, "annotate", str(data), "-o", str(folder / f"{kind}.labels"), "--as", items, "--port", "0"]
        command += ["--rubric", str(folder / "rubric.toml")] if of_rubric else []
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
    advice = "#advice, #advice + * { display: none }"  # so that the curves are in the picture
    style = f"<style>section[id]{shown} {{ display: none }} {header} {advice}</style></head>"
    (folder / "part.html").write_text(page.replace("</head>", style, 1), encoding="utf-8")
    width, height = size
    image = screenshot((folder / "part.html").as_uri(), size, folder)
    ground = Image.new("RGB", image.size, image.getpixel((2, image.height - 2)))
    box = ImageChops.difference(image, ground).getbbox() or (0, 0, width, height)
    save(image.crop((0, 0, width, min(height, box[3] + 24))), target)


def photograph_screen(report: Path, size: tuple[int, int], target: Path, folder: Path, *, is_dark: bool) -> None:
    """Write a picture of the top of a report; in a frame, since windows of the browser have a least width."""
    width, height = size
    frame = f'<iframe src="{report.resolve().as_uri()}" width="{width}" height="{height}" style="border: 0"></iframe>'
    (folder / "screen.html").write_text(f"<!doctype html><body style='margin: 0'>{frame}", encoding="utf-8")
    image = screenshot((folder / "screen.html").as_uri(), (max(width, 600), height), folder, is_dark=is_dark)
    save(image.crop((0, 0, width, height)), target)


def screenshot(address: str, size: tuple[int, int], folder: Path, *, is_dark: bool = False) -> Image.Image:
    """What a browser shows of a page in a window of some size."""
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("no Chromium: apt-get install chromium")
    picture = folder / "part.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size[0]},{size[1]}"]
    options += [f"--blink-settings=preferredColorScheme={0 if is_dark else 1}", "--virtual-time-budget=3000"]
    where = [f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", address]
    subprocess.run([browser, *options, *where], check=True, capture_output=True)
    return Image.open(picture).convert("RGB")


def save(image: Image.Image, target: Path) -> None:
    """Write a picture with few colours, so that it is small."""
    image.quantize(64).save(target, optimize=True)
    print(f"wrote {target} ({image.width} x {image.height})")


if __name__ == "__main__":
    main()
