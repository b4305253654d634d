"""The papers' closed forms: pure functions of numbers, one module per paper.

Statement ids (`ssd.thm7`, ...) are those of the docs.  Times are in units of one target step unless a
name ends in `_s`.
"""
