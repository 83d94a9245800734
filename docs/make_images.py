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


def main() -> None:
    """Write every picture of `PARTS`."""
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
