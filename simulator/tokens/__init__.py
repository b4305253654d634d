"""Token models: *what* is accepted and cached, apart from *when* (design.md, section 3).

`replay` takes outcomes from a recorded trace and is exact; `coin` draws them: the world of the papers' laws;
`histogram` draws them by position, as an engine's metrics tell them.
"""

from simulator.tokens.coins import coin, conditional_acceptance, histogram, mixed
from simulator.tokens.model import TokenModel
from simulator.tokens.outcomes import NEVER, Outcomes, accepted_runs
from simulator.tokens.replay import REPLAY_COLUMNS, check_sampling, replay
from simulator.tokens.retold import retold

__all__ = [
    "NEVER",
    "REPLAY_COLUMNS",
    "Outcomes",
    "TokenModel",
    "accepted_runs",
    "check_sampling",
    "coin",
    "conditional_acceptance",
    "histogram",
    "mixed",
    "replay",
    "retold",
]
