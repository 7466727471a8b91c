"""Bar charts below each other in one SVG."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from html import escape

# A colour of Okabe and Ito, which colour-blind readers can distinguish from grey.
OURS_COLOUR, OTHERS_COLOUR = "#0072b2", "#8c8c8c"

WIDTH, LEFT, RIGHT = 640, 130, 70
ROW, TITLE = 22, 30
FONT = 'font-family="system-ui, sans-serif" font-size="12"'


def draw_bars(
    title: str, panels: Mapping[str, Mapping[str, float]], ours: Collection[str]
) -> str:
    """Return a panel per title with a bar per name; the longest bar of a panel fills it."""
    height = 40 + sum(TITLE + ROW * len(bars) + 10 for bars in panels.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    y = 40
    for name, bars in panels.items():
        parts.append(f'<text x="12" y="{y + 20}" font-weight="600">{escape(name)}</text>')
        y += TITLE
        longest = max(bars.values()) or 1.0
        for label, value in bars.items():
            colour = OURS_COLOUR if label in ours else OTHERS_COLOUR
            width = value / longest * (WIDTH - LEFT - RIGHT)
            parts += [
                f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>',
                f'<rect x="{LEFT}" y="{y + 3}" width="{width:.1f}" height="16" fill="{colour}"/>',
                f'<text x="{LEFT + width + 6:.1f}" y="{y + 15}">{value:g}</text>',
            ]
            y += ROW
        y += 10
    return "\n".join([*parts, "</svg>", ""])
