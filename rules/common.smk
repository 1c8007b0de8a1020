"""What all rules share: the plan, and the Python that jobs run."""

import os
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


def forecast(name):
    """How long a replay takes, or None; ends Snakemake with one line where its job could not end in time."""
    given = workflow.resource_settings.overwrite_resources.get("replay", {})
    limit = given.get("runtime")
    if limit is not None and limit.is_evaluable():  # such as `60 * attempt`
        limit = limit.evaluate(
            None, attempt=1, threads=1, input=[], rulename="replay", async_run=None
        )
    try:
        return PLAN.forecast(name, getattr(limit, "value", limit))
    except ApdError as error:
        print(f"apd: {error}", file=sys.stderr, flush=True)
        if workflow.dryrun:
            # nothing is locked, and Snakemake would hide an exception in its own
            os._exit(1)
        sys.exit(1)


def gpus(name):
    """GPUs of a replay. Snakemake asks for them while it prints a dry run: the moment to print the forecast, too."""
    if workflow.dryrun and (said := forecast(name)):
        print(said, file=sys.stderr)
    return PLAN.gpus(name)


onstart:
    for job in workflow.dag.needrun_jobs():
        if job.rule.name == "replay":
            forecast(job.wildcards.run)
    PLAN.retire()


wildcard_constraints:
    trace=r"[^/]+",
    experiment=r"[^/]+",
    replicate=r"\d+",
