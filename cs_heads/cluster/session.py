"""The connection to Ray: to a given cluster, or to one of this machine that is started and stopped here."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from cs_heads.arguments import check_integer
from cs_heads.text import first_line


def ray_module() -> ModuleType:
    """Ray, which comes in by this door alone; where it is not installed ``ImportError`` says how to have it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("workers need Ray, which is not installed: pip install 'cs-heads[ray]'") from error
    return ray


PER_CORE = 4
"""Workers on this machine for each of its cores, at most: each holds a model of its own."""

# Seconds that an address has to answer in: Ray itself tries a dead one for many minutes.
_ANSWER = 10.0


@dataclass(eq=False)
class Session:
    """A connection to Ray; without an address it was started here, for this process alone."""

    address: str | None
    users: int = 0


# The connection that was made here, while somebody uses it; Ray has one a process.
_current: list[Session] = []


def join(address: str | None, workers: int | None) -> Session:
    """Connect to the Ray cluster at ``address``, as ``ray.init`` takes it; None starts Ray on this machine.

    A process has one connection: where there is one, it is used as it is, and another address raises
    ``ValueError``, as does one where no Ray answers; ``ConnectionError`` where Ray cannot be started.
    """
    ray = ray_module()
    if ray.is_initialized():
        session = _current[0] if _current else Session(str(ray.get_runtime_context().gcs_address))
        if address not in (None, "auto", session.address):
            raise ValueError(f"address must be {session.address!r}, which Ray is connected to; got {address!r}")
    else:
        if address is not None:
            _check_answers(address)
        elif workers is not None:
            check_integer("workers", workers, 1, PER_CORE * (os.cpu_count() or 1), f"{PER_CORE} a core of this machine")
        _current[:] = [_connect(ray, address, workers)]
        session = _current[0]
    session.users += 1
    return session


def leave(session: Session) -> None:
    """End a connection that was made here with its last user; a cluster that ran before goes on running."""
    session.users -= 1
    if session in _current and session.users <= 0:
        _current.clear()
        ray_module().shutdown()


def _check_answers(address: str) -> None:
    """Raise ``ValueError`` where nothing answers at ``host:port``, ``ray://host`` or what ``auto`` stands for."""
    asked = address
    if address == "auto":
        from ray._private.services import get_ray_address_from_environment

        address = get_ray_address_from_environment("auto", None) or ""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or (10001 if parts.scheme == "ray" else None)
        if parts.hostname and port:
            socket.create_connection((parts.hostname, port), timeout=_ANSWER).close()
    except (OSError, ValueError) as error:
        raise ValueError(f"address must be that of a running Ray cluster, got {asked!r}: {error}") from error


def _connect(ray: Any, address: str | None, workers: int | None) -> Session:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        quiet |= {"include_dashboard": False, "num_cpus": max(workers or 1, os.cpu_count() or 1)}
    # Ray asks for it when it starts: whether to send a report of its use.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        # What Ray says of itself is not part of a program's output.
        with redirect_stdout(sys.stderr):
            ray.init(address=address or "local", **quiet)
    except Exception as error:
        # Ray raises this and that, a plain Exception where its own processes take too long to start.
        reason = first_line(error)
        if address is None:
            raise ConnectionError(f"Ray cannot be started on this machine: {reason}") from error
        if "InvalidAuthToken" in str(error.__cause__):
            reason += " (it asks for a token: set RAY_AUTH_MODE=token, and see Ray's documentation)"
        raise ValueError(f"address must be that of a running Ray cluster, got {address!r}: {reason}") from error
    # A lost worker is warned of here; Ray would print its own notice of it to standard output, whatever it was told.
    ray._private.worker._worker_logs_enabled = False
    return Session(address)


def workers_for(
    workers: int | None, gpus_per_worker: float | None, resources: Mapping[str, float]
) -> tuple[int, float]:
    """Number of workers and the GPUs of each, from what is asked for and what the cluster has.

    By default a worker has a GPU of its own, or as much of one as there are workers to share it, and there is a
    worker for each GPU. ``ValueError`` is raised where the cluster has less than is asked for, and where
    nothing says how many workers there should be. What others on the cluster hold of it is not looked at here.

    >>> workers_for(None, None, {"CPU": 64.0, "GPU": 8.0}), workers_for(6, None, {"CPU": 64.0, "GPU": 4.0})
    ((8, 1.0), (6, 0.5))
    """
    gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    if gpus_per_worker is None:
        share = 0.0 if not gpus else 1.0 if workers is None else 1 / math.ceil(workers / gpus)
    else:
        share = float(gpus_per_worker)
        if share > gpus:
            raise ValueError(f"gpus_per_worker must be {gpus} or less: the Ray cluster has {gpus} GPUs; got {share:g}")
    fit = cpus if not share else int(gpus / share) if share > 1 else gpus * int(1 / share)
    if workers is None:
        if not share:
            raise ValueError(f"workers must be given: there is no GPU to count them by, and {cpus} CPU cores")
        workers = fit
    if not 1 <= workers <= fit:
        have = f"{gpus} GPUs, of which a worker takes {share:g}" if share else f"{cpus} CPU cores, one for each worker"
        raise ValueError(f"workers must be in 1..{fit}: the Ray cluster has {have}; got {workers}")
    return workers, share
