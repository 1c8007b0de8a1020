"""A trace and an experiment become a run in results/store, and a small manifest that names it.

The manifest is all that Snakemake knows: a run that is in the store is never made again, whatever Snakemake thinks.
Imported runs and runs on GPUs that exist are not this rule's (PLAN.kept): nothing here can rerun them.
"""


rule replay:
    """One replicate of one experiment."""
    input:
        lambda wildcards: f"{RESULTS}/traces/{PLAN.runs[wildcards.run].trace}.parquet",
    output:
        f"{RESULTS}/runs/{{run}}.json",
    log:
        "logs/replay/{run}.log",
    wildcard_constraints:
        run="|".join(map(re.escape, PLAN.runs)) or "(?!)",
    resources:
        gpu=lambda wildcards: gpus(wildcards.run),
        mem_mb=lambda wildcards: PLAN.memory_mb(wildcards.run),
        runtime=lambda wildcards: PLAN.minutes(wildcards.run),
    params:
        results=lambda wildcards: RESULTS,
        call=lambda wildcards: PLAN.calls[wildcards.run],
        reading=lambda wildcards: PLAN.runs[wildcards.run].reading(),
    shell:
        "{params.call} --trace {input:q} --results {params.results:q} >{log:q} 2>&1"
