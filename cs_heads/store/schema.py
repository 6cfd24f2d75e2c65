"""The tables of a store, in the format that is written."""

from __future__ import annotations

SCHEMA = """
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
