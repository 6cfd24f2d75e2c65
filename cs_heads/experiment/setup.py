"""What experiments share: a model and where it runs, how it is measured, and where that is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cs_heads.cluster import Cluster, ModelLike, model_or_cluster
from cs_heads.engine.plan import faster_dtype, token_budget
from cs_heads.lens import ModelState, describe
from cs_heads.lens.model import ModelDescription, check_units, device_of
from cs_heads.settings import Settings
from cs_heads.store.identity import study_of
from cs_heads.store.store import Store
from cs_heads.text import TokenIds


@dataclass(frozen=True, eq=False)
class Setup:
    """A model as it was when this was made, with the settings, the workers and the store of a call.

    Attributes:
        settings: How; those that load a model and start workers have done so, and are at their defaults.
        source: What runs: the model, or a ``Cluster`` that holds one.
        model: The model, or what is known of one on workers.
        state: What it was.
        description: The same, for people.
        store: Where what is measured is kept; None: nowhere.
        batch_tokens: Tokens of one forward at most; None: what the device is fast with.
        opened: Workers that this started and the store that it opened.
    """

    settings: Settings
    source: Any
    model: Any
    state: ModelState
    description: ModelDescription
    store: Store | None
    batch_tokens: int | None
    opened: tuple[Cluster | Store, ...]

    @classmethod
    def of(cls, model: ModelLike, settings: Settings) -> Setup:
        """The setup of a call.

        Args:
            model: A model, the name of one, or a ``Cluster``.
            settings: The settings of the call.

        Returns:
            The setup; the model is loaded, workers are started and the store is open.

        Raises:
            ValueError: A model, settings or a store that do not fit together.
        """
        source = model_or_cluster(model, settings)
        opened: list[Cluster | Store] = [source] if isinstance(source, Cluster) and source is not model else []
        held = source.model_or_info if isinstance(source, Cluster) else source
        check_units(held, settings.units)
        state, store, batch_tokens = ModelState.of(held), None, settings.batch_tokens
        if settings.store is not None:
            given: Any = settings.store
            store = Store.of(given, study_of(held, settings))
            opened += [] if store is given else [store]
            batch_tokens = _first_batch_tokens(source, store) if batch_tokens is None else batch_tokens
        loaded = replace(settings, dtype=None, workers=None, address=None)
        return cls(loaded, source, held, state, describe(held), store, batch_tokens, tuple(opened))

    @property
    def compute_dtype(self) -> str:
        """What forwards run in."""
        return self.settings.compute_dtype or self.description["dtype"]

    def in_faster_dtype(self, texts: list[TokenIds]) -> Setup:
        """The same with forwards in a faster dtype that decides alike on some texts, where there is one.

        What a store began with it goes on with. A dtype that was asked for, and that of workers, stays.

        Args:
            texts: What is tried.
        """
        if self.settings.compute_dtype is not None or isinstance(self.source, Cluster):
            return self
        find = partial(faster_dtype, self.model, texts)
        if self.store is None:
            found = find()
        else:
            # One that has results has them of the weights' own dtype, if it does not say otherwise.
            begun = bool(self.store.query("SELECT 1 FROM observations LIMIT 1"))
            found = json.loads(self.store.first("faster_dtype", lambda: json.dumps(None if begun else find())))
        return self if found is None else replace(self, settings=replace(self.settings, compute_dtype=found))

    def close(self) -> None:
        """Stop the workers that this started, and close the store that it opened."""
        for each in self.opened:
            each.close()


def _first_batch_tokens(source: Any, store: Store) -> int:
    """The tokens that the store's first experiment on such a device ran at once.

    Where memory is short they depend on what is free, and other batches round otherwise.
    """
    if isinstance(source, Cluster):
        return int(store.first(f"batch_tokens/{source.info.device}", lambda: str(source.batch_tokens)))
    return int(store.first(f"batch_tokens/{device_of(source).type}", lambda: str(token_budget(source))))
