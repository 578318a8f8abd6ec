"""Settings of Sphinx for `make docs`. The site loads nothing from other hosts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for tools, and for the package if it is not installed

from sphinx.application import Sphinx

from decodeonce import __version__

project = "decodeonce"
author = "The decodeonce authors"
copyright = f"{author}, Apache-2.0"
release = version = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
extensions += ["myst_parser", "sphinx_inline_tabs", "tools.site"]
root_doc = "index"
exclude_patterns = ["_static"]

html_theme = "furo"
html_title = "decodeonce"
html_static_path = ["_static"]
html_css_files, html_js_files = ["site.css"], ["copy.js"]
html_search_scorer = str(Path(__file__).with_name("_static") / "scorer.js")
html_logo = html_favicon = "images/logo.svg"
myst_html_meta = {
    "description": "Decode the JPEGs of a dataset once, and train PyTorch models from the decoded arrays."
}
html_show_sphinx = False
html_copy_source = False
html_use_index = html_domain_indices = False  # the search finds names
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#c03d0b", "color-brand-content": "#b1380a"},
    "dark_css_variables": {"color-brand-primary": "#ff7a3d", "color-brand-content": "#ff8f5a"},
}

# Code hosts show these pages, too. They do not know {directives}, so the pages use few.
myst_heading_anchors = 4  # so that page.md#text-of-a-heading works
myst_enable_extensions: list[str] = []
# Fences without a language are commands. Output and drawings are fences of text.
highlight_language = "bash"

autodoc_member_order = "bysource"
autosummary_generate = False  # the tables link to entries on the same page
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
    ("py:class", r"decodeonce\.prep\.listing\.Listing"),  # no page documents it, because it is internal
]

linkcheck_anchors = False  # pages that scripts render have none in their HTML
linkcheck_timeout = 20

# The full name of each name that has an entry in the reference.
DOCUMENTED: dict[str, str] = {}
for page in Path(__file__).parent.glob("reference/python*.md"):
    text = page.read_text(encoding="utf-8")
    for kind, name in re.findall(r"^\.\. (currentmodule|auto\w+):: ([\w.]+)", text, re.MULTILINE):
        if kind == "currentmodule":
            module = name
        else:
            DOCUMENTED[name] = f"{module}.{name}"


def link_names(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn `Loader` in docstrings into a link, except in its own entry. Words such as `work` stay as they are."""

    def link(quoted: re.Match[str]) -> str:
        target = DOCUMENTED.get(quoted[2])
        own = f"{name}.".startswith(f"{target}.")
        return f":py:obj:`{quoted[2]} <{target}>`" if target and not own else quoted[0]

    lines[:] = [re.sub(r"(?<![:`\w])(`{1,2})(\w*[A-Z_]\w*)\1(?!`)", link, line) for line in lines]


def setup(app: Sphinx) -> None:
    """Connect the handler. Sphinx calls this function."""
    app.connect("autodoc-process-docstring", link_names)
