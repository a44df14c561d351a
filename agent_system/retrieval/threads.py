"""One number for all the thread pools of the retriever."""

from __future__ import annotations

import os
import sys

from threadpoolctl import threadpool_limits


def default_threads() -> int:
    """Half of the cores this process may use: the rest is for environments and rollout servers."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def limit_threads(threads: int) -> None:
    """Bounds BLAS, OpenMP, FAISS and torch. To be called again in each thread that computes: OpenMP counts by thread."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    threadpool_limits(threads)
    if faiss := sys.modules.get("faiss"):
        faiss.omp_set_num_threads(threads)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
