"""The tokens of a forward, kept in a store: calls that go on are planned as they were begun."""

from __future__ import annotations

from typing import Any

from cs_heads.cluster import Cluster
from cs_heads.engine.plan import token_budget
from cs_heads.lens.fused import why_not_fused
from cs_heads.lens.model import device_of
from cs_heads.store.store import Store


def kept_budget(store: Store, source: Any) -> int:
    """The tokens that the store's first experiment on such a device was planned with; what a probe finds, if none was.

    A probe looks at free memory, which is another every day, and other batches round otherwise.
    """
    device = source.info.device if isinstance(source, Cluster) else device_of(source).type
    key = f"batch_tokens/{device}"
    kept = store.query("SELECT state FROM progress WHERE identity = ?", (key,))
    if not kept:
        tokens = source.batch_tokens if isinstance(source, Cluster) else _probed(source)
        with store.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO progress VALUES (?, ?)", (key, str(tokens).encode()))
        # Another process may have been first.
        kept = store.query("SELECT state FROM progress WHERE identity = ?", (key,))
    return int(kept[0][0])


def _probed(model: Any) -> int:
    return token_budget(model, why_not_fused(model) is None)
