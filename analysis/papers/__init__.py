"""The five papers' tables, predicted: reported, law, simulated and a naive guess, row by row.

One module per paper says what its baselines determine and what has to be assumed; `data/` holds the
printed values, which of them are flagged as impossible, and the index of figures.
"""
