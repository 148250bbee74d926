"""The command line, thin over the packages: each module is one command, `python -m tools.NAME` or `headrace NAME`.

text ─► pack ─► corpus ─► (python -m trainer) ─► run ─► versions, restore
                                                  └─► bench, demo: what is claimed, shown
"""
