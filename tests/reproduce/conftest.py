"""A tiny study on a model whose working heads are known."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from cs_heads.engine import Engine
from cs_heads.reproduce import PAPERS, PaperSettings, Reproduction, load_tasks
from cs_heads.tasks.function_vectors import INSTRUCTIONS
from tests.known_heads import hopeless_records, own_answers, word_records

TINY = PaperSettings(
    n=40,
    n_masks=(24,),
    densities=(0.17,),
    k=2,
    max_heads=3,
    n_unseen=20,
    n_universal=20,
    budget=1500,
    n_seeds=2,
    steps=20,
    batch_size=4,
    n_pairs=4,
)
CS_TASKS = ("gsm8k", "arithmetic", "swearing", "boolq")
WORDS = ("function_vectors/antonym", "function_vectors/present-past")


@pytest.fixture(scope="session")
def data(load_known, tmp_path_factory):
    """Files named as tasks of the papers, with what the tiny model itself says; one that it cannot do."""
    folder = tmp_path_factory.mktemp("data")
    for seed, name in enumerate((*CS_TASKS, "commonsense_qa", "openmathinstruct2")):
        write(folder / f"{name}.jsonl", own_answers(load_known(), 70, seed))
    write(folder / "mbpp.jsonl", hopeless_records(70))
    (folder / "function_vectors").mkdir()
    for seed, name in enumerate(WORDS):
        write(folder / f"{name}.jsonl", word_records(load_known(), 70, INSTRUCTIONS[name.rpartition("/")[2]], seed))
    return folder


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


@pytest.fixture
def study(load_known, data, tmp_path):
    def made(paper="cs", names=CS_TASKS, **changed):
        tasks, _ = load_tasks(PAPERS[paper], "tiny", list(names), data=data, n=40)
        settings = replace(TINY, **changed)
        return Reproduction(
            load_known(), PAPERS[paper], tasks, settings, tmp_path / "out", measuring={"progress": False}
        )

    return made


@pytest.fixture
def rows(monkeypatch):
    """How many (mask, example) pairs every engine is asked for; Ctrl-C beyond ``limit`` of its calls."""

    class Rows(list):
        limit = 10**9

    asked, run = Rows(), Engine.run

    def counted(self, masks, examples, *arguments, **options):
        asked.append(len(examples))
        if len(asked) > asked.limit:
            raise KeyboardInterrupt
        return run(self, masks, examples, *arguments, **options)

    monkeypatch.setattr(Engine, "run", counted)
    return asked


def table(study, name):
    return pd.read_csv(study.out / f"{name}.csv")
