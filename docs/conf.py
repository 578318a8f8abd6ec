"""How Sphinx makes a site of these pages: `make docs`. Nothing of it is asked for from another place."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for tools, and the package where it is not installed

from decodeonce import __version__

project = "decodeonce"
author = "The decodeonce authors"
copyright = f"{author}, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_inline_tabs", "tools.site"]
root_doc = "index"
exclude_patterns = ["_static"]

html_theme = "furo"
html_title = "decodeonce"
html_static_path: list[str] = []
html_show_sphinx = False
html_copy_source = False
html_use_index = html_domain_indices = False  # the search finds names
html_theme_options = {"navigation_with_keys": True}

# The pages are read on code hosts, too: nothing but what those show, and {directives} in few places.
myst_heading_anchors = 4  # sources.md#what-is-never-read leads to the heading of those words
myst_enable_extensions: list[str] = []
# A fence without a language is what a terminal shows, or a drawing.
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True  # as they are written: dtype=torch.float32
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
smartquotes = False  # "full" and --flag are to be copied
default_role = "code"  # docstrings say `name`

# Names of other projects: there is no link without asking their sites for an inventory.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|fractions|numpy|np|os|pathlib|torch|types|typing)\..*"),
    ("py:.*", r"(Path|Any|Tensor|Dataset|Protocol|Callable|Iterator|Mapping|Sequence|InitVar|NDArray|ArrayLike|ABC)"),
]

linkcheck_anchors = False  # of pages that are made by scripts none is found
linkcheck_timeout = 20
