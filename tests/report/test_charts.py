"""Every chart is a well-formed picture, also without data, with one point, and with what cannot be drawn."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import pytest

from apd_replay.report import charts, svg, timelines
from apd_replay.report.charts import Dot, Heading
from apd_replay.report.timelines import Panel, Strip

HEADING = Heading("<title> & \x00 ]]>", 'engine "sim" · N = 3')
INF, NAN = math.inf, math.nan
CHARTS: dict[str, Callable[[], str]] = {
    "bars": lambda: charts.bars(HEADING, ["a", "b<"], {"x": [[1, 2, 3], [None]], "y": [[INF], [0]]}, "rooms", "worker"),
    "bars without data": lambda: charts.bars(HEADING, [], {}, "rooms"),
    "bars of many groups": lambda: charts.bars(HEADING, [f"prefill-0>decode-{k}" for k in range(200)], {"x": [[1.0]] * 200}, "rooms"),
    "lying bars": lambda: charts.lying_bars(HEADING, ["a>b<", "c"], {"x": [[1, 2, None], [INF]], "y": [[0], []]}, "rooms"),
    "dots": lambda: charts.dots(
        HEADING,
        [Dot("<a>", 1.5, 1, 2, [1, None, INF]), Dot("b", INF), Dot("c", None), Dot("d", NAN), Dot("e", -1.0, -2.0, 0.0)],
        "s",
        log=True,
        reference=1.0,
    ),
    "dots without data": lambda: charts.dots(HEADING, [], "s", log=True),
    "dots of one value": lambda: charts.dots(HEADING, [Dot("a", 0.0)], "s"),
    "ecdf": lambda: charts.ecdf(HEADING, {"<x>": [0.0, 1.0, 5.0], "y": [2.0]}, "s", counts={"y": 1}),
    "ecdf of zeros": lambda: charts.ecdf(HEADING, {"x": [0.0, 0.0]}, "s"),
    "ecdf without data": lambda: charts.ecdf(HEADING, {}, "s"),
    "strips": lambda: timelines.strips(
        HEADING,
        [Strip("<s>", [(0, 1, "direct")], [(1, "error")], "75 %"), Strip("t", [])],
        {"direct": svg.BLUE},
        {"error": (svg.RED, 1.0)},
        "s",
    ),
    "strips without data": lambda: timelines.strips(HEADING, [], {}, {}, "s"),
    "usage": lambda: timelines.usage(
        HEADING, [Panel("decode-0", [(0, 0.1, 0.9)], {"trim": [1.0]}), Panel("<d>", [], {})], {"trim": svg.GREEN}, "s"
    ),
    "matrix": lambda: charts.matrix(HEADING, ["prefill-0"], ["decode-0", "<d>"], {("prefill-0", "decode-0"): 3.0}, "from", "to"),
    "matrix of zeros": lambda: charts.matrix(HEADING, ["p"], ["d"], {("p", "d"): 0.0}, "from", "to"),
    "scatter": lambda: charts.scatter(HEADING, [(1000.0, 0.5, 0.2, 0.7)], "tokens", "rate"),
    "scatter without data": lambda: charts.scatter(HEADING, [], "tokens", "rate"),
}


@pytest.mark.parametrize("name", CHARTS)
def test_chart_is_well_formed_and_stays_inside_its_frame(name: str) -> None:
    text = CHARTS[name]()
    root = ElementTree.fromstring(text)
    width, height = (float(root.attrib[k]) for k in ("width", "height"))
    for element in root.iter():
        for key, value in element.attrib.items():
            if key in ("x", "cx", "x1", "x2"):
                assert -1 <= float(value) <= width + 1, (element.tag, key, value)
            if key in ("y", "cy", "y1", "y2"):
                assert -1 <= float(value) <= height + 1, (element.tag, key, value)
            if key in ("width", "height", "r"):
                assert float(value) >= 0
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<title>.*?</title>|<text.*?</text>", "", text))


def test_title_says_what_is_shown_and_subtitle_by_whom() -> None:
    texts = [e.text for e in ElementTree.fromstring(CHARTS["bars"]()).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[:2] == ["<title> & \\u0000 ]]>", 'engine "sim" · N = 3']


def test_equal_pixels_for_equal_ratios_on_a_log_scale() -> None:
    s = svg.scale([0.1, 10.0], 0.0, 100.0, log=True)
    assert s(1.0) - s(0.1) == pytest.approx(s(10.0) - s(1.0))


def test_a_linear_scale_starts_at_zero_and_holds_infinity_at_its_end() -> None:
    s = svg.scale([5.0, 10.0, None, INF], 0.0, 100.0)
    assert s.low == 0.0
    assert s(INF) == s.end == 100.0
    assert s(0.0) == 0.0


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 62043.0), (-3.0, 3.0), (0.0, 1e-6), (0.97, 1.0)])
def test_ticks_are_few_and_round(low: float, high: float) -> None:
    ticks = svg.Scale(low, high, 0.0, 1.0).ticks(5)
    assert 3 <= len(ticks) <= 12
    assert all(low <= t <= high for t in ticks)


def test_a_bar_is_as_high_as_its_mean_and_every_replicate_has_its_dot() -> None:
    root = ElementTree.fromstring(charts.bars(HEADING, ["a", "b"], {"x": [[10.0, 20.0, 30.0], [40.0]]}, "rooms"))
    bars = [float(e.attrib["height"]) for e in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars[1] == pytest.approx(2 * bars[0], rel=0.01)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}circle"))) == 3
