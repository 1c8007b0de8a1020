"""Rows become a database: views over the tables of the runs that the manifests name."""


rule warehouse:
    """results/apd.duckdb, replaced by rename."""
    input:
        PLAN.manifests(REPORTED),
        PLAN.tables(REPORTED),
        expand(f"{RESULTS}/traces/{{trace}}.parquet", trace=PLAN.reported_traces),
    output:
        f"{RESULTS}/apd.duckdb",
    log:
        "logs/warehouse.log",
    params:
        results=lambda wildcards: RESULTS,
        code=code("warehouse.database", folders=("warehouse",)),
    shell:
        "python -m apd_replay warehouse --results {params.results:q} >{log:q} 2>&1"
