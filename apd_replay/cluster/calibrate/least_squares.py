"""Non-negative coefficients that predict measurements with the least relative error. A handful of columns: plain Python is enough."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

Matrix = Sequence[Sequence[float]]


def solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss with pivoting; None where the matrix is singular."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for column in range(n):
        pivot = max(range(column, n), key=lambda r: abs(rows[r][column]))
        if abs(rows[pivot][column]) < 1e-12:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for r in range(n):
            if r != column:
                factor = rows[r][column] / rows[column][column]
                rows[r] = [a - factor * b for a, b in zip(rows[r], rows[column], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def relative(features: Matrix, measured: Sequence[float]) -> list[float]:
    """Coefficients c >= 0 that minimise the sum of ((features . c) / measured - 1)^2.

    Of all sets of columns whose plain solution is non-negative the best is taken: exact for the few columns here, and a
    coefficient that would be negative becomes 0 and lets the others adjust.
    """
    columns = len(features[0])
    scaled = [[value / y for value in row] for row, y in zip(features, measured, strict=True)]
    norms = [sum(row[c] ** 2 for row in scaled) ** 0.5 or 1.0 for c in range(columns)]
    scaled = [[value / norm for value, norm in zip(row, norms, strict=True)] for row in scaled]
    best, best_error = [0.0] * columns, float("inf")
    for size in range(columns, 0, -1):
        for chosen in combinations(range(columns), size):
            normal = [[sum(row[a] * row[b] for row in scaled) for b in chosen] for a in chosen]
            found = solve(normal, [sum(row[a] for row in scaled) for a in chosen])
            if found is None or min(found) < 0:
                continue
            error = sum((sum(row[c] * x for c, x in zip(chosen, found, strict=True)) - 1) ** 2 for row in scaled)
            if error < best_error:
                best, best_error = [0.0] * columns, error
                for c, x in zip(chosen, found, strict=True):
                    best[c] = x / norms[c]
    return best


def residuals(features: Matrix, measured: Sequence[float], coefficients: Sequence[float]) -> list[float]:
    """predicted / measured - 1 of each row."""
    return [sum(f * c for f, c in zip(row, coefficients, strict=True)) / y - 1 for row, y in zip(features, measured, strict=True)]
