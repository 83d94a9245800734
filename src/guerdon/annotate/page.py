"""The files of the page: fixed texts without any data, which the server sends as they are.

for path, (content, media_type) in page_files().items(): ...
"""

from __future__ import annotations

from pathlib import Path

from guerdon.pages.formats import TEMPLATES
from guerdon.pages.html_page import TEXTS

STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".LICENSE": "text/plain"}
SHARED = (TEXTS, "style.css")  # with the other pages


def page_files() -> dict[str, tuple[bytes, str]]:
    """Content and media type of every file, by its path: `/`, `/static/annotate.js`, ..."""
    files = [*sorted(STATIC.iterdir()), *(TEMPLATES / name for name in SHARED)]
    found = {f"/static/{path.name}": (path.read_bytes(), f"{TYPES[path.suffix]}; charset=utf-8") for path in files}
    return {"/": found.pop("/static/index.html"), **found}
