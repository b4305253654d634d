"""Where the papers' laws break: each law against the simulated world, its assumptions relaxed one by one.

A law is told what a reader would tell it (`points.Point`: acceptance, hit curve, step costs, as measured);
the world then does something that the law does not know of (`points.World`).  The policies are the real
ones, run by the simulator; nothing here knows how they work but `pipeline`, a policy that only a printed
law has.
"""
