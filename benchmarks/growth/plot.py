"""Lines on logarithmic axes as SVG: measured ones whole, limits dashed."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

WIDTH, HEIGHT, MARGIN = 560, 360, 56
COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#8e5aa8", "#b08900", "#44546a", "#d1495b")


@dataclass(frozen=True, slots=True)
class Line:
    """Points (x, y), both positive."""

    name: str
    points: Sequence[tuple[float, float]]
    limits: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axes:
    title: str
    x: str
    y: str


def svg(axes: Axes, lines: Sequence[Line]) -> str:
    """One picture, as a whole document."""
    everything = [point for line in lines for point in (*line.points, *line.limits)]
    scale = _Scale.over(everything)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="18" text-anchor="middle" font-size="13">{axes.title}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">{axes.x}</text>',
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{axes.y}</text>',
        *scale.grid(),
    ]
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(_path(scale, line.points, colour, ""))
        parts.append(_path(scale, line.limits, colour, ' stroke-dasharray="3 3" opacity="0.7"'))
        x, y = scale.at(*line.points[-1])
        parts.append(f'<text x="{x + 4:.1f}" y="{y + 4:.1f}" fill="{colour}">{line.name}</text>')
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Scale:
    left: float
    right: float
    bottom: float
    top: float

    @classmethod
    def over(cls, points: Sequence[tuple[float, float]]) -> "_Scale":
        xs, ys = [log10(x) for x, _ in points], [log10(y) for _, y in points]
        return cls(min(xs), max(xs), floor(min(ys)), ceil(max(ys)))

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - self.left) / max(self.right - self.left, 1e-9)
        up = (log10(y) - self.bottom) / max(self.top - self.bottom, 1e-9)
        return MARGIN + across * (WIDTH - 2 * MARGIN - 30), HEIGHT - MARGIN + 10 - up * (HEIGHT - MARGIN - 40)

    def grid(self) -> list[str]:
        lines = []
        for power in range(int(self.bottom), int(self.top) + 1):
            x, y = self.at(10**self.left, 10.0**power)
            end = self.at(10**self.right, 10.0**power)[0]
            lines.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            lines.append(f'<text x="{x - 4:.1f}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
        for power in range(ceil(self.left / log10(2) - 1e-9), floor(self.right / log10(2) + 1e-9) + 1):
            x, y = self.at(2.0**power, 10**self.bottom)
            lines.append(f'<text x="{x:.1f}" y="{y + 14:.1f}" text-anchor="middle">{2.0**power:g}</text>')
        return lines


def _path(scale: _Scale, points: Sequence[tuple[float, float]], colour: str, style: str) -> str:
    steps = " ".join(f"{x:.1f},{y:.1f}" for x, y in (scale.at(*point) for point in points))
    return f'<polyline points="{steps}" fill="none" stroke="{colour}" stroke-width="1.6"{style}/>'
