"""Takes the screenshots of the documentation with headless Chromium, from the report of `guerdon quickstart`.

python docs/make_images.py                              runs the quickstart first
python docs/make_images.py runs/quickstart/report.html  uses a report that exists

Prints the path of every picture.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

IMAGES = Path(__file__).with_name("images")
PARTS = {  # file: the sections of the report that it shows, and the width and most height of the picture
    "report.png": (("conclusion", "curves", "numbers"), 1100, 2200),
    "cards.png": (("models",), 1100, 1600),
    "episodes.png": (("videos",), 1100, 1100),
}
SCREENS = {  # file: the width and height of the first screen that it shows, and whether it is dark
    "quickstart-1280-light.png": (1280, 1300, False),
    "quickstart-1280-dark.png": (1280, 1300, True),
    "quickstart-420-light.png": (420, 1900, False),
    "quickstart-420-dark.png": (420, 1900, True),
}


def main() -> None:
    """Write every picture of `PARTS` and of `SCREENS`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=Path, help="a report.html; without it the quickstart is run")
    report = parser.parse_args().report
    with tempfile.TemporaryDirectory() as folder:
        if report is None:
            subprocess.run([sys.executable, "-m", "guerdon", "quickstart", "--folder", folder], check=True)
            report = Path(folder) / "report.html"
        IMAGES.mkdir(exist_ok=True)
        for name, (sections, width, height) in PARTS.items():
            photograph(report.read_text(encoding="utf-8"), sections, (width, height), IMAGES / name, Path(folder))
        for name, (width, height, is_dark) in SCREENS.items():
            photograph_screen(report, (width, height), IMAGES / name, Path(folder), is_dark=is_dark)


def photograph(page: str, sections: tuple[str, ...], size: tuple[int, int], target: Path, folder: Path) -> None:
    """Write a picture of some sections of a report, cut at the end of what they show."""
    shown = "".join(f":not(#{name})" for name in sections)
    header = "" if "conclusion" in sections else "header, nav { display: none }"
    style = f"<style>section[id]{shown} {{ display: none }} {header}</style></head>"
    (folder / "part.html").write_text(page.replace("</head>", style, 1), encoding="utf-8")
    width, height = size
    image = screenshot(folder / "part.html", size, folder)
    ground = Image.new("RGB", image.size, image.getpixel((2, image.height - 2)))
    box = ImageChops.difference(image, ground).getbbox() or (0, 0, width, height)
    save(image.crop((0, 0, width, min(height, box[3] + 24))), target)


def photograph_screen(report: Path, size: tuple[int, int], target: Path, folder: Path, *, is_dark: bool) -> None:
    """Write a picture of the top of a report; in a frame, since windows of the browser have a least width."""
    width, height = size
    frame = f'<iframe src="{report.resolve().as_uri()}" width="{width}" height="{height}" style="border: 0"></iframe>'
    (folder / "screen.html").write_text(f"<!doctype html><body style='margin: 0'>{frame}", encoding="utf-8")
    image = screenshot(folder / "screen.html", (max(width, 600), height), folder, is_dark=is_dark)
    save(image.crop((0, 0, width, height)), target)


def screenshot(page: Path, size: tuple[int, int], folder: Path, *, is_dark: bool = False) -> Image.Image:
    """What a browser shows of a page in a window of some size."""
    browser = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit("no Chromium: apt-get install chromium")
    picture = folder / "part.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size[0]},{size[1]}"]
    options.append(f"--blink-settings=preferredColorScheme={0 if is_dark else 1}")
    where = [f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}", page.as_uri()]
    subprocess.run([browser, *options, *where], check=True, capture_output=True)
    return Image.open(picture).convert("RGB")


def save(image: Image.Image, target: Path) -> None:
    """Write a picture with few colours, so that it is small."""
    image.quantize(64).save(target, optimize=True)
    print(f"wrote {target} ({image.width} x {image.height})")


if __name__ == "__main__":
    main()
