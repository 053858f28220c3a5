"""Medians, and ratios of paired runs with their 95 % interval."""

import math

# Two-sided 95 % quantile of Student's t by degrees of freedom, from 1 on.
_T_975 = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
]


def t_975(degrees):
    """The quantile; above the table, the largest value of the next coarser row (never too small)."""
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    return 2.021 if degrees >= 40 else _T_975[-1]


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def ratio(pairs):
    """Geometric mean of a/b over pairs, and its 95 % interval (none for a single pair)."""
    logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]
    if not logs:
        return None
    mean = sum(logs) / len(logs)
    if len(logs) == 1:
        return {"ratio": math.exp(mean), "low": None, "high": None, "pairs": 1}
    variance = sum((value - mean) ** 2 for value in logs) / (len(logs) - 1)
    half = t_975(len(logs) - 1) * math.sqrt(variance / len(logs))
    return {
        "ratio": math.exp(mean),
        "low": math.exp(mean - half),
        "high": math.exp(mean + half),
        "pairs": len(logs),
    }


def table(head, rows):
    """Text columns: the first to the left, the others to the right."""
    cells = [head] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        parts = [row[0].ljust(widths[0])]
        parts += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
