"""Local files in the forms that authors publish, as rows in the columns of the hub."""

import bz2
import gzip
import io
import json
import zipfile
from dataclasses import replace

import pytest

from cs_heads.tasks.data_files import files_in, rows_of
from cs_heads.tasks.local_data import Wanted, read_splits
from cs_heads.tasks.published import FORMS, converted, six_lines_each

ROWS = [{"question": f"Wo ist Nummer {i}, ünd warum?", "answer": i} for i in range(3)]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def wanted(**changes) -> Wanted:
    return replace(Wanted("quiz", "test", shots=None, dataset=None, part=None, names=("quiz", "part")), **changes)


def rows_in(path) -> list[dict]:
    return [row for file in files_in(path) for row in rows_of(file)]


# Every way in gives the same rows


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", JSONL.encode()),
        ("a.jsonl", JSONL.encode("utf-8-sig")),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", json.dumps({"version": 1, "data": ROWS}).encode()),
        ("a.json", json.dumps({"examples": ROWS, "keywords": []}).encode()),
        ("a.jsonl.bz2", bz2.compress(JSONL.encode())),
        ("a.jsonl.gz", gzip.compress(JSONL.encode())),
    ],
    ids=["jsonl", "with a byte order mark", "json", "under data", "under examples", "bz2", "gz"],
)
def test_rows_are_the_same_in_every_format(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert rows_in(tmp_path / name) == ROWS


def test_a_parquet_file_is_its_rows(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is an extra")
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "a.parquet")
    assert rows_in(tmp_path / "a.parquet") == ROWS


def test_a_csv_file_is_its_rows_as_texts(tmp_path):
    (tmp_path / "a.csv").write_text('question,answer\n"One, or\ntwo?",1\n', encoding="utf-8")
    assert rows_in(tmp_path / "a.csv") == [{"question": "One, or\ntwo?", "answer": "1"}]


# Which file is taken


@pytest.mark.parametrize(
    "name",
    [
        "quiz_test.jsonl",
        "part-Test.jsonl",
        "quiz.jsonl",
        "test.jsonl",
        "quiz/test.jsonl",
        "quiz_test_full.jsonl",
        "test_first1000.jsonl",
    ],
)
def test_a_file_is_found_by_task_and_split_in_folders_and_archives(tmp_path, name):
    path = tmp_path / "folder" / name
    path.parent.mkdir(parents=True)
    path.write_text(JSONL, encoding="utf-8")
    (tmp_path / "folder" / "other.jsonl").write_text('{"not": "this"}\n', encoding="utf-8")
    assert read_splits(wanted(), tmp_path / "folder") == {"test": ROWS}
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(path, f"data/{name}")
        archive.writestr("data/other.jsonl", '{"not": "this"}\n')
    assert read_splits(wanted(), tmp_path / "all.zip") == {"test": ROWS}


def test_splits_of_several_data_sets_are_not_one(tmp_path):
    for name in ("birds", "bees"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text(JSONL, encoding="utf-8")
    with pytest.raises(ValueError, match=r"'test'; .*; it has bees/test\.jsonl, birds/test\.jsonl"):
        read_splits(wanted(), tmp_path)
    assert read_splits(wanted(), tmp_path / "bees") == {"test": ROWS}


def test_a_folder_with_an_archive_and_no_data_is_read_as_the_archive(tmp_path):
    def packed(name):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("data/quiz_test.jsonl", JSONL)

    (tmp_path / "README").write_text("how it was made", encoding="utf-8")
    packed("one.zip")
    assert read_splits(wanted(), tmp_path) == {"test": ROWS}
    packed("two.zip")
    with pytest.raises(ValueError, match=r"it has one\.zip, two\.zip: point data_files= at what is meant"):
        read_splits(wanted(), tmp_path)


def test_a_file_of_something_else_is_not_taken_for_a_part_of_a_split(tmp_path):
    for name in ("birds_test.jsonl", "quiz_more.jsonl", "tests.jsonl"):
        (tmp_path / name).write_text(JSONL, encoding="utf-8")
    with pytest.raises(ValueError, match="has no file for split 'test'"):
        read_splits(wanted(), tmp_path)


def test_splits_have_files_of_their_own_or_share_one(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text(JSONL, encoding="utf-8")
    two.write_text('{"question": "other", "answer": 9}\n', encoding="utf-8")
    by_split = read_splits(wanted(shots="train"), {"test": one, "train": [two, one], "validation": "gone"})
    assert by_split == {"test": ROWS, "train": [{"question": "other", "answer": 9}, *ROWS]}
    assert read_splits(wanted(shots="train"), one) == {"test": ROWS, "train": ROWS}


def test_a_split_without_a_file_is_named_with_what_is_looked_for(tmp_path):
    with pytest.raises(ValueError, match=r"'quiz': .* no file for split 'test'; looked for quiz_test, part_test"):
        read_splits(wanted(), tmp_path)
    with pytest.raises(ValueError, match="data_files for task 'quiz' must name the splits test, train; got test"):
        read_splits(wanted(shots="train"), {"test": "a"})


# The forms of the authors


def hub(dataset: str, *rows: dict) -> list[dict]:
    return converted(list(rows), FORMS[dataset], "here")


def lines(*texts: str) -> list[dict]:
    return [{"line": line} for line in texts]


def test_hellaswag_is_cut_where_its_last_sentence_begins():
    texts = {
        "Cutting grass: A man stands. He waits! the man in red": ("A man stands. He waits!", "the man in red"),
        "How to knit: Take wool. Knit it.": ("Take wool. Knit it.", ""),
        "Diving: They dive. He said so": ("They dive. He said so", ""),
    }
    found = lines(*(line for text in texts for line in (text, "2", "a.", "b.", "c.", "d. ")), "")
    rows = hub("hellaswag", *six_lines_each(found, "here"))
    assert [(row["ctx_a"], row["ctx_b"]) for row in rows] == list(texts.values())
    assert (rows[0]["activity_label"], rows[0]["label"]) == ("Cutting grass", "2")
    assert rows[0]["endings"] == ["a.", "b.", "c.", "d. "]


SCHOOL = {"stem": "Why?", "choices": [{"text": "so", "label": "A"}, {"text": "no", "label": "B"}]}
HUB = {"question": "Why?", "choices": {"label": ["A", "B"], "text": ["so", "no"]}, "answerKey": "B"}


@pytest.mark.parametrize(
    ("dataset", "row", "converted"),
    [
        ("allenai/ai2_arc", {"id": "1", "question": SCHOOL, "answerKey": "B"}, {"id": "1", **HUB}),
        ("tau/commonsense_qa", {"id": "1", "question": SCHOOL, "answerKey": "B"}, {"id": "1", **HUB}),
        ("tau/commonsense_qa", {"question": "Why?", "choices": ["so", "no"], "answer": 1}, HUB),
        ("tau/commonsense_qa", HUB, HUB),
        ("super_glue/boolq", {"answer": True}, {"answer": True, "label": 1}),
        ("super_glue/boolq", {"label": False}, {"label": 0}),
        ("openai/gsm8k", {"answer": "#### 1,000"}, {"answer": "#### 1,000"}),
    ],
)
def test_rows_of_the_authors_come_into_the_columns_of_the_hub(dataset, row, converted):
    (found,) = hub(dataset, row)
    assert found == converted
    assert {type(value) for value in found.values()} == {type(value) for value in converted.values()}


FOUR = {"question": "Why?", "choices": ["so", "no", "if", "as"], "answer": 3}
LETTERED = {"question": "Why?", **dict.fromkeys("ABCD", "so"), "letter": "D"}


@pytest.mark.parametrize(
    ("dataset", "row", "fault"),
    [
        *(
            ("tau/commonsense_qa", FOUR | {"answer": wrong}, "must be one of 0, 1, 2, 3")
            for wrong in (4, -1, True, "B")
        ),
        *(("cais/mmlu", LETTERED | {"letter": wrong}, "must be one of A, B, C, D") for wrong in ("E", "", "AB")),
        *(("cais/mmlu", FOUR | {"choices": wrong}, "a list of four texts") for wrong in (["a"] * 3, ["a"] * 5, "abcd")),
        ("openai/gsm8k", {"answer": "So 3."}, "a worked solution that ends in"),
        ("hellaswag", {"lines": ["no colon", "0", "c", "d", "e", "f"]}, "begins with 'activity: context'"),
        ("hellaswag", {"lines": ["A: b", "4", "c", "d", "e", "f"]}, "number of an ending, 0 to 3; got 'A: b' and '4'"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named_with_its_number(dataset, row, fault):
    with pytest.raises(ValueError, match=f"^here, record 0: .*{fault}"):
        hub(dataset, row)


def test_lines_of_hellaswag_are_six_a_record_and_columns_that_are_missing_are_named(tmp_path):
    with pytest.raises(ValueError, match="6 lines, and 5 lines are no multiple of it"):
        six_lines_each(lines("A: b", "0", "c", "d", "e"), "here")
    (tmp_path / "quiz.jsonl").write_text(json.dumps({"choices": ["so", "no"], "answer": 0}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"record 0: lacks what is read, and has choices, answer: 'question'"):
        read_splits(wanted(dataset="tau/commonsense_qa"), tmp_path / "quiz.jsonl")


def test_mmlu_is_read_without_a_heading(tmp_path):
    (tmp_path / "birds_test.csv").write_text('"What, now?",a,b,"c, or d",d,C\n', encoding="utf-8")
    birds = wanted(dataset="cais/mmlu", part="birds", names=("mmlu_birds", "birds"))
    row = {"question": "What, now?", "choices": ["a", "b", "c, or d", "d"], "answer": 2}
    assert read_splits(birds, tmp_path) == {"test": [row]}
    for line, message in (("q,a,b,c,d,E", "one of A, B, C, D, got 'E'"), ("q,a,b,c,d", "line 1: 5 fields, expected 6")):
        (tmp_path / "birds_test.csv").write_text(f"{line}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_splits(birds, tmp_path)


# Malformed files


def spoilt(content: bytes, place: int) -> bytes:
    """Content with eight bytes of it turned."""
    return content[:place] + bytes(255 - byte for byte in content[place : place + 8]) + content[place + 8 :]


def zipped(flags: int = 0) -> bytes:
    """An archive of one file, ``flags`` set in both of its headings."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", JSONL * 50)
    content = bytearray(made.getvalue())
    content[6] |= flags
    content[content.rindex(b"PK\1\2") + 8] |= flags
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a"\n', r"data file '.*a\.jsonl', line 2: not JSON"),
        ("a.jsonl", b'{"a": 1}\n[2]\n', "line 2: must be an object with the columns of a row"),
        ("a.jsonl", b"\n \n", "is empty"),
        ("a.json", b'"text"', "must hold a JSON list of objects, got str"),
        ("a.json", b"[1]", "record 0: must be an object"),
        ("a.csv", b"a,b\n1,2\n3\n", "line 3: 1 fields, expected 2"),
        ("a.jsonl", b"\xff\xfe", "is not UTF-8 text"),
        ("a.xml", b"<a/>", r"must end in \.jsonl, \.json, \.csv, \.parquet, \.txt, or in these and \.bz2 or \.gz"),
        ("a.jsonl.gz", b"no gzip", "cannot be read: Not a gzipped file"),
        ("a.jsonl.bz2", b"no bzip2", "cannot be read: Invalid data stream"),
        ("a.jsonl.gz", spoilt(gzip.compress(JSONL.encode() * 50), 20), "'.*a.jsonl.gz' cannot be read: "),
        ("a.zip", spoilt(zipped(), 45), "'a.jsonl' cannot be read: "),
        ("a.zip", zipped(flags=1), "'a.jsonl' cannot be read: .* is encrypted, password required"),
        ("a.zip", b"no zip", "is no zip archive that can be read"),
        ("a.parquet", b"no parquet", "is no Parquet file that can be read"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        rows_in(tmp_path / name)
