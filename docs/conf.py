"""Settings of Sphinx, which builds the documentation site: `make docs`."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version

from docutils import nodes
from docutils.parsers.rst import Directive

project = "guerdon"
author = "the guerdon authors"
version = release = installed_version("guerdon")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
highlight_language = "text"  # of indented blocks: commands, layouts, output

myst_enable_extensions = ["attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 4

# Libraries that a part of guerdon imports at the top and that need not be installed to read about it.
autodoc_mock_imports = [
    "lerobot",
    "nemo_gym",
    "openenv",
    "openrlhf",
    "ray",
    "rlinf",
    "stable_baselines3",
    "trl",
    "verifiers",
    "verl",
    "vllm",
]
autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"

html_theme = "pydata_sphinx_theme"
html_title = "guerdon"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "logo": {"text": "guerdon"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "default",
}


class Help(Directive):
    """What a command of guerdon prints for `--help`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A block of text."""
        from typer.main import get_command

        from guerdon.cli import app

        verb, guerdon = self.arguments[0], get_command(app)
        settings = {"resilient_parsing": True, "terminal_width": 84}
        parent = guerdon.make_context("guerdon", [], **settings)
        command = guerdon.commands[verb]
        text = command.get_help(command.make_context(verb, [], parent=parent, **settings))
        block = nodes.literal_block(text, text)
        block["language"] = "text"
        return [block]


def literal_blocks(app, what, name, obj, options, lines):
    """An indented block of a module's docstring is code, as in Markdown."""
    if what != "module":
        return
    text = "\n".join(lines)
    text = re.sub(r"(?<!:)(:?)\n\n(?=    \S)", lambda m: "::\n\n" if m[1] else "\n\n::\n\n", text)
    lines[:] = text.split("\n")


def setup(app):
    """Called by Sphinx."""
    app.add_directive("guerdon-help", Help)
    app.connect("autodoc-process-docstring", literal_blocks)
