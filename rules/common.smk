"""What all rules share: the plan, and the Python that jobs run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from apd_replay.errors import ApdError
from code_digest import code
from planning import Plan, run_jobs_with_this_python

run_jobs_with_this_python()

try:
    PLAN = Plan(Path("config/config.yaml"), config)
except ApdError as error:
    sys.exit(f"apd: {error}")

RESULTS = str(PLAN.results)
REPORTED = PLAN.reported


onstart:
    PLAN.retire()


wildcard_constraints:
    trace=r"[^/]+",
    experiment=r"[^/]+",
    replicate=r"\d+",
