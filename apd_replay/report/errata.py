"""Corrections of the seed report, printed beside the figures they touch.

The constants are the seed report's own, as it printed them; each correction is computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass

KVC_MEAN_S, DP_MEAN_S = 3.30, 1.43
KVC_TTFT_S, DP_TTFT_S = 1.95, 0.123
FALLBACK_MEAN_S, DIRECT_MEAN_S, RUN_1_MEAN_S = 3.5, 0.5, 3.50
ERRORS, REQUESTS = (372, 912, 396), 4449
RUN_1_FAILED_ROOMS, RUN_1_REJECTIONS = 369, 361
RUN_2_TTFT_P50_S, DP_TTFT_P50_S = 0.071, 0.093


@dataclass(frozen=True)
class Erratum:
    claims: tuple[str, ...]
    text: str


ERRATA = (
    Erratum(("headline",), f"The seed report says that KVC's mean latency is +110 % over DP's. From its own averages, {KVC_MEAN_S:.2f} s and {DP_MEAN_S:.2f} s, it is {KVC_MEAN_S / DP_MEAN_S * 100 - 100:+.0f} %."),
    Erratum(("headline",), f"It says 17x for mean TTFT. From its own averages, {KVC_TTFT_S:.2f} s and {DP_TTFT_S:.3f} s, it is {KVC_TTFT_S / DP_TTFT_S:.1f}x."),
    Erratum(("headline",), f"'KVC loses everywhere' is not so for TTFT P50 of its run 2: {RUN_2_TTFT_P50_S:.3f} s against DP's {DP_TTFT_P50_S:.3f} s."),
    Erratum(("headline", "s2"), f"It gives 9.7 % errors; that counts a 9-error run of another configuration. Over its three runs it is {sum(ERRORS) / (len(ERRORS) * REQUESTS) * 100:.1f} %."),
    Erratum(("s1",), f"It says that fallback is 6x slower than direct. From its own {FALLBACK_MEAN_S} s and {DIRECT_MEAN_S} s it is {FALLBACK_MEAN_S / DIRECT_MEAN_S:.0f}x; "
            f"and {FALLBACK_MEAN_S} s for the fallback mean cannot stand beside {RUN_1_MEAN_S:.2f} s for the mean of all requests of the run, direct ones included."),
    Erratum(("s3", "s8"), f"It reads all {RUN_1_FAILED_ROOMS} transfer errors of run 1 as 32 s timeouts. {RUN_1_REJECTIONS} of them ({RUN_1_REJECTIONS / RUN_1_FAILED_ROOMS * 100:.0f} %) carry 'Decode instance could be dead': instant rejections."),
    Erratum(("s3",), "Its 'errors begin at 44.8 % of the run' is taken from an older debug report, not from these runs."),
    Erratum(("s5",), "It quotes `_select_decode_index` for the choice of P; by its name that chooses a D."),
)


def of(claim: str) -> list[str]:
    return [e.text for e in ERRATA if claim in e.claims]
