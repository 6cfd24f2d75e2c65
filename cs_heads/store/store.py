"""The store: one SQLite file for a study of one model, in which nothing measured is ever lost."""

from __future__ import annotations

import json
import os
import sqlite3
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.arguments import check_path
from cs_heads.designs import key_in_words
from cs_heads.record import Record
from cs_heads.units import Grid

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 4
"""Version of the file's layout: another one is refused."""

# Marks a SQLite file as ours ("cshd").
_APPLICATION = 0x63736864

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE study (field TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE settings (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
CREATE TABLE examples (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, prompt TEXT NOT NULL);
CREATE TABLE tasks (task TEXT, settings INTEGER, example INTEGER, PRIMARY KEY (task, settings, example)) WITHOUT ROWID;
CREATE TABLE masks (id INTEGER PRIMARY KEY, bits BLOB NOT NULL UNIQUE);
CREATE TABLE calls (id INTEGER PRIMARY KEY AUTOINCREMENT, settings INTEGER NOT NULL, plan TEXT NOT NULL);
CREATE TABLE observations (
    settings INTEGER, mask INTEGER, example INTEGER, said BLOB NOT NULL, text TEXT, call INTEGER NOT NULL,
    PRIMARY KEY (settings, mask, example)
) WITHOUT ROWID;
CREATE TABLE progress (identity TEXT PRIMARY KEY, state BLOB NOT NULL);
"""

# Seconds to wait while another process writes: it does so for milliseconds.
_PATIENCE = 60.0


class BrokenStoreError(ValueError):
    """A file that is no store, or no longer a whole one."""


class StoreError(OSError):
    """A store that cannot be read or written: no space, no permission, a broken disk."""


@dataclass(frozen=True)
class Contents(Record):
    """What a store holds: the study it is of, observations and different masks, bytes on disk, the last time.

    ``tasks`` is the number of observations by task, those that tasks share counted for each; ``kept`` the number of
    searches, begun or done, by method, of those that keep other work: ``chg``, ``contrastive``,
    ``gradient``, ``mediation``; ``written`` the time in UTC (None: nothing yet).
    """

    path: str
    format: int
    study: dict[str, Any]
    tasks: dict[str, int]
    masks: int
    observations: int
    kept: dict[str, int]
    bytes: int
    written: str | None


class Store:
    """The results of a study in one file: what each mask did to each example, on one model and one ablation.

    ``Experiment``, ``find_heads``, ``confirm``, ``compare`` and the analyses take its path as ``store=``: every batch
    is committed as it is measured, what is in the file is not measured again, and an interrupted call is resumed
    where it stopped.
    Tasks, methods and calls share a file. Another model, dtype or ablation is refused; it needs a file of its own.
    While hooks of your own stand on the model nothing is read or written: ``ValueError``.

    ``Store.open`` reads a file: ``to_frame``, ``to_parquet``, ``contents``. A file may be used by several
    processes of one machine at once; write-ahead logging is not safe on a network file system (NFS, SMB), so
    keep the file on a local disk and copy it. Beside a file in use, or one whose process was killed, lie a ``-wal``
    and a ``-shm`` file that belong to it. Survives the death of its process at any moment; a machine that loses
    power may lose the last seconds, and no more.

    Args:
        path: The file.
        connection: Its SQLite connection; ``Store.open`` and ``Store.of`` make it.
    """

    def __init__(self, path: str | Path, connection: sqlite3.Connection) -> None:
        """Use ``Store.open``, or give a path to ``Experiment``."""
        self.path = Path(path)
        self._connection = connection
        # Of threads that share this object: a connection is in one transaction at a time.
        self._turn = RLock()
        # Closing folds the log into the file; Python 3.13 warns of a connection that was not closed.
        self.close = weakref.finalize(self, connection.close)

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """An existing store, to read.

        Args:
            path: The file.

        Raises:
            ValueError: ``path`` is no path, there is no such file, or it is of another kind or a newer format.
            StoreError: The file cannot be read.
        """
        path = check_path("path", path)
        if not path.is_file():
            raise ValueError(f"store {str(path)!r} does not exist")
        log = path.with_name(path.name + "-wal")
        may_write = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        if not may_write and log.exists() and log.stat().st_size:
            why = "its process was killed or still runs, and nothing can be written here: copy it, with the file"
            where = f"{log.name!r} beside it, to a folder that can be written"
            raise StoreError(f"store {str(path)!r} cannot be read: {why} {where}")
        # The last to close a file that it may write takes the log away, of which reading makes one beside it.
        store = cls(path, _connect(path, "mode=rw" if may_write else "immutable=1"))
        store._check_format()
        store.query("PRAGMA query_only = ON")
        return store

    @classmethod
    def of(cls, store: Any, study: Mapping[str, Any]) -> Store:
        """The store of this study, to write: one that is open, or at a path, made where there is none.

        Args:
            store: An open ``Store``, or the path of a file in a folder that exists.
            study: What every result of the file has in common (``identity.study_of``).

        Returns:
            The store that was given, or one opened at the path.

        Raises:
            ValueError: A store of another study (the message names the field that differs and both values), what is
                neither a store nor a path, a file of another format or that is no store, or a path that is no file in a
                folder that exists.
            StoreError: A file that cannot be written.
        """
        if isinstance(store, Store):
            store._check_study(study)
            return store
        if not isinstance(store, str | Path) or str(store) in ("", ":memory:"):
            raise ValueError(f"store must be the path of a file (str or Path) or an open Store, got {store!r}")
        path = Path(store)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"store {str(path)!r} must be a file in a folder that exists")
        made = cls(path, _connect(path, "mode=rwc"))
        if made._is_empty():
            made._keep_log()
            made._create(study)
        made._check_format()
        made._check_study(study)
        made._keep_log()
        # A commit does not wait for the disk: it survives the process, and all but the last survive the machine.
        made.query("PRAGMA synchronous = NORMAL")
        with made.transaction() as connection:
            # What cannot be written is refused now, and not after hours.
            connection.execute("UPDATE study SET value = value")
        return made

    def _check_study(self, study: Mapping[str, Any]) -> None:
        there, here = dict(_by_path(self.study)), dict(_by_path(study))
        for field in dict.fromkeys((*here, *there)):
            if (one := there.get(field)) != (other := here.get(field)):
                said = f"{field} is {one!r} there and {other!r} here"
                raise ValueError(f"{self} is of another study: {said}; give this study a file of its own")

    @property
    def study(self) -> dict[str, Any]:
        """What all results have in common: model, weights, dtype, ablation."""
        rows = self.query("SELECT field, value FROM study WHERE field != 'written'")
        return {field: json.loads(value) for field, value in rows}

    @property
    def grid(self) -> Grid:
        """Layers × heads of the model."""
        (n_layers, n_units), kind = (self.study[name] for name in ("grid", "units"))
        return Grid(n_layers, n_units, kind)

    def contents(self) -> Contents:
        """What is in it, by numbers; counts every result, a second for some millions."""
        tasks = self.query(
            "SELECT task, sum(n) FROM tasks JOIN (SELECT settings, example, count(*) AS n FROM observations "
            "GROUP BY settings, example) USING (settings, example) GROUP BY task ORDER BY task"
        )
        written = self.query("SELECT value FROM study WHERE field = 'written'")
        ((masks, observations),) = self.query("SELECT count(DISTINCT mask), count(*) FROM observations")
        # Work kept beside results is in one or more phases (see ``KeptWork``); a key of two parts is a setting.
        keys = [key.split("/") for (key,) in self.query("SELECT identity FROM progress")]
        kept = {(key[0], key[1]) for key in keys if len(key) == 3}
        log = self.path.with_name(self.path.name + "-wal")
        methods = dict(Counter(method for method, _ in sorted(kept)))
        size = sum(path.stat().st_size for path in (self.path, log) if path.exists())
        last = json.loads(written[0][0]) if written else None
        return Contents(str(self.path), FORMAT, self.study, dict(tasks), masks, observations, methods, size, last)

    def to_frame(self) -> pd.DataFrame:
        """Every observation: task, settings, example, prompt, the heads ablated, and what the model said.

        ``example`` is a hash of its tokens, ``settings`` says in JSON how it was asked; ``logprobs`` and ``greedy``
        hold a number for each continuation (nats, and the share of its tokens that are the argmax), None where a text
        was written, ``text``. What several tasks share has a row for each. Scores are made of these by a task:
        ``Experiment.to_frame`` has them. Repeated texts are categories, so a million rows take little memory; they
        take some ten seconds to read.
        """
        import pandas as pd

        names = ["task", "settings", "example", "mask", "said", "text"]
        joined = "observations JOIN tasks USING (settings, example) ORDER BY task"
        frame = pd.DataFrame(self.query(f"SELECT {', '.join(names)} FROM {joined}"), columns=names, dtype=object)
        off = {number: key_in_words(self.grid, key) for number, key in self.query("SELECT id, bits FROM masks")}
        said = [
            None if text is not None else np.frombuffer(one, "<f8").reshape(-1, 2)
            for one, text in zip(frame["said"], frame["text"], strict=True)
        ]
        for place, name in enumerate(("logprobs", "greedy")):
            frame[name] = pd.Series([None if one is None else one[:, place].tolist() for one in said], dtype=object)
        for name, of, words in (
            ("settings", "settings", dict(self.query("SELECT id, identity FROM settings"))),
            ("prompt", "example", dict(self.query("SELECT id, prompt FROM examples"))),
            ("example", "example", dict(self.query("SELECT id, identity FROM examples"))),
            ("ablated", "mask", {number: heads for number, (heads, _) in off.items()}),
            ("n_ablated", "mask", {number: n for number, (_, n) in off.items()}),
        ):
            frame[name] = frame[of].map(words)
        repeated = dict.fromkeys(("task", "settings", "example", "prompt", "ablated"), "category")
        return frame[[*repeated, "n_ablated", "logprobs", "greedy", "text"]].astype({**repeated, "n_ablated": int})

    def to_parquet(self, path: str | Path) -> None:
        """Write ``to_frame`` as a Parquet file; needs pyarrow (``pip install 'cs-heads[parquet]'``).

        Args:
            path: The file; one that is there is replaced.

        Raises:
            ValueError: ``path`` is no path or the store itself, or pyarrow is missing.
            StoreError: The store cannot be read.
            OSError: The file cannot be written.
        """
        path = check_path("path", path)
        if find_spec("pyarrow") is None:
            raise ValueError("Parquet files need pyarrow: pip install 'cs-heads[parquet]'")
        if path.is_dir():
            raise ValueError(f"path must be a file, got the folder {str(path)!r}")
        if path.resolve() == self.path.resolve():
            raise ValueError(f"path {str(path)!r} is the store itself, which it would overwrite")
        # An existing file is replaced by a whole one, or not at all.
        beside = path.with_name(path.name + ".part")
        self.to_frame().to_parquet(beside, engine="pyarrow", index=False)
        beside.replace(path)

    def query(self, sql: str, values: Any = ()) -> list[Any]:
        """The rows of a SELECT.

        Args:
            sql: The statement.
            values: Those of its placeholders.

        Returns:
            A tuple of the selected values for each row.

        Raises:
            BrokenStoreError: The file is no store, or no longer a whole one.
            StoreError: It cannot be read.
        """
        with self._turn, self._errors():
            return self._connection.execute(sql, values).fetchall()

    def __str__(self) -> str:
        return f"store {str(self.path)!r}"

    def __fspath__(self) -> str:
        return str(self.path)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection to write with: all of the block is committed at its end, or nothing where it raises.

        Raises:
            StoreError: The store cannot be written.
            BrokenStoreError: The file is no store, or no longer a whole one.
        """
        # The connection's own block commits, or rolls back.
        with self._turn, self._errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection

    def first(self, key: str, value: Callable[[], str]) -> str:
        """The value under a key; the first to ask for it makes it.

        Args:
            key: Its name in the file.
            value: Makes the value; called where the file has none.

        Returns:
            The value in the file, also where another process was the first.

        Raises:
            BrokenStoreError: The file is no store, or no longer a whole one.
            StoreError: It cannot be read or written.
        """
        asked = "SELECT state FROM progress WHERE identity = ?", (key,)
        if not self.query(*asked):
            made = value().encode()
            with self.transaction() as connection:
                # Another process may have been first.
                connection.execute("INSERT OR IGNORE INTO progress VALUES (?, ?)", (key, made))
        return str(self.query(*asked)[0][0].decode())

    @staticmethod
    def stamp(connection: sqlite3.Connection) -> None:
        """Note the time of a transaction that adds results.

        Args:
            connection: That of the transaction.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        connection.execute("INSERT OR REPLACE INTO study VALUES ('written', ?)", (json.dumps(now),))

    def _keep_log(self) -> None:
        """Write ahead to a log from now on; where others do so at the same moment SQLite fails and does not wait."""
        until = monotonic() + _PATIENCE
        while True:
            try:
                self.query("PRAGMA journal_mode = WAL")
                return
            except StoreError as error:
                if "locked" not in str(error) or monotonic() > until:
                    raise
            sleep(0.01)

    def _is_empty(self) -> bool:
        return not self.query("SELECT 1 FROM sqlite_master LIMIT 1")

    def _create(self, study: Mapping[str, Any]) -> None:
        with self.transaction() as connection:
            # Another process may have been first.
            if self._is_empty():
                for statement in _SCHEMA.split(";")[:-1]:
                    connection.execute(statement)
                rows = [(field, json.dumps(value)) for field, value in study.items()]
                connection.executemany("INSERT INTO study VALUES (?, ?)", rows)

    def _check_format(self) -> None:
        ((application,),), ((version,),) = (self.query(f"PRAGMA {each}") for each in ("application_id", "user_version"))
        if self._is_empty():
            raise ValueError(f"{self} is empty: nothing was ever kept in it")
        if application != _APPLICATION:
            raise ValueError(f"{self} is no store of cs-heads: it is another SQLite database")
        if version != FORMAT:
            here = f"this version of cs-heads reads format {FORMAT}: give this study another file"
            raise ValueError(f"{self} has format {version}, and {here}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What SQLite says, in the words of the library."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"{self} cannot be used: {error}; what it holds is kept") from error
        except sqlite3.ProgrammingError as error:
            raise ValueError(f"{self} is closed: open it, or make its experiment, again") from error
        except sqlite3.DatabaseError as error:
            raise BrokenStoreError(f"{self} is no store of cs-heads, or a broken one: {error}") from error


def _by_path(fields: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Fields by their path, those inside others too."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _by_path(value, f"{before}{name}.")
        else:
            yield before + name, value


def _connect(path: Path, options: str) -> sqlite3.Connection:
    # Closed by the garbage collector, in whatever thread that runs.
    how: dict[str, Any] = {"timeout": _PATIENCE, "isolation_level": None, "check_same_thread": False}
    try:
        return sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, **how)
    except sqlite3.OperationalError as error:
        raise StoreError(f"store {str(path)!r} cannot be opened: {error}") from error
