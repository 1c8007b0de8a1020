"""What stands in front of a message: stamp, rank tags, and the wrappings of Ray, Docker, a terminal or a quoted mail.

A line of SGLang is `[YYYY-MM-DD HH:MM:SS[.mmm][ TAG...]] message`. Tags are a set, their order changed between versions. A stamp may
also stand in the middle of a physical line, where two writers share one stream: such a line is cut into pieces.
"""

from __future__ import annotations

import json
import re
from calendar import timegm
from dataclasses import dataclass
from functools import lru_cache

_TAG = r"(?:(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+|encode_\w+(?:\[\d+\])?)"
STAMP = re.compile(rf"\[(?:(\d{{4}}-\d\d-\d\d)[ T])?(\d\d:\d\d:\d\d)(?:[.,](\d{{1,6}}))?((?: {_TAG})*)\](?: |$)")
_TAGS_ONLY = re.compile(rf"\[({_TAG}(?: {_TAG})*)\] ")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_RAY = re.compile(r"\((\w[^()]* pid=\d+(?:, ip=[^()]*)?)\) ?$")
_DOCKER_TIME = re.compile(r"(?:[\w.-]+ +\| )?(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ?)?$")
_GLOG_START = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ ")


@dataclass(slots=True)
class Piece:
    """A message with what stood in front of it. `stamp`: the line's own time as if its clock were UTC, epoch seconds."""

    message: str
    stamp: float | None = None
    tags: str = ""
    lead: str = ""  # other text in front of the stamp
    stamped: bool = False


def strip_terminal(text: str) -> str:
    """Without colours and cursor moves."""
    return _ANSI.sub("", text)


def unwrap(text: str) -> str:
    """The line inside Docker's JSON log driver, or inside a quoted mail."""
    if text.startswith('{"log":"'):
        try:
            text = str(json.loads(text)["log"]).rstrip("\n")
        except (ValueError, KeyError, RecursionError):
            return text
    return text[2:] if text.startswith("> ") else text


def plain_piece(text: str) -> Piece | None:
    """The one message of a line that starts with its stamp and holds nothing else; None: see `pieces`."""
    if not text.startswith("[") or (match := STAMP.match(text)) is None or text.find("[2", match.end()) >= 0 or ".cpp:" in text:
        return None
    return Piece(text[match.end() :], epoch(match[1], match[2], match[3]), match[4].strip(), "", True)


def pieces(text: str) -> list[Piece]:
    """The messages of one physical line, colours and wrappings already off."""
    if text.startswith("["):
        if (match := STAMP.match(text)) is not None:
            return _split(text, match, "")
        if (tags := _TAGS_ONLY.match(text)) is not None:
            return [Piece(text[tags.end() :], tags=tags[1], stamped=True)]
    if "[2" in text and (match := STAMP.search(text)) is not None and match[1] and _outside_quotes(text[: match.start()]):
        return _split(text, match, text[: match.start()])
    return _split_glog(Piece(text))


def _split(text: str, match: re.Match[str], lead: str) -> list[Piece]:
    out = []
    if lead and not _is_wrapping(lead):
        out.append(Piece(lead.rstrip(), lead="\0"))  # the caller decides whether it is a line of its own or only a lead
    rest = text[match.end() :]
    piece = Piece(rest, epoch(match[1], match[2], match[3]), match[4].strip(), _ray(lead), True)
    following = STAMP.search(rest) if "[2" in rest else None
    if following is not None and following[1] and _outside_quotes(rest[: following.start()]):
        piece.message = rest[: following.start()]
        return [*out, *_split_glog(piece), *_split(rest, following, "")]
    return [*out, *_split_glog(piece)]


def _split_glog(piece: Piece) -> list[Piece]:
    """A glog line that was written onto the end of another one."""
    text = piece.message
    if ".cpp:" not in text or (match := _GLOG_START.search(text)) is None or match.start() == 0 or not _outside_quotes(text[: match.start()]):
        return [piece]
    piece.message = text[: match.start()]
    return [piece, *_split_glog(Piece(text[match.start() :]))]


def _outside_quotes(before: str) -> bool:
    """A stamp inside quotes or braces is somebody's text, not a line."""
    return "{" not in before and "'" not in before and before.count('"') % 2 == 0 and not before.startswith(("Receive: ", "Finish: "))


def _is_wrapping(lead: str) -> bool:
    return bool(_RAY.fullmatch(lead.strip()) or _DOCKER_TIME.fullmatch(lead))


def _ray(lead: str) -> str:
    match = _RAY.fullmatch(lead.strip())
    return match[1] if match else ""


@lru_cache(maxsize=4096)  # many lines share a second
def epoch(date: str | None, time: str, fraction: str | None) -> float | None:
    """Epoch seconds of a stamp as if its clock were UTC; None without a date or for a time that does not exist."""
    if date is None or (midnight := _midnight(date)) is None:
        return None
    hour, minute, second = int(time[:2]), int(time[3:5]), int(time[6:8])
    if hour > 23 or minute > 59 or second > 60:
        return None
    return midnight + hour * 3600 + minute * 60 + second + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


@lru_cache(maxsize=64)
def _midnight(date: str) -> float | None:
    year, month, day = int(date[:4]), int(date[5:7]), int(date[8:10])
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= 31):
        return None
    return float(timegm((year, month, day, 0, 0, 0)))


def rank(tags: str, name: str) -> int | None:
    """The number of one rank tag, `TP` of `DP1 TP3`: 3."""
    for tag in tags.split():
        digits = tag[len(name) :]
        if tag.startswith(name) and digits.isdecimal() and len(digits) < 10:
            return int(digits)
    return None
