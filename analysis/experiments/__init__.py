"""Questions that the papers leave open, each answered by law, simulation and, on request, live runs.

One module per question: what to run (`run`), what the outcome is (`title`), and its picture (`draw`).
`python -m analysis.experiments NAME` runs one.
"""
