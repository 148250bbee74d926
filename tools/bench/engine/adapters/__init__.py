"""The sides, one a module: `opened(workload, stamps)` is a context manager that gives the values."""
