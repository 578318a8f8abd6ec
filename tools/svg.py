"""Write small SVG images for the documentation, which are readable in a light and in a dark window."""

from __future__ import annotations

from xml.sax.saxutils import escape

# On a code host, an image follows the color scheme of the browser, not that of the page. So it has its own background.
STYLE = """
.back { fill: #ffffff } .text { fill: #24292f } .soft { fill: #57606a } .ours { fill: #d9480f } .other { fill: #8c959f }
text { font-family: system-ui, sans-serif; font-size: 15px } .head { font-weight: 600 } .small { font-size: 13px }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre }
@media (prefers-color-scheme: dark) {
.back { fill: #161b22 } .text { fill: #e6edf3 } .soft { fill: #9da7b3 } .ours { fill: #ff7a3d } .other { fill: #6e7681 }
}
"""


def document(width: int, height: int, title: str, body: list[str], style: str = "") -> str:
    """Return an SVG document with a background; `title` is what screen readers read."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}{style}</style>",
        f'<rect class="back" width="{width}" height="{height}" rx="8"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def label(x: float, y: float, words: str, classes: str = "text", **attributes: str) -> str:
    """Return a line of text that begins at (x, y), with more attributes such as text_anchor="end"."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:g}" y="{y:g}" class="{classes}"{more}>{escape(words)}</text>'
