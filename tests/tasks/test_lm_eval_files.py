"""Local files in the forms that authors publish, as rows in the columns of the hub."""

import bz2
import gzip
import io
import json
import zipfile

import pytest

from cs_heads.tasks.data_files import files_in, rows_of
from cs_heads.tasks.published import (
    arc,
    arithmetic,
    bigbench,
    boolq,
    commonsense_qa,
    gsm8k,
    hellaswag,
    lettered,
    openmath,
)
from cs_heads.tasks.splits import Wanted, read_splits

ROWS = [{"question": f"Wo ist Nummer {i}, ünd warum?", "answer": i} for i in range(3)]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


def wanted(**changes) -> Wanted:
    settings = {
        "task": "quiz",
        "split": "test",
        "shots": None,
        "dataset": None,
        "part": None,
        "names": ("quiz", "part"),
    }
    return Wanted(**{**settings, **changes})


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
    with pytest.raises(
        ValueError, match=r"has no file for split 'test'; .*; it has bees/test\.jsonl, birds/test\.jsonl"
    ):
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
    with pytest.raises(
        ValueError, match=r"task 'quiz': .* has no file for split 'test'; looked for quiz_test, part_test"
    ):
        read_splits(wanted(), tmp_path)
    with pytest.raises(ValueError, match="data_files for task 'quiz' must name the splits test, train; got test"):
        read_splits(wanted(shots="train"), {"test": "a"})


# The forms of the authors


def test_hellaswag_is_cut_where_its_last_sentence_begins():
    texts = [
        "Cutting grass: A man stands. He waits! the man in red",
        "How to knit: Take wool. Knit it.",
        "Diving: They dive. He said so",
    ]
    lines = [line for text in texts for line in (text, "2", "a.", "b.", "c.", "d.")]
    rows = hellaswag([{"line": line} for line in [*lines, ""]])
    assert [(row["activity_label"], row["ctx_a"], row["ctx_b"]) for row in rows] == [
        ("Cutting grass", "A man stands. He waits!", "the man in red"),
        ("How to knit", "Take wool. Knit it.", ""),
        ("Diving", "They dive. He said so", ""),
    ]
    assert rows[0]["endings"] == ["a.", "b.", "c.", "d."]
    assert rows[0]["label"] == "2"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["A: b", "0", "c", "d", "e"], "a HellaSwag record has 6 lines, and 5 lines are no multiple of it"),
        (["no colon", "0", "c", "d", "e", "f"], "line 1: a HellaSwag record begins with 'activity: context'"),
        (["A: b", "4", "c", "d", "e", "f"], "the number of an ending, 0 to 3; got 'A: b' and '4'"),
    ],
)
def test_malformed_hellaswag_is_refused(lines, message):
    with pytest.raises(ValueError, match=message):
        hellaswag([{"line": line} for line in lines])


def test_arc_and_commonsense_qa_come_into_the_columns_of_the_hub():
    row = {"question": {"stem": "Why?", "choices": [{"text": "so", "label": "A"}, {"text": "no", "label": "B"}]}}
    hub = {"question": "Why?", "choices": {"label": ["A", "B"], "text": ["so", "no"]}, "answerKey": "B"}
    for convert in (arc, commonsense_qa):
        (converted,) = convert([{**row, "id": "1", "answerKey": "B"}])
        assert {key: converted[key] for key in hub} == hub
    assert commonsense_qa([{"question": "Why?", "choices": ["so", "no"], "answer": 1}]) == [hub]
    assert arc([hub]) == commonsense_qa([hub]) == [hub]


def test_boolq_says_yes_by_a_one():
    rows = [{"question": "is it", "passage": "It is.", "answer": answer} for answer in (True, False)]
    assert [row["label"] for row in boolq(rows)] == [1, 0]
    # A file may have true and false in the hub's column, too.
    labels = [{"question": "is it", "passage": "It is.", "label": label} for label in (True, False, 1, 0)]
    assert [(row["label"], type(row["label"])) for row in boolq(labels)] == [(1, int), (0, int), (1, int), (0, int)]
    with pytest.raises(ValueError, match="record 0: \"label\" must be 0, 1, true or false, got the text 'true'"):
        boolq([labels[0] | {"label": "true"}])
    with pytest.raises(ValueError, match='record 0: "answer" must be true or false, got 1'):
        boolq([{"question": "is it", "passage": "It is.", "answer": 1}])


def test_mmlu_is_read_without_a_heading(tmp_path):
    (tmp_path / "birds_test.csv").write_text('"What, now?",a,b,"c, or d",d,C\n', encoding="utf-8")
    birds = wanted(dataset="cais/mmlu", part="birds", names=("mmlu_birds", "birds"))
    row = {"question": "What, now?", "choices": ["a", "b", "c, or d", "d"], "answer": 2}
    assert read_splits(birds, tmp_path) == {"test": [row]}
    for line, message in (("q,a,b,c,d,E", "one of A, B, C, D, got 'E'"), ("q,a,b,c,d", "line 1: 5 fields, expected 6")):
        (tmp_path / "birds_test.csv").write_text(f"{line}\n", encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            read_splits(birds, tmp_path)


def test_big_bench_answers_are_targets_or_the_best_choices():
    rows = bigbench([{"input": "a", "target": "b"}, {"input": "c", "target_scores": {"d": 0, "e": 1}}])
    assert [row["targets"] for row in rows] == [["b"], ["e"]]
    assert rows[1]["multiple_choice_targets"] == ["d", "e"]
    with pytest.raises(ValueError, match='record 0: a BIG-bench example has "target" or "target_scores"'):
        bigbench([{"input": "a"}])


QUESTION = {"question": "Why?", "choices": ["so", "no", "if", "as"], "answer": 3}


@pytest.mark.parametrize("answer", [4, -1, "B", True, 1.0, None])
@pytest.mark.parametrize("convert", [commonsense_qa, lettered])
def test_a_right_choice_that_is_none_is_named_with_its_record(convert, answer):
    with pytest.raises(ValueError, match=rf"^record 1: the right choice must be one of 0, 1, 2, 3, got {answer!r}$"):
        convert([QUESTION, {**QUESTION, "answer": answer}])


@pytest.mark.parametrize("choices", [["so", "no", "if"], ["so", "no", "if", "as", "or"], "abcd"])
def test_four_choices_are_four(choices):
    with pytest.raises(ValueError, match=r'^record 1: "choices" must be a list of four texts, got '):
        lettered([QUESTION, {**QUESTION, "choices": choices}])


def test_the_letter_of_a_right_choice_is_that_of_a_choice():
    hub = {"question": "Why?", "choices": {"label": ["A", "B"], "text": ["so", "no"]}, "answerKey": "C"}
    own = {"question": {"stem": "Why?", "choices": [{"text": "so", "label": "A"}]}, "answerKey": "B"}
    for row, known in ((hub, "A, B, got 'C'"), (own, "A, got 'B'")):
        for convert in (arc, commonsense_qa):
            with pytest.raises(ValueError, match=f"^record 0: the right choice must be one of {known}$"):
                convert([row])
    with pytest.raises(LookupError, match="record 0: 'answerKey'"):
        arc([{key: value for key, value in own.items() if key != "answerKey"}])


def test_an_answer_of_openmath_may_be_a_number():
    rows = [{"problem": "?", "expected_answer": answer} for answer in (42, 1.5, "x", True)]
    assert [row["expected_answer"] for row in openmath(rows)] == ["42", "1.5", "x", True]


@pytest.mark.parametrize(
    ("convert", "good", "changed", "message"),
    [
        (gsm8k, {"answer": "So 3.\n#### 3"}, {"answer": "So 3."}, '"answer" must be a worked solution that ends in'),
        (gsm8k, {"answer": "#### 1,000"}, {"answer": ""}, "and its result, got ''"),
        (gsm8k, {"answer": "#### 1"}, {"answer": "####"}, "and its result, got '####'"),
        (
            arithmetic,
            {"context": "?", "completion": " 1"},
            {"completion": ""},
            '"completion" must be a text that is not em',
        ),
        (
            hellaswag,
            {"endings": list("abcd"), "label": "1"},
            {"endings": ["a", "b"]},
            '"endings" must be a list of four te',
        ),
        (hellaswag, {"endings": list("abcd"), "label": 3}, {"endings": ["a", "b", "", "d"]}, "none empty, got"),
        (hellaswag, {"endings": list("abcd"), "label": "1"}, {"label": ""}, "the number of an ending, 0 to 3, got ''"),
        (hellaswag, {"endings": list("abcd"), "label": 1}, {"label": 4}, "the number of an ending, 0 to 3, got 4"),
    ],
)
def test_what_a_row_cannot_be_asked_with_is_named_with_its_record(convert, good, changed, message):
    assert convert([good]) == [good]
    with pytest.raises(ValueError, match=f"^record 1: .*{message}"):
        convert([good, {**good, **changed}])


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


def test_columns_that_are_missing_are_named_with_those_there_are(tmp_path):
    (tmp_path / "quiz.jsonl").write_text('{"question": "q", "answer": true}\n', encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"has not the columns of task 'quiz': record 0: 'passage'; its first row has question, a"
    ):
        read_splits(wanted(dataset="aps/super_glue", part="boolq"), tmp_path / "quiz.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "q"}', "record 1: has the columns question, and the first record question, answer"),
        ('{"question": "q", "answer": 1, "more": 2}', "record 1: has the columns question, answer, more"),
        ('{"question": "q", "answer": "1"}', "record 1: column 'answer' holds '1', and in the first record 1; every"),
        ('{"question": "q", "answer": true}', "record 1: column 'answer' holds True, and in the first record 1; every"),
    ],
)
def test_an_answer_that_is_missing_is_not_the_answer_none(tmp_path, line, message):
    good = '{"question": "q", "answer": 1}\n'
    (tmp_path / "one.jsonl").write_text(good, encoding="utf-8")
    (tmp_path / "two.jsonl").write_text(good + line, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"two\.jsonl', {message}"):
        read_splits(wanted(), [tmp_path / "one.jsonl", tmp_path / "two.jsonl"])
