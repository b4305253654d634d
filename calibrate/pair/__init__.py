"""A real target/draft pair, trained from text that every machine with Python has.

Nothing here imports torch at import time; the parts that need it import it when called.
"""
