"""Measuring against the physical limit and the peers.

    a bench ─► Sides (name ─► one round) ─► rounds, interleaved and rotated ─► medians, spread, ratios ─► a
    table, JSON

A bench is a module here with `bench(settings)`, a context manager that yields its Sides, or those of several workloads.
"""
