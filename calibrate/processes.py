"""How processes of ours are started, and how they end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, SpawnContext

from calibrate.leftovers import claim_shared_folder

PRELOADED = ["torch", "transformers.models.llama.modeling_llama", "calibrate.live.loading"]
"""What every process of ours needs and takes seconds to import."""


def process_context() -> ForkServerContext | SpawnContext:
    """Processes forked from one that has imported torch and nothing else, where the system knows that.

    A calibration starts half a dozen; each would import torch anew.  The process that they are forked from
    never runs a model: it has no threads and no accelerator that a fork could break.
    """
    claim_shared_folder()
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone, however that ended, whatever runs here."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "only in a process that another one started"
    threading.Thread(target=_outlive, args=(parent.sentinel,), name="parent-watch", daemon=True).start()


def _outlive(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
