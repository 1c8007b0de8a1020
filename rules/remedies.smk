"""The remedies against KVC and DP-CA over load, capacity and time-scale: a job a cell of the grid, then a report of its own."""

from remedy_cells import Cells

CELLS = Cells(PLAN)
REMEDIES = str(CELLS.results)


rule cell:
    """All replicates of one experiment, and their figures. Runs with worker logs are parsed too."""
    input:
        lambda wildcards: CELLS.trace(wildcards.experiment),
    output:
        f"{REMEDIES}/figures/{{experiment}}.parquet",
    log:
        "logs/remedies/{experiment}.log",
    params:
        results=lambda wildcards: REMEDIES,
        call=lambda wildcards: CELLS.call(wildcards.experiment),
        decides=lambda wildcards: CELLS.decides(wildcards.experiment),
        code=code("claims.cell_figures", "logs.command"),
    shell:
        "python -m apd_replay cell {params.call} --results {params.results:q} >{log:q} 2>&1"


rule remedies_report:
    """Claims decided on the seed's cell, and the page."""
    input:
        figures=lambda _: CELLS.figures(),
        traces=lambda _: CELLS.traces(),
        rules="config/claims.yaml",
    output:
        f"{REMEDIES}/report/report.html",
        f"{REMEDIES}/report/report.md",
    log:
        "logs/remedies.log",
    params:
        results=lambda wildcards: REMEDIES,
        code=code(
            "claims.command",
            "report.command",
            folders=("claims", "report", "warehouse"),
        ),
    shell:
        "( mkdir -p {params.results:q}/traces && cp {input.traces:q} {params.results:q}/traces"
        " && python -m apd_replay claims --results {params.results:q}"
        " && python -m apd_replay report --results {params.results:q} ) >{log:q} 2>&1"
