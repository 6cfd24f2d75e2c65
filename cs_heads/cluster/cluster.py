"""Many workers, each with its own copy of a model, for the experiments of a study."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cs_heads.arguments import check_integer
from cs_heads.cluster.engine import ClusterEngine
from cs_heads.cluster.pool import WorkerPool
from cs_heads.cluster.session import join, leave, ray_module, workers_for
from cs_heads.cluster.worker import Job, Source, versions
from cs_heads.engine.ablation import Ablation
from cs_heads.lens import EncodedExample, ModelState, check_ablatable, fingerprint, load_model
from cs_heads.lens.forward import sample_logits
from cs_heads.lens.model import HookedModel, ModelInfo
from cs_heads.lens.serialization import packed_model
from cs_heads.settings import Settings

# What is none of these is refused by our own message, and not by a check of types at run time.
if TYPE_CHECKING:
    ModelLike: TypeAlias = "HookedModel | Cluster | str | Path | Callable[[], HookedModel]"
else:
    ModelLike = Any
"""A model as a user may give it: their own, the name or folder of one, a ``Cluster``; for workers a function, too."""


class Cluster:
    """Workers that hold a model each and share the work of every experiment on them.

        with cs.Cluster("gpt2", workers=4) as cluster:
            found = cs.find_heads(cluster, task)
            proof = cs.confirm(cluster, task, found.top(5))

    Chunks of work are the same for any number of workers, and an idle worker takes the next. So results are the same
    bit for bit for one worker and for many, where the machines are alike, ``threads`` is the same (sums over several
    threads round otherwise) and memory is not short. Without workers forwards are of other sizes, and numbers the same
    to rounding. A chunk whose worker is lost is done again, which ``spent`` does not count twice, and the worker is
    started again up to three times.

    Args:
        model: A name or folder that each worker loads by itself, a function without arguments that returns a model
            (``partial(cs.load_model, "gpt2", dtype="bfloat16")``), or your own TransformerLens model, which is sent to
            the workers once. Give a name or a function where it is large.
        workers: How many; None is one for each GPU.
        address: None starts Ray on this machine and stops it at the end. ``"auto"``, ``"host:6379"`` or
            ``"ray://host:10001"`` is a Ray cluster, which goes on running; cs-heads and the libraries that numbers
            depend on must be there in the same versions.
        gpus_per_worker: A number or a fraction of GPUs; by default as much of one as there are workers to share it. For
            a model that is split over several GPUs give a function that loads it so.
        threads: Threads of each worker on the CPU.

    Raises:
        ValueError: More workers than the cluster has, whoever else uses it (where others do, Ray waits for room, and
            after a minute a warning says for what); a model that cannot be loaded, or sent (one that is split is not);
            copies of the model with different answers.
        ImportError: Ray is not installed (``pip install 'cs-heads[ray]'``).
    """

    def __init__(
        self,
        model: ModelLike,
        workers: int | None = None,
        *,
        address: str | None = None,
        gpus_per_worker: float | None = None,
        threads: int = 1,
    ) -> None:
        for name, value, least in (("workers", workers, 1), ("threads", threads, 1)):
            if value is not None:
                check_integer(name, value, least)
        if gpus_per_worker is not None and (
            gpus_per_worker < 0 or (gpus_per_worker > 1 and not float(gpus_per_worker).is_integer())
        ):
            raise ValueError(f"gpus_per_worker must be a share of one GPU or a whole number, got {gpus_per_worker!r}")
        source = _source(model, gpus_per_worker)
        ray = ray_module()
        with ExitStack() as ends:
            session = join(address, workers)
            ends.callback(leave, session)
            n, share = workers_for(workers, gpus_per_worker, ray.cluster_resources())
            together = int(1 / share) if 0 < share < 1 else 1 if share else -(-n // len(ray.nodes()))
            config = "cuda" if share else "cpu", threads, together
            # On this machine alone no cores need be reserved.
            self._pool = WorkerPool(source, n, config, num_cpus=float(session.address is not None), num_gpus=share)
            ends.callback(self._pool.close)
            self._given: Any = model
            self.workers = n
            self.info = self._pool.reports[0].info
            self.model_or_info: Any = self.info if isinstance(source, str | Path) or callable(source) else model
            sent: Any = self.model_or_info
            self._sent = ModelState.of(sent)
            self.batch_tokens = min(report.batch_tokens for report in self._pool.reports)
            self._check(None if self.model_or_info is self.info else model)
            self._end = weakref.finalize(self, ends.pop_all().close)

    @cached_property
    def model(self) -> Any:
        """The model in this process, for methods that use the model itself; loaded here when first asked for."""
        if isinstance(self.model_or_info, ModelInfo):
            return load_model(self._given() if callable(self._given) else self._given)
        return self.model_or_info

    def engine(
        self,
        examples: Sequence[EncodedExample],
        batch_tokens: int | None = None,
        ablation: Ablation | None = None,
        compute_dtype: str | None = None,
    ) -> ClusterEngine:
        """What runs one experiment on the workers.

        Args:
            examples: The examples of the task, as tokens.
            batch_tokens: Tokens of one forward at most (None: ``batch_tokens`` of the cluster).
            ablation: What is ablated, and what it gives then (None: heads, zero).
            compute_dtype: What forwards run in (None: the dtype of the weights).

        Returns:
            An engine whose calls are those of ``Engine``, each split over the workers.

        Raises:
            ValueError: The cluster is closed, or your model was changed since it was sent.
        """
        if not self._end.alive:
            raise ValueError("the cluster is closed: its workers are gone")
        self._sent.check(self.model_or_info, "it was sent to the workers")
        weights = self.info.fingerprint
        job = Job(list(examples), batch_tokens or self.batch_tokens, weights, ablation or Ablation(), compute_dtype)
        return ClusterEngine(self._pool, self.model_or_info, self.info.device, job)

    def close(self) -> None:
        """Stop the workers, and Ray where it was started for them; done by itself when the cluster is garbage."""
        self._end()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, original: Any) -> None:
        """Refuse workers of other versions, and copies that are not copies."""
        mine, first = versions(), self._pool.reports[0]
        expected = first.logits if original is None else sample_logits(original)
        than = "worker 1" if original is None else "the model given"
        weights = fingerprint(first.info if original is None else original)
        # As a share of the largest logit: other machines have other kernels.
        tolerance = {"float64": 1e-5, "float32": 1e-4}.get(first.info.description["dtype"], 3e-2)
        tolerance *= np.abs(expected).max()
        for number, report in enumerate(self._pool.reports, start=1):
            other = {name: theirs for name, theirs in report.versions.items() if theirs != mine[name]}
            if other:
                said = ", ".join(f"{name} {theirs} (here {mine[name]})" for name, theirs in other.items())
                raise ValueError(f"worker {number} must run the same versions as this process, it has {said}")
            if report.info.fingerprint != weights:
                raise ValueError(f"worker {number} must hold the same weights as {than}, these are others")
            difference = float(np.abs(report.logits - expected).max())
            if not difference <= tolerance:
                raise ValueError(f"worker {number} must answer as {than} does, its logits differ by {difference:.1e}")


def model_or_cluster(model: ModelLike, settings: Settings) -> Any:
    """What the experiments of a call run on: a model loaded once, or a cluster, the one given or one of its own."""
    many = settings.workers is not None or settings.address is not None
    if isinstance(model, Cluster):
        if many:
            raise ValueError("workers and address must be left out where the model is a Cluster: it has its own")
        return model
    if settings.dtype is not None and not isinstance(model, str | Path):
        raise ValueError(f"dtype must be left out for a model that is loaded already, got {settings.dtype!r}")
    load: Any = partial(load_model, model, dtype=settings.dtype)
    if not many:
        return load()
    return Cluster(model if settings.dtype is None else load, settings.workers, address=settings.address)


@contextmanager
def placed(model: ModelLike, workers: int | None = None, address: str | None = None) -> Iterator[Any]:
    """What the experiments of one call are given: a model loaded once, or a cluster that ends with the block.

    A ``Cluster`` is used as it is; ``workers`` or ``address`` beside it raise ``ValueError``.
    """
    source = model_or_cluster(model, Settings(workers=workers, address=address))
    with source if isinstance(source, Cluster) and source is not model else nullcontext():
        yield source


def local_model(model: ModelLike, settings: Settings | None = None) -> Any:
    """The model in this process: a cluster's own, or what was given; with ``settings`` one given by name is loaded."""
    source = model if settings is None else model_or_cluster(model, settings)
    return source.model if isinstance(source, Cluster) else source


def _source(model: Any, gpus_per_worker: float | None) -> Source:
    named = isinstance(model, str | Path)
    if callable(model) and not hasattr(model, "cfg"):
        return model
    if not named:
        check_ablatable(model)
    if gpus_per_worker is not None and gpus_per_worker > 1:
        raise ValueError(
            f"gpus_per_worker must be 1 or less for a model that is no function, as it is put on one GPU; got "
            f"{gpus_per_worker!r}: give a function that loads it split"
        )
    return model if named else packed_model(model)
