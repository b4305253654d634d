"""Retrieval: looks words up in a row's own text or in a datastore; calls no model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from calibrate.live.errors import ModelError
from hardware_profiles.datastore import Datastore, datastore_path
from policies.retrieval import PROMPT, RetrievalAsk, Retrieved, retrieve

if TYPE_CHECKING:
    from calibrate.live.executor import Executor
    from calibrate.live.messages import RowwiseRows


def retrieve_trees(executor: Executor, message: RowwiseRows) -> tuple[Retrieved, ...]:
    """Handler of `policies.retrieval.RetrieveTree`."""
    name, search = message.option("datastore"), message.option("search")
    datastore = None if name == PROMPT else opened(executor, name)
    start, fed = time.perf_counter(), executor.runner.fed
    replies = tuple(retrieve(RetrievalAsk._make(ask), search, datastore) for ask in message.asks)
    executor.stamp("retrieve", start, fed, [()] * len(message.rows))
    executor.audit_fed(0, "RetrieveTree")
    return replies


def opened(executor: Executor, name: str) -> Datastore:
    """The datastore of a name or path, opened once per worker and kept.

    Raises:
        DatastoreError: There is none.
        ModelError: It was made with a tokenizer of more ids than the model knows.
    """
    return executor.once(f"datastore {name}", lambda: _open(executor, name))


def _open(executor: Executor, name: str) -> Datastore:
    datastore = Datastore.open(datastore_path(name))
    known = _vocabulary(executor)
    if known is not None and datastore.meta.vocabulary > known:
        raise ModelError(
            f"datastore {name!r} holds ids up to {datastore.meta.vocabulary - 1}, the model knows "
            f"{known}: build it with the model's own tokenizer (calibrate datastore build --tokenizer)"
        )
    return datastore


def _vocabulary(executor: Executor) -> int | None:
    config = getattr(executor.runner, "config", None)
    return None if config is None else int(config.get_text_config().vocab_size)
