"""A trace file, or a built-in synthesis, becomes the table `turns`."""


rule trace:
    """Read one trace; its digest names the runs that replay it."""
    input:
        lambda wildcards: PLAN.traces[wildcards.trace].files,
    output:
        f"{RESULTS}/traces/{{trace}}.parquet",
    log:
        "logs/trace/{trace}.log",
    wildcard_constraints:
        trace="|".join(map(re.escape, PLAN.traces)) or "(?!)",
    params:
        call=lambda wildcards: PLAN.traces[wildcards.trace].call(),
        synthesis=lambda wildcards: PLAN.traces[wildcards.trace].synthesis,
        code=code("trace.command", folders=("trace/formats",)),
    shell:
        "python -m apd_replay trace convert {params.call} {output:q} >{log:q} 2>&1"
