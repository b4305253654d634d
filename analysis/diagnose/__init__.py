"""Why is speculation slow on that server: from what is hoped for to what is seen, and what would help.

`server` reads what a server counts, `account` prices a round and takes the difference apart, `report` shows
it.
"""
