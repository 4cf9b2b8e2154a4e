"""Why is acceptance low? Suspects are toggled one by one on the user's own pair, and what raises acceptance is named.

`front` is the side without torch and `ranking` is pure; `job` and the modules of suspects run in the worker.
"""
