"""A drawing as SVG. Colours are names of the report's style sheet, in the scheme that the reader's machine prefers."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from tailrace.pipeline.run.reporting.page import colors

_STYLE = """
svg { background: var(--card); }
text { font: 12px system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
.muted { fill: var(--muted); }
.title { font-size: 16px; font-weight: 620; }
.small { font-size: 11px; }
.right { text-anchor: end; }
.middle { text-anchor: middle; }
"""


class Svg:
    """A drawing that grows downwards. Lengths in pixels, from the top left.

    Args:
        width: of all.
        title: for those who cannot see it.
    """

    def __init__(self, width: float, title: str) -> None:
        self.width, self.title = width, title
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, color: str, *, opacity: float = 1.0, radius: float = 0
    ) -> None:
        """A filled rectangle. Without a radius its edges are crisp."""
        look = f' rx="{radius:g}"' if radius else ' shape-rendering="crispEdges"'
        faint = f' fill-opacity="{opacity:.2f}"' if opacity < 1 else ""
        self._parts.append(
            f'<rect x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" height="{_short(height)}" '
            f'fill="var(--{color})"{faint}{look}/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str, *, dash: str = "") -> None:
        """A thin line."""
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<line x1="{_short(x1)}" y1="{_short(y1)}" x2="{_short(x2)}" y2="{_short(y2)}" '
            f'stroke="var(--{color})" stroke-width="1"{dashes}/>'
        )

    def triangle(self, x: float, y: float, size: float, color: str, *, down: bool = False) -> None:
        """A small triangle around a point, with the edge of a mark."""
        tip, base = (size, -size) if down else (-size, size)
        corners = [(x - size, y + base * 0.8), (x + size, y + base * 0.8), (x, y + tip)]
        points = " ".join(f"{_short(at)},{_short(over)}" for at, over in corners)
        self._parts.append(
            f'<polygon points="{points}" fill="var(--{color})" stroke="var(--mark-edge)" stroke-width="1"/>'
        )

    def text(self, x: float, y: float, text: str, *classes: str) -> None:
        """A line of text, from its base line."""
        look = f' class="{" ".join(classes)}"' if classes else ""
        self._parts.append(f'<text x="{_short(x)}" y="{_short(y)}"{look}>{escape(text)}</text>')

    def draw(self, height: float) -> str:
        """All of it."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_short(self.width)} {_short(height)}" '
            f'width="{_short(self.width)}" height="{_short(height)}" role="img" aria-label={quoteattr(self.title)}>\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{colors()}{_STYLE}</style>\n"
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def _short(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
