"""The store: one SQLite file for a study of one model, in which nothing measured is ever lost."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from cs_heads.arguments import check_path
from cs_heads.designs import key_in_words
from cs_heads.units import Grid, HeadGrid

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
"""Version of the file's layout: a newer one is refused, an older one is read as it is, and brought up to date to write.

2: results have a margin.
"""

UNSAID = {"units": "heads", "positions": "all"}
"""What a study has that does not say it, so that files from before there was anything else are read."""

_SCHEMA = """
CREATE TABLE study (field TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE scorings (id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE);
CREATE TABLE examples (
    id INTEGER PRIMARY KEY, identity TEXT NOT NULL UNIQUE, prompt TEXT NOT NULL
);
CREATE TABLE tasks (
    task TEXT NOT NULL, scoring INTEGER NOT NULL, example INTEGER NOT NULL, PRIMARY KEY (task, scoring, example)
) WITHOUT ROWID;
CREATE TABLE masks (id INTEGER PRIMARY KEY, bits BLOB NOT NULL UNIQUE);
CREATE TABLE calls (id INTEGER PRIMARY KEY AUTOINCREMENT, scoring INTEGER NOT NULL, size INTEGER NOT NULL, plan TEXT);
CREATE TABLE results (
    scoring INTEGER NOT NULL, mask INTEGER NOT NULL, example INTEGER NOT NULL,
    score REAL, logprob REAL, margin REAL, tokens BLOB, text TEXT, call INTEGER NOT NULL,
    PRIMARY KEY (scoring, mask, example)
) WITHOUT ROWID;
CREATE TABLE progress (identity TEXT PRIMARY KEY, state BLOB NOT NULL);
"""

# Marks a SQLite file as ours ("cshd").
_APPLICATION = 0x63736864

# Seconds to wait while another process writes: it does so for milliseconds.
_PATIENCE = 60.0

# By version, what makes a file of the next version of it.
_UPGRADES: dict[int, str] = {1: "ALTER TABLE results ADD COLUMN margin REAL"}

# By version, what lets a file be read as one of the newest version, for this connection alone.
_READ_AS: dict[int, str] = {1: "CREATE TEMP VIEW results AS SELECT *, NULL AS margin FROM main.results"}


class BrokenStoreError(ValueError):
    """A file that is no store, or no longer a whole one."""


class StoreError(OSError):
    """A store that cannot be read or written: no space, no permission, a broken disk."""


@dataclass(frozen=True)
class Contents:
    """What a store holds: the study it is of, results and different masks, bytes on disk, when it was last written.

    ``tasks`` is the number of results by task, those that tasks share counted for each; ``kept`` the number of
    searches, begun or done, by method, of those that keep other work than results: ``chg``, ``contrastive``,
    ``gradient``, ``mediation``; ``written`` the time in UTC (None: nothing yet).
    """

    path: str
    format: int
    study: dict[str, Any]
    tasks: dict[str, int]
    masks: int
    results: int
    kept: dict[str, int]
    bytes: int
    written: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


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
        connection: Its SQLite connection; ``Store.open`` and ``Store.for_study`` make it.
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
        # The last to close a file that it may write takes the log away, of which reading makes one beside it.
        writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        try:
            store = cls(path, _connect(path, "mode=rw" if writable else "mode=ro"))
            with store._errors("read"):
                store.format()
        except StoreError as error:
            # Reading makes a file beside it. Where none may be made it is read as it is, unless a part is in the log.
            log = path.with_name(path.name + "-wal")
            if log.exists() and log.stat().st_size:
                if os.access(path.parent, os.W_OK):
                    raise
                raise StoreError(
                    f"{error}; its process was killed or still runs: copy it, with the file {log.name!r} beside it, "
                    "to a folder that can be written"
                ) from error
            store = cls(path, _connect(path, "immutable=1"))
        store._check_format(upgrade=False)
        store.query("PRAGMA query_only = ON")
        return store

    @classmethod
    def of(cls, store: Any, study: Mapping[str, Any]) -> Store:
        """A store as it is, if it is of this study, or that of a path (``for_study``).

        Args:
            store: An open ``Store``, or the path of a file.
            study: What every result has in common (``identity.study_of``).

        Returns:
            The store that was given, or one opened at the path.

        Raises:
            ValueError: A store of another study, what is neither a store nor a path, or a file that ``for_study``
                refuses.
            StoreError: A file that cannot be written.
        """
        if isinstance(store, Store):
            store.check(study)
            return store
        if not isinstance(store, str | Path) or str(store) in ("", ":memory:"):
            raise ValueError(f"store must be the path of a file (str or Path) or an open Store, got {store!r}")
        return cls.for_study(store, study)

    @classmethod
    def for_study(cls, path: str | Path, study: Mapping[str, Any]) -> Store:
        """The store of this study, made where there is none; to write.

        Args:
            path: A file, in a folder that exists.
            study: What every result of the file has in common (``identity.study_of``).

        Returns:
            The open store of this study, in the current format.

        Raises:
            ValueError: A file of another study (the message names the field that differs and both values), of a newer
                format or that is no store, or a path that is no file in a folder that exists.
            StoreError: A file that cannot be written, or was laid out before the first release.
        """
        path = check_path("path", path)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"store {str(path)!r} must be a file in a folder that exists")
        store = cls(path, _connect(path, "mode=rwc"))
        with store._errors("written"):
            if store._is_empty():
                store._keep_log()
                store._create(study)
        store._check_format(upgrade=True)
        store.check(study)
        with store._errors("written"):
            store._keep_log()
            # A commit does not wait for the disk: it survives the process, and all but the last survive the machine.
            store._connection.execute("PRAGMA synchronous = NORMAL")
        with store.transaction() as connection:
            # What cannot be written is refused now, and not after hours.
            connection.execute("UPDATE study SET value = value")
        return store

    def check(self, study: Mapping[str, Any]) -> None:
        """Refuse a study that the store is not of.

        Args:
            study: The study: model, dtype, ablation and what else is one for the whole file.

        Raises:
            ValueError: The store is of another study; the field and both values are named.
        """
        for field, there, here in _differences({**UNSAID, **self.study}, {**UNSAID, **study}):
            raise ValueError(
                f"store {str(self.path)!r} is of another study: {field} is {there!r} there and {here!r} here; "
                "give this study a file of its own"
            )

    @property
    def study(self) -> dict[str, Any]:
        """What all results have in common: model, weights, dtype, ablation."""
        rows = self.query("SELECT field, value FROM study WHERE field != 'written'")
        return {field: json.loads(value) for field, value in rows}

    @property
    def grid(self) -> Grid:
        """Layers × heads of the model."""
        n_layers, n_units = self.study["grid"]
        kind = {**UNSAID, **self.study}["units"]
        return HeadGrid(n_layers, n_units) if kind == "heads" else Grid(n_layers, n_units, kind)

    def contents(self) -> Contents:
        """What is in it, by numbers; counts every result, a second for some millions."""
        tasks = self.query(
            "SELECT task, sum(n) FROM tasks JOIN (SELECT scoring, example, count(*) AS n FROM results "
            "GROUP BY scoring, example) USING (scoring, example) GROUP BY task ORDER BY task"
        )
        written = self.query("SELECT value FROM study WHERE field = 'written'")
        ((masks, results),) = self.query("SELECT count(DISTINCT mask), count(*) FROM results")
        # Work kept beside results is in one or more phases (see ``KeptWork``); a key of two parts is a setting.
        kept = [key.split("/") for (key,) in self.query("SELECT identity FROM progress ORDER BY identity")]
        beside = [self.path, self.path.with_name(self.path.name + "-wal")]
        return Contents(
            path=str(self.path),
            format=self.format(),
            study=self.study,
            tasks=dict(tasks),
            masks=masks,
            results=results,
            kept=dict(Counter(method for method, _ in sorted({(key[0], key[1]) for key in kept if len(key) == 3}))),
            bytes=sum(path.stat().st_size for path in beside if path.exists()),
            written=json.loads(written[0][0]) if written else None,
        )

    def to_frame(self) -> pd.DataFrame:
        """Every result: task, scoring, example, prompt, the heads ablated, score, logprob, margin and text.

        ``example`` is a hash of its tokens and answer, ``scoring`` says in JSON how it was measured; NaN and None
        stand for what was not measured. A result that several tasks share has a row for each. Repeated texts
        are categories, so a million rows take little memory; they take some ten seconds to read.
        """
        import pandas as pd

        tasks = [task for (task,) in self.query("SELECT DISTINCT task FROM tasks ORDER BY task")]
        rows = []
        for number, task in enumerate(tasks):
            rows += self.query(
                "SELECT ?, scoring, example, mask, score, logprob, margin, text FROM results "
                "WHERE (scoring, example) IN (SELECT scoring, example FROM tasks WHERE task = ?)",
                (number, task),
            )
        of_task, scoring, example, mask, score, logprob, margin, text = zip(*rows, strict=True) if rows else ((),) * 8
        scorings = dict(self.query("SELECT id, identity FROM scorings"))
        examples = {number: more for number, *more in self.query("SELECT id, identity, prompt FROM examples")}
        grid = self.grid
        off = {number: key_in_words(grid, key) for number, key in self.query("SELECT id, bits FROM masks")}
        columns = {
            "task": _category(of_task, dict(enumerate(tasks))),
            "scoring": _category(scoring, scorings),
            "example": _category(example, {number: identity for number, (identity, _) in examples.items()}),
            "prompt": _category(example, {number: prompt for number, (_, prompt) in examples.items()}),
            "ablated": _category(mask, {number: heads for number, (heads, _) in off.items()}),
            "n_ablated": np.array([off[number][1] for number in mask], dtype=int),
            "score": np.array(score, dtype=float),
            "logprob": np.array(logprob, dtype=float),
            "margin": np.array(margin, dtype=float),
            "text": pd.Series(text, dtype=object),
        }
        return pd.DataFrame(columns)

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
        with self._turn, self._errors("read"):
            return self._connection.execute(sql, values).fetchall()

    def __fspath__(self) -> str:
        return str(self.path)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection to write with: all of the block is committed at its end, or nothing where it raises.

        Raises:
            StoreError: The store cannot be written.
            BrokenStoreError: The file is no store, or no longer a whole one.
        """
        with self._turn, self._errors("written"):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

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
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or monotonic() > until:
                    raise
                sleep(0.01)

    def _is_empty(self) -> bool:
        ((tables,),) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        return not tables and not self.format()

    def _create(self, study: Mapping[str, Any]) -> None:
        with self.transaction() as connection:
            # Another process may have been first.
            if not self._is_empty():
                return
            for statement in _SCHEMA.split(";")[:-1]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            rows = [(field, json.dumps(value)) for field, value in study.items()]
            connection.executemany("INSERT INTO study VALUES (?, ?)", rows)

    def format(self) -> int:
        """Version of the file's layout."""
        ((version,),) = self._connection.execute("PRAGMA user_version").fetchall()
        return int(version)

    def _check_format(self, upgrade: bool) -> None:
        with self._errors("read"):
            ((application,),) = self._connection.execute("PRAGMA application_id").fetchall()
            version, empty = self.format(), self._is_empty()
        if empty:
            raise ValueError(f"store {str(self.path)!r} is empty: nothing was ever kept in it")
        if application != _APPLICATION:
            raise ValueError(f"store {str(self.path)!r} is no store of cs-heads: it is another SQLite database")
        if version > FORMAT:
            raise ValueError(
                f"store {str(self.path)!r} has format {version}; this version of cs-heads reads up to {FORMAT}: "
                "update cs-heads"
            )
        if version < FORMAT and not upgrade:
            self.query(_READ_AS[version])
        while upgrade and version < FORMAT:
            with self.transaction() as connection:
                # Another process may have been first.
                version = self.format()
                if version < FORMAT:
                    for statement in _UPGRADES[version].split(";"):
                        connection.execute(statement)
                    version += 1
                    connection.execute(f"PRAGMA user_version = {version}")
        there = {name for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
        missing = [name for name in re.findall(r"CREATE TABLE (\w+)", _SCHEMA) if name not in there]
        if missing:
            raise StoreError(
                f"store {str(self.path)!r} was laid out before the first release (it has no table "
                f"{', '.join(missing)}), and cannot be read: give this study another file"
            )

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """What SQLite says, in the words of the library."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"store {str(self.path)!r} cannot be {doing}: {error}; what it holds is kept") from error
        except sqlite3.ProgrammingError as error:
            raise ValueError(f"store {str(self.path)!r} is closed: open it, or make its experiment, again") from error
        except sqlite3.DatabaseError as error:
            raise BrokenStoreError(
                f"store {str(self.path)!r} is no store of cs-heads, or a broken one: {error}"
            ) from error


def _category(numbers: tuple[int, ...], texts: dict[int, str]) -> pd.Categorical:
    """A text a row, by its number, each kept once."""
    import pandas as pd

    kinds = pd.Index(list(dict.fromkeys(texts.values())), dtype=object)
    return pd.Categorical([texts[number] for number in numbers], categories=kinds)


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Fields of which a study has another value, those inside a field by their path; None is one that is not there."""
    for field in (*here, *(field for field in there if field not in here)):
        one, other = there.get(field), here.get(field)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from ((f"{field}.{inner}", *values) for inner, *values in _differences(one, other))
        elif one != other or (field in there) != (field in here):
            yield field, one, other


def _connect(path: Path, options: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}",
            uri=True,
            timeout=_PATIENCE,
            isolation_level=None,
            # Closed by the garbage collector, in whatever thread that runs.
            check_same_thread=False,
        )
    except sqlite3.OperationalError as error:
        raise StoreError(f"store {str(path)!r} cannot be opened: {error}") from error
