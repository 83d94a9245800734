"""A page: one HTML file with its style and script inside, which loads nothing.

Jinja2 with autoescape puts the parts together; the page's content policy allows no network and no script but its own.

    page = render("report.html.j2", context, TEMPLATES, ("report.js",))
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from guerdon.pages import formats as fmt

TEXTS = "texts.js"  # how pages show texts of data


def render(template: str, context: Mapping[str, Any], own: Path, scripts: Sequence[str]) -> str:
    """The text of a page.

    Args:
        template: extends `base.html.j2`.
        context: what it shows.
        own: folder of the template, its script and, where it has one, `own.css`, which is added to the shared style.
        scripts: the only ones that the page runs, in order, after the shared one by which the page of work that goes on
            reloads itself: `texts.js` is shared, all others are its own.
    """
    places = [fmt.TEMPLATES if name == TEXTS else own for name in scripts]
    paths = [fmt.TEMPLATES / "live.js", *(place / name for place, name in zip(places, scripts, strict=True))]
    code = "".join(path.read_text(encoding="utf-8") for path in paths)
    styles = [
        path.read_text(encoding="utf-8") for path in (fmt.TEMPLATES / "style.css", own / "own.css") if path.exists()
    ]
    page = _environment(own).get_template(template)
    return page.render(
        **context,
        style=Markup("".join(styles)),  # noqa: S704 - our own files
        script=Markup(code),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode("ascii"),
    )


@cache
def _environment(own: Path) -> jinja2.Environment:
    """The templates of a folder and the shared ones, which are compiled once in a process."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([own, fmt.TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({name: filter_ for name, filter_ in vars(fmt).items() if callable(filter_)})
    return environment
