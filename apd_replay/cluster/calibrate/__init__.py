"""A GPU's coefficients for the simulator, measured on running servers: measurements become rows, rows a file of config/hardware.

    traffic.py       one request to one server, and when its tokens came
    rows.py          what a measurement is; written as it happens
    points.py        which points are measured, in order of worth
    worker.py        prefill, append and decode, on a unified worker
    calls.py         what a call costs, and what it costs others
    pair.py          a P and a D that work on one prompt together
    link.py          KV from a P to a D
    scattered.py     the same, into slots that are no neighbours
    append.py        a direct turn on a D
    least_squares.py non-negative coefficients by relative error
    fit.py           rows become the coefficients of schema/hardware.yaml, with residuals
    hardware_file.py the file itself, with its method in comments
"""
