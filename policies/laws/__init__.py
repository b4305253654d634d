"""The papers' closed forms: pure functions of numbers, a module per paper.

`ssd` (with `fanout`), `double`, `duo`, `rasd` and `mirror`; what several share is in `sampling` and
`retrieval`, the way back from measured values in `inverse`.  `catalogue` has all statements by id
(`ssd.thm7`, ...), which the `laws` command shows and evaluates; `glossary` says what parameters mean, and
`law` holds arguments against it.  Times are in units of one target step unless a name ends in `_s`.
"""
