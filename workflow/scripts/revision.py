"""After an edit of code that decides replays: do results change?

    python workflow/scripts/revision.py status           which engines' code has drifted
    python workflow/scripts/revision.py keep ENGINE...   same results: stored runs stay valid
    python workflow/scripts/revision.py bump ENGINE...   other results: every run of the engine is new
"""

from __future__ import annotations

import json
import sys

from apd_replay.replay.identity import DECIDING_CODE, REVISIONS, code_digest


def main(arguments: list[str]) -> int:
    action, engines = (arguments[0], arguments[1:]) if arguments else ("", [])
    if action not in ("status", "keep", "bump") or not set(engines) <= set(DECIDING_CODE) or (action != "status" and not engines):
        print(f"{__doc__}\nENGINE: {', '.join(DECIDING_CODE)}", file=sys.stderr)
        return 2
    locked = json.loads(REVISIONS.read_text(encoding="utf-8")) if REVISIONS.exists() else {}
    for engine in engines or DECIDING_CODE:
        own = locked.setdefault(engine, {"revision": 0, "code": ""})
        drifted = own["code"] != code_digest(engine)
        if action == "bump" and drifted:
            own["revision"] += 1
        own["code"] = code_digest(engine) if action != "status" else own["code"]
        print(f"{engine}: revision {own['revision']}" + (", code has drifted" if drifted and action == "status" else ""))
    if action != "status":
        REVISIONS.write_text(json.dumps(locked, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
