"""The drawings of the explaining pages, worked out rather than sketched: python docs/drawings.py writes docs/assets/.

Ink is the colour of the text around a drawing, so that it can be read on light and on dark ground.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path

ORANGE, BLUE, GREEN = "#e0701c", "#2f8fd0", "#1f9e78"
STYLE = ".drawing{color:#24292f}@media(prefers-color-scheme:dark){.drawing{color:#d0d7de}}"
Point = tuple[float, float]


def svg(width: int, height: int, label: str, *parts: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" viewBox="0 0 {width} {height}" role="img"'
    look = 'font-family="sans-serif" font-size="14" fill="none" stroke-linecap="round"'
    return f'{head} aria-label="{label}" {look}>\n<style>{STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"


def curve(points: Iterable[Point], colour: str = "currentColor", width: float = 2.5, more: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" stroke="{colour}" stroke-width="{width}" {more}/>'


def arrow(a: Point, b: Point, colour: str = "currentColor", width: float = 2.5, more: str = "") -> str:
    way = math.atan2(b[1] - a[1], b[0] - a[0])
    size = 4 + 2 * width
    wings = [(b[0] - size * math.cos(way + t), b[1] - size * math.sin(way + t)) for t in (-0.4, 0.4)]
    return curve([a, b], colour, width, more) + curve([wings[0], b, wings[1]], colour, width)


def dot(at: Point, colour: str, full: bool = True) -> str:
    fill = colour if full else "none"
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="5" stroke="{colour}" stroke-width="2" fill="{fill}"/>'


def say(text: str, x: float, y: float, colour: str = "currentColor", anchor: str = "start", size: int = 14) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{text}</text>'


def box(x: float, y: float, w: float, h: float, fill: str = "none", line: str = "currentColor", see: float = 1) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" fill-opacity="{see:g}" stroke="{line}"/>'
    )


def climb() -> str:
    """A sharp and a flat minimum of one loss: the same length, another rise."""

    def height(x: float) -> float:
        wells = 140 * math.exp(-(((x - 170) / 26) ** 2)) + 140 * math.exp(-(((x - 460) / 95) ** 2))
        return 60 + 0.0008 * (x - 330) ** 2 - wells

    def place(x: float) -> Point:
        return x, 110 - height(x)

    parts = [curve(place(20 + 2 * i) for i in range(301)), say("loss", 24, 20)]
    for low, colour, name in ((170.0, ORANGE, "sharp"), (452.0, BLUE, "flat")):
        home, up = place(low), place(low + 28)
        parts.append(curve([home, (up[0], home[1])], colour, 2))
        parts.append(curve([(up[0], home[1]), up], colour, 2, 'stroke-dasharray="4 4"'))
        parts += [dot(home, colour), dot(up, colour, full=False)]
        parts += [
            say("ρ", home[0] + 14, home[1] + 18, colour, "middle"),
            say(name, home[0], home[1] + 40, colour, "middle"),
        ]
        parts.append(say("rise", up[0] + 9, (home[1] + up[1]) / 2 + 5, colour))
    return svg(640, 260, "The same step rises more in a sharp minimum than in a flat one", *parts)


def sam_step() -> str:
    """One step of SAM on a quadratic bowl, with the true gradients of that bowl."""
    steep, gentle, centre = 5.0, 1.0, (400.0, 130.0)

    def uphill(p: Point, length: float, start: Point | None = None) -> Point:
        """From `start`, so far along the gradient at p."""
        g = gentle * (p[0] - centre[0]), steep * (p[1] - centre[1])
        x, y = start or p
        return x + length * g[0] / math.hypot(*g), y + length * g[1] / math.hypot(*g)

    parts = []
    for level in (0.25, 1, 2.25, 4, 6.25):
        a, b = 125 * math.sqrt(level / gentle), 125 * math.sqrt(level / steep)
        size = f'cx="{centre[0]:g}" cy="{centre[1]:g}" rx="{a:.1f}" ry="{b:.1f}"'
        parts.append(f'<ellipse {size} stroke="currentColor" stroke-opacity="0.25"/>')
    home = (190.0, 112.0)
    up = uphill(home, 62)
    parts += [arrow(home, up, ORANGE), arrow(home, uphill(home, -120), "currentColor", 2, 'stroke-dasharray="2 5"')]
    parts.append(arrow(up, uphill(up, -120), BLUE))
    parts.append(arrow(home, uphill(up, -120, start=home), BLUE, 2.5, 'stroke-dasharray="7 5"'))
    parts += [dot(home, "currentColor"), dot(up, ORANGE, full=False), dot(centre, GREEN)]
    parts += [say("θ", home[0] - 4, home[1] + 24), say("θ + ρ g/‖g‖", up[0] - 8, up[1] - 12, ORANGE, "middle")]
    parts.append(say("minimum", centre[0] + 12, centre[1] + 5, GREEN))
    told = [("orange: climb along the gradient", ORANGE), ("blue: the gradient up there, downhill", BLUE)]
    told += [("dashed: the same, taken from θ: SAM's step", BLUE), ("dotted: SGD's step", "currentColor")]
    parts += [say(text, 60 + 330 * (i % 2), 292 + 24 * (i // 2), colour) for i, (text, colour) in enumerate(told)]
    return svg(760, 330, "A SAM step: climb, take the gradient there, descend with it from home", *parts)


def zero_order() -> str:
    """Random directions with the sign chosen uphill, by their true angle with the gradient, in k dimensions."""
    draw = random.Random(0)
    parts = []
    for i, k in enumerate((2, 100, 10_000)):
        middle, ground, reach = 120 + 210 * i, 170.0, 92.0
        for _ in range(36):
            first = draw.gauss(0, 1)
            rest = math.sqrt(sum(draw.gauss(0, 1) ** 2 for _ in range(k - 1)))
            angle = math.atan2(abs(first), rest * draw.choice((-1, 1)))
            tip = (middle + reach * math.cos(angle), ground - reach * math.sin(angle))
            parts.append(curve([(middle, ground), tip], ORANGE, 1.2, 'stroke-opacity="0.7"'))
        parts.append(arrow((middle, ground), (middle, ground - reach - 18), BLUE, 3))
        parts.append(say("gradient", middle + 8, ground - reach - 10, BLUE))
        cosine = math.sqrt(2 / math.pi / k) if k > 2 else 2 / math.pi
        parts += [say(f"k = {k:,}".replace(",", " "), middle, 204, anchor="middle", size=16)]
        parts.append(say(f"mean cosine {cosine:.2g}", middle, 226, ORANGE, "middle"))
    return svg(660, 240, "In many dimensions a random direction is almost at right angles to the gradient", *parts)


def probes() -> str:
    """What two forward passes see: the loss on both sides along u, and no more."""

    def place(x: float) -> Point:
        return x, 40 + 0.0016 * (x - 260) ** 2 + 12 * math.sin(x / 70)

    def flipped(x: float) -> Point:
        return x, 210 - place(x)[1]

    low, home, high = 180.0, 300.0, 420.0
    parts = [curve(flipped(40 + 4 * i) for i in range(131)), dot(flipped(home), "currentColor")]
    for x, name, colour in ((low, "L(θ − δu)", "currentColor"), (high, "L(θ + δu)", ORANGE)):
        parts.append(curve([(x, 196), flipped(x)], colour, 1.5, 'stroke-dasharray="3 4"'))
        parts += [
            dot(flipped(x), colour, full=False),
            say(name, x - 12, flipped(x)[1] - 10, colour, "end" if x == high else "middle"),
        ]
    parts += [arrow((home, 196), (high - 4, 196), ORANGE), arrow((home, 196), (low + 4, 196), "currentColor", 1.5)]
    parts += [say("θ", home, 218, anchor="middle"), say("higher: climb here", high, 218, ORANGE, "middle")]
    parts.append(say("the loss along one random direction u", 44, 24))
    return svg(640, 230, "Two forward passes along u: the side with the higher loss is the one to climb to", *parts)


def filters() -> str:
    """Two filters that compute the same, and what a perturbation of fixed or of relative length does to each."""
    parts = []
    for i, (title, radii) in enumerate(
        (("one radius for all", (34.0, 34.0)), ("in units of each filter", (20.0, 60.0)))
    ):
        left = 20 + 330 * i
        parts.append(say(title, left + 140, 24, anchor="middle", size=16))
        for length, radius, colour, x in ((60.0, radii[0], ORANGE, left), (180.0, radii[1], BLUE, left + 95)):
            way = math.radians(50)
            home = (x + 10, 250.0)
            tip = (home[0] + length * math.cos(way), home[1] - length * math.sin(way))
            spread = math.asin(radius / length)
            reach = math.sqrt(length**2 - radius**2)
            for side in (-1, 1):
                end = (home[0] + reach * math.cos(way + side * spread), home[1] - reach * math.sin(way + side * spread))
                parts.append(curve([home, end], colour, 1, 'stroke-dasharray="3 4"'))
            where = f'cx="{tip[0]:.1f}" cy="{tip[1]:.1f}" r="{radius:g}"'
            parts.append(f'<circle {where} fill="{colour}" fill-opacity="0.15" stroke="{colour}"/>')
            parts.append(arrow(home, tip, colour))
            name = "short filter" if length < 100 else "long filter"
            turn = f"{name}: turns by up to {math.degrees(spread):.0f}°"
            parts.append(say(turn, left + 10, 282 if length < 100 else 304, colour))
    return svg(
        670, 316, "One radius turns short filters further than long ones; a relative one turns all alike", *parts
    )


def layout() -> str:
    """How pictures lie in memory: one pixel of many pictures is one vector."""
    parts = [say("a batch of eight pictures", 20, 24)]
    for i in range(8):
        x, y = 20 + 20 * i, 44 + 10 * i
        parts += [box(x, y, 44, 44, "currentColor", see=0.08), box(x + 2, y + 30, 11, 11, ORANGE, ORANGE)]
    parts.append(arrow((228, 110), (262, 110)))
    parts.append(say("one vector: the same pixel of all eight", 290, 78))
    for i in range(8):
        parts += [box(290 + 36 * i, 92, 36, 36, ORANGE, see=0.85), say(f"{i + 1}", 308 + 36 * i, 115, "#fff", "middle")]
    parts.append(say("An active weight is read once and multiplies eight pictures at once, wherever it lies.", 20, 224))
    parts.append(say("A pruned weight is not in the list of weights: nothing is read, nothing is multiplied.", 20, 248))
    for i in range(12):
        kept = i in (2, 7, 10)
        parts.append(box(290 + 24 * i, 152, 24, 24, BLUE if kept else "none", see=0.9))
    parts.append(say("weights of a filter: three are active", 586, 169, anchor="start", size=12))
    return svg(790, 262, "One weight multiplies the same pixel of eight pictures at once", *parts)


def kernel_walk() -> str:
    """What one active weight does: read a tile of vectors, and add it to eight sums."""
    parts = [
        say("input, one vector per cell", 20, 24),
        say("kernel", 345, 24),
        say("eight sums, in registers", 500, 24),
    ]
    for row in range(4):
        for column in range(6):
            read = row in (1, 2) and 1 <= column <= 4
            parts.append(box(20 + 42 * column, 44 + 28 * row, 42, 28, BLUE if read else "none", see=0.75))
    for row in range(3):
        for column in range(3):
            active = (row, column) == (1, 1)
            parts.append(box(330 + 30 * column, 55 + 30 * row, 30, 30, ORANGE if active else "none", see=0.9))
    parts.append(say("w", 375, 105, "#fff", "middle"))
    parts += [box(500 + 42 * (i % 4), 72 + 28 * (i // 4), 42, 28, GREEN, see=0.75) for i in range(8)]
    parts += [arrow((284, 100), (318, 100)), arrow((432, 100), (488, 100))]
    told = [
        ("The place of a weight in the kernel", "says which 2 x 4 cells it reads."),
        ("Pruned weights are", "not in the index."),
    ]
    told.append(("sum += w x cell: one broadcast,", "eight multiply-adds, one store at the end."))
    for x, lines in zip((20, 330, 500), told, strict=True):
        parts += [say(line, x, 184 + 18 * i, size=13) for i, line in enumerate(lines)]
    boxes = [("as the input is read:", "batch norm, add, ReLU"), ("walk over active weights,", "channel by channel")]
    boxes.append(("before the sums are stored:", "add, ReLU, sums for batch norm"))
    for x, lines in zip((20, 275, 530), boxes, strict=True):
        parts += [box(x, 232, 220, 54, "currentColor", see=0.06)]
        parts += [say(line, x + 12, 254 + 20 * i, size=13) for i, line in enumerate(lines)]
    parts += [arrow((244, 259), (268, 259)), arrow((499, 259), (523, 259))]
    return svg(770, 300, "One active weight reads a tile of the input and adds to eight sums in registers", *parts)


ALL = (climb, sam_step, zero_order, probes, filters, layout, kernel_walk)
DRAWINGS = {drawing.__name__.replace("_", "-"): drawing for drawing in ALL}

if __name__ == "__main__":
    for name, drawing in DRAWINGS.items():
        (Path(__file__).parent / "assets" / f"{name}.svg").write_text(drawing())
