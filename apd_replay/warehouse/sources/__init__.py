"""Runs as other tools leave them, one module a tool. Each becomes a run directory of the contract (foreign.py), which then comes in
through the same door as any other. What a tool does not say stays NULL; `says` puts into words what that means."""
