"""Verdicts become pages and figures."""

PAGES = [f"{RESULTS}/report/report.html", f"{RESULTS}/report/report.md"]


rule write_report:
    """One HTML file that opens offline, a Markdown one, figures as SVG."""
    input:
        VERDICTS,
        f"{RESULTS}/apd.duckdb",
    output:
        PAGES,
    log:
        "logs/report.log",
    params:
        results=lambda wildcards: RESULTS,
        code=code("report.command", folders=("report",)),
    shell:
        "python -m apd_replay report --results {params.results:q} >{log:q} 2>&1"
