"""Where the papers' laws break: each law against the simulated world, its assumptions relaxed one by one.

A law is told what a reader would tell it (`worlds.LawPoint`: acceptance, hit curve, step costs, as measured);
the world then does something that the law does not know of (`worlds.RelaxedWorld`).  The policies are the
real ones, run by the simulator (`runs`); nothing here knows how they work but `runs.plain_pipeline`, a policy
that only a printed law has.  `comparison` says how a law is held against a run, `laws` lists the laws,
`relaxations` what is relaxed; `map` sweeps all of it and `show` prints and draws it.
"""
