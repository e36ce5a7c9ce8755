"""Sphinx configuration of the documentation site. `make docs` builds it offline into build/docs/.

The pages are plain Markdown that a code host shows as well. What only the site has is made while it is built (`made.py`): the
navigation from the lists of docs/index.md, and what stands at a mark `<!-- made: NAME -->` of a page from the sources.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import made

project = "ComputerRL"
author = "The ComputerRL developers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["site", "results/data", "results/figures"]

myst_heading_anchors = 4
smartquotes = False
highlight_language = "text"
default_role = "code"  # Docstrings write code between single backticks.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False

html_theme = "furo"
html_title = "ComputerRL"
html_favicon = "../../launch/web/page/icon.svg"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}


def setup(app: Sphinx) -> None:
    """Complete each page's Markdown before it is parsed; show classes without the signatures of their constructors."""
    app.connect("source-read", lambda _, name, source: source.__setitem__(0, made.complete(source[0], name)))
    app.connect("autodoc-process-signature", lambda _, kind, *__: ("", "") if kind == "class" else None)
