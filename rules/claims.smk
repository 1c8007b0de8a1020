"""Tables become evidence, evidence becomes verdicts: one SQL file a claim, one rule in config/claims.yaml."""

VERDICTS = [
    f"{RESULTS}/claims/{name}"
    for name in ("evidence.parquet", "verdicts.parquet", "verdicts.csv", "verdicts.md")
]


rule decide:
    """All claims at once: together they take seconds, and verdicts are corrected for their number."""
    input:
        f"{RESULTS}/apd.duckdb",
        "config/claims.yaml",
    output:
        VERDICTS,
    log:
        "logs/claims.log",
    params:
        results=lambda wildcards: RESULTS,
        code=code("claims.command", folders=("claims",)),
    shell:
        "python -m apd_replay claims --results {params.results:q} >{log:q} 2>&1"
