"""Settings of Sphinx for `make docs`. The site loads nothing from other hosts."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for tools, and for the package if it is not installed

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

# Code hosts show these pages, too. They do not know {directives}, so the pages use few.
myst_heading_anchors = 4  # so that page.md#text-of-a-heading works
myst_enable_extensions: list[str] = []
# Fences without a language are terminal output or drawings.
highlight_language = "none"

autodoc_member_order = "bysource"
napoleon_use_ivar = True  # an attribute called bytes must not become the target of links to the type
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True  # show dtype=torch.float32 as in the source
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
smartquotes = False  # readers copy "full" and --flag
default_role = "code"  # docstrings use `name`

# Names of other projects: links would need inventories from their sites.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|fractions|numpy|np|os|pathlib|torch|types|typing)\..*"),
    ("py:.*", r"(Path|Any|Tensor|Dataset|Protocol|Callable|Iterator|Mapping|Sequence|InitVar|NDArray|ArrayLike|ABC)"),
]

linkcheck_anchors = False  # pages that scripts render have none in their HTML
linkcheck_timeout = 20
