"""How long a D asks the replay to hold back. Both formulas are the seed documents'; all results are milliseconds."""

from __future__ import annotations

DEPTH_THRESHOLD = 8
LONGEST_MS = 2000.0


def linear(transfer_queue: int) -> float:
    """Grows with the transfer queue, silent below a depth of eight."""
    return 0.0 if transfer_queue < DEPTH_THRESHOLD else min(LONGEST_MS, 100.0 * transfer_queue)


def composite(transfer_queue: int, retracted_queue: int, usage_after: float, *, overshoot_per_usage: float) -> float:
    """Retraction first, then memory, then the transfer queue.

    `usage_after` is the pool's usage (0 to 1) once the append is in. The seeds multiply an 'overshoot' by five without giving
    its unit; `overshoot_per_usage` is the number of overshoot units in a usage of 1 above 0.90, a setting marked as a guess.
    """
    if retracted_queue:
        return 1500.0
    if usage_after >= 0.90:
        return max(200.0, min(LONGEST_MS, (usage_after - 0.90) * overshoot_per_usage * 5.0))
    return linear(transfer_queue)
