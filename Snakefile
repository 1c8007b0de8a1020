"""From a trace to verdicts: `snakemake --cores 8 report`.

    traces -> replay -> parse -> warehouse -> claims -> report

Only what is stale runs again (docs/workflow.md). The same steps by hand: `apd --help`.
"""

from snakemake.utils import min_version

min_version("9.27")


container: "docker://python:3.11-slim"


include: "rules/common.smk"
include: "rules/trace.smk"
include: "rules/replay.smk"
include: "rules/parse.smk"
include: "rules/warehouse.smk"
include: "rules/claims.smk"
include: "rules/report.smk"
include: "rules/remedies.smk"


localrules:
    report,
    claims,
    traces,
    smoke,
    remedies,
    remedies_report,
    trace,
    parse,
    warehouse,
    decide,
    write_report,


rule report:
    """Everything: the report of the configured matrix and of all runs that were imported."""
    default_target: True
    input:
        PAGES,
        VERDICTS,
        PLAN.manifests(REPORTED),
        PLAN.tables(REPORTED),


rule claims:
    """Evidence and verdicts, without pages."""
    input:
        VERDICTS,
        PLAN.manifests(REPORTED),
        PLAN.tables(REPORTED),


rule traces:
    """The traces as tables."""
    input:
        expand(f"{RESULTS}/traces/{{trace}}.parquet", trace=PLAN.traces),


rule smoke:
    """The smoke list replayed and parsed; `snakemake report --config matrix=smoke` is its report."""
    input:
        lambda _: PLAN.manifests(PLAN.listed("smoke")),
        lambda _: PLAN.tables(PLAN.listed("smoke")),


rule remedies:
    """The remedies alone, in pairs and together, against KVC and DP-CA: results/remedies/report/report.html (docs/remedies.md)."""
    input:
        f"{REMEDIES}/report/report.html",
