"""Line charts as SVG, without packages: a page with several panels that share a legend."""

import math
from html import escape

_COLOURS = ("#1f6fb4", "#d1542b", "#3b8f4a", "#7d52a0")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _LEGEND = 420, 320, 66, 18, 36, 48, 30


def _figure(value):
    return f"{value:g}" if value < 1e4 else f"{value / 1000:g}k"


class _Axis:
    """From values to places, linear from zero or by decades."""

    def __init__(self, values, low, high, decades):
        self.low, self.high, self.decades = low, high, decades
        if decades:
            positive = [value for value in values if value > 0] or [1]
            self.least = 10 ** math.floor(math.log10(min(positive)))
            self.most = 10 ** math.ceil(math.log10(max(positive) * 0.99))
            count = round(math.log10(self.most / self.least))
            self.ticks = [self.least * 10 ** number for number in range(count + 1)]
        else:
            largest = max(values) or 1
            step = 10 ** math.floor(math.log10(largest))
            step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if largest / (step * part) <= 6)
            self.least, self.most = 0, math.ceil(largest / step) * step
            self.ticks = [step * number for number in range(round(self.most / step) + 1)]

    def at(self, value):
        if self.decades:
            share = math.log(max(value, self.least) / self.least) / math.log(self.most / self.least)
        else:
            share = (value - self.least) / (self.most - self.least)
        return self.low + share * (self.high - self.low)


def _text(x, y, text, anchor="middle", size=11, rotate=None):
    turn = f' transform="rotate({rotate} {x:.1f} {y:.1f})"' if rotate else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{turn}>{escape(text)}</text>'


def _panel(left, panel):
    """`panel`: title, x and y (their names), series {name: [(x, y), ...]}, decades (of y), labels of points."""
    points = [point for series in panel["series"].values() for point in series]
    across = _Axis([x for x, _ in points], left + _LEFT, left + _WIDTH - _RIGHT, False)
    up = _Axis([y for _, y in points], _HEIGHT - _BOTTOM, _TOP, panel.get("decades", False))
    parts = [_text(left + _WIDTH / 2, 20, panel["title"], size=13),
             _text(left + (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, panel["x"]),
             _text(left + 16, (_TOP + _HEIGHT - _BOTTOM) / 2, panel["y"], rotate=-90)]
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(f'<path d="M{across.low} {y:.1f}H{across.high}" stroke="#ddd"/>')
        parts.append(_text(across.low - 6, y + 4, _figure(tick), "end"))
    for tick in across.ticks:
        x = across.at(tick)
        parts.append(f'<path d="M{x:.1f} {up.low}v4" stroke="#555"/>')
        parts.append(_text(x, up.low + 16, _figure(tick)))
    parts.append(f'<path d="M{across.low} {up.high}V{up.low}H{across.high}" stroke="#555" fill="none"/>')
    for colour, (name, series) in zip(_COLOURS, panel["series"].items()):
        places = [(across.at(x), up.at(y)) for x, y in series]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        labels = panel.get("labels", {}).get(name, [""] * len(places))
        for (x, y), label in zip(places, labels):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
            parts.append(_text(x, y - 8, label, size=10))
    return parts


def svg(panels):
    """All panels beside each other; a name has the same colour in each, as they have the same series."""
    width, height = _WIDTH * len(panels), _HEIGHT + _LEGEND
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
             f'height="{height}" font-family="sans-serif" fill="#222">',
             f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for number, panel in enumerate(panels):
        parts += _panel(number * _WIDTH, panel)
    for number, (colour, name) in enumerate(zip(_COLOURS, panels[0]["series"])):
        x, y = _LEFT + number * 240, _HEIGHT + 12
        parts.append(f'<path d="M{x} {y}h24" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(x + 30, y + 4, name, "start"))
    return "\n".join([*parts, "</svg>", ""])
