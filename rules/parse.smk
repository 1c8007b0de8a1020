"""A run's files become rows: all per-run tables, empty ones too."""


rule parse:
    """Logs and records of one run."""
    input:
        f"{RESULTS}/runs/{{experiment}}/r{{replicate}}.json",
    output:
        PLAN.tables(["{experiment}/r{replicate}"]),
    log:
        "logs/parse/{experiment}/r{replicate}.log",
    params:
        results=lambda wildcards: RESULTS,
        code=code("logs.command"),
    shell:
        "python -m apd_replay parse --run {input:q} --out {params.results:q}/tables"
        " --experiment {wildcards.experiment:q} --replicate {wildcards.replicate} >{log:q} 2>&1"
