"""Tables of one's own: what becomes of words, numbers and gaps, and how a report shows them."""

import csv
import json
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seepage.audit.run import run
from seepage.errors import SeepageError
from seepage.federation.data import TableDataset, TextDataset, load
from seepage.federation.data.columns import NO_VALUE, Column
from seepage.federation.transcript.truth import Truth, open_truth, save_truth
from seepage.federation.types import Reconstruction
from seepage.measure.metrics import Limits, Yardstick, score
from seepage.measure.metrics.rows import NAMES as ROW_METRICS
from seepage.report import write_report

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), min_size=1, max_size=8)
LOANS = (
    "age,income,region,debt,default\n"
    "30,1000.5,north,,no\n"
    "50,2000,south,70.25,yes\n"
    "41,1500,south,NA,no\n"
    "33,1200.75,<b>Leer</b>,12,yes\n"
)


def write_loans(folder: Path, content: str = LOANS, name: str = "loans.csv") -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


def words_of(data: TableDataset, place: int) -> list[str]:
    parts = data.rows[place].split([column.width for column in data.columns])
    return [column.words(part) for column, part in zip(data.columns, parts, strict=True)]


@given(st.lists(st.integers(-(10**6), 10**6).map(str) | st.just(""), min_size=1, max_size=12))
def test_whole_numbers_and_gaps_come_back_as_they_were(cells: list[str]) -> None:
    column = Column.of("n", cells)
    encoded = column.encoded(cells)
    assert encoded.min() >= 0
    assert encoded.max() <= 1
    read = [column.words(row) for row in encoded]
    assert [word == NO_VALUE for word in read] == [not cell for cell in cells]
    # float32 holds seven digits of a number's place between the least and the largest.
    known = [(int(word), int(cell)) for word, cell in zip(read, cells, strict=True) if cell]
    assert all(abs(a - b) <= 1e-6 * (column.high - column.low) for a, b in known)


@given(st.lists(WORDS, min_size=1, max_size=12))
def test_words_come_back_as_they_were(cells: list[str]) -> None:
    cells = [f"w{cell}" for cell in cells]  # no number and no gap
    column = Column.of("w", cells)
    encoded = column.encoded(cells)
    assert torch.equal(encoded.sum(1), torch.ones(len(cells)))
    assert [column.words(row) for row in encoded] == cells


def test_a_table_becomes_numbers(tmp_path: Path) -> None:
    data = load(write_loans(tmp_path), label_column="default", split=0.5)
    assert isinstance(data, TableDataset)
    assert data.classes == ("no", "yes")
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.input_shape == (1 + 1 + 3 + 2,)
    # By hand: (50 - 30) / 20, (2000 - 1000.5) / 999.5, south of <b>Leer</b>, north, south, (70.25 - 12) / 58.25, known.
    assert data.rows[1].tolist() == pytest.approx([1, 1, 0, 0, 1, 1, 0])
    assert data.rows[0].tolist() == pytest.approx([0, 0, 0, 1, 0, 0.5, 1])
    assert words_of(data, 3) == ["33", "1200.75", "<b>Leer</b>", "12"]
    assert words_of(data, 2) == ["41", "1500", "south", NO_VALUE]
    assert "1 with gaps" in data.source


def test_a_mark_among_numbers_is_a_gap_and_among_words_a_word(tmp_path: Path) -> None:
    data = load(
        write_loans(tmp_path, LOANS.replace("NA", "?").replace(",12,", ",-,")), label_column="default", split=0.5
    )
    assert isinstance(data, TableDataset)
    assert data.input_shape == (1 + 1 + 3 + 2,)
    assert data.rows[:, -1].tolist() == [1, 0, 1, 1]
    signs = Column.of("sign", ["+", "-", "?"])
    assert signs.categories == ("+", "-", "?")
    commas = load(write_loans(tmp_path, "a;y\n1,5;0\n-;1\n2,5;0\n", "de.csv"), label_column="y")
    assert isinstance(commas, TableDataset)
    assert commas.rows.tolist() == [[0, 0], [0.5, 1], [1, 0]]


def test_a_run_says_what_it_took_for_words(tmp_path: Path) -> None:
    rows = "".join(f"{place},k{place % 24},{place % 2}\n" for place in range(48))
    path = write_loans(tmp_path, f"age,client,y\n{rows}", "k.csv")
    tables = {"data": {"use": path, "label_column": "y"}, "model": {"use": "fc2", "hidden": 8}, "batch": {"size": 1}}
    made = run({**tables, "training": {"steps": 0}, "attack": [{"use": "linear"}]}, out=tmp_path / "run", jobs=1)
    (case,) = made.result.cases
    assert "24 of the 25 places" in case.inferred["columns"]
    assert "client" not in case.inferred["columns"]


def test_semicolons_tabs_and_decimal_commas(tmp_path: Path) -> None:
    plain = load(write_loans(tmp_path), label_column="default")
    comma = load(write_loans(tmp_path, LOANS.replace(",", ";").replace(".", ","), "de.csv"), label_column="default")
    tabs = load(write_loans(tmp_path, LOANS.replace(",", "\t"), "loans.tsv"), label_column="default")
    assert isinstance(plain, TableDataset)
    assert isinstance(comma, TableDataset)
    assert isinstance(tabs, TableDataset)
    assert torch.equal(plain.rows, comma.rows)
    assert torch.equal(plain.rows, tabs.rows)


def test_parquet_holds_the_same_table(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    plain = load(write_loans(tmp_path), label_column="default")
    rows = list(csv.DictReader(LOANS.splitlines()))
    columns = {
        "age": [int(row["age"]) for row in rows],
        "income": [float(row["income"]) for row in rows],
        "region": [row["region"] for row in rows],
        "debt": [None, 70.25, None, 12.0],
        "default": [row["default"] for row in rows],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "loans.parquet")
    found = load(str(tmp_path / "loans.parquet"), label_column="default")
    assert isinstance(plain, TableDataset)
    assert isinstance(found, TableDataset)
    assert torch.equal(plain.rows, found.rows)
    assert [column.name for column in found.columns] == ["age", "income", "region", "debt"]


def test_a_csv_of_texts_is_still_text(tmp_path: Path) -> None:
    file = write_loans(tmp_path, "text,y\none two three,a\nfour five six,b\n", "notes.csv")
    assert isinstance(load(file), TextDataset)
    other = write_loans(tmp_path, "note,y\none two three,a\nfour five six,b\n", "other.csv")
    assert isinstance(load(other, column="note"), TextDataset)
    assert isinstance(load(other, label_column="y"), TableDataset)


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (LOANS, {}, r"column of the class .*'age', 'income'"),
        (LOANS, {"label_column": "nope"}, "has no column 'nope'"),
        (LOANS, {"label_column": "default", "drop": ["nope"]}, "no column 'nope' to drop"),
        (LOANS, {"label_column": "default", "size": 8}, "have no data.size"),
        (LOANS, {"label_column": "debt"}, "row 1 .* has no class in 'debt'"),
        ("age,y\n", {"label_column": "y"}, "no rows under its head"),
        ("y\na\nb\n", {"label_column": "y"}, "no column beside the class"),
        ("age,age,y\n1,2,a\n", {"label_column": "y"}, "two columns 'age'"),
        ("age,y\n1,a\n1,2,3\n", {"label_column": "y"}, "row 2 .* has 3 cells and the head 2"),
        ("age,y\ninf,a\n1,b\n", {"label_column": "y"}, "infinite"),
        ('age,y\n"1,a\n', {"label_column": "y"}, "cannot be read as a table"),
        ("id,y\n" + "".join(f"p{i},a\n" for i in range(101)), {"label_column": "y"}, r"101 .*data\.drop="),
        ("age,y\n" + "".join(f"1,{i}.5\n" for i in range(101)), {"label_column": "y"}, "101 different cells"),
    ],
)
def test_bad_tables_are_told_in_one_sentence(
    tmp_path: Path, content: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(SeepageError, match=words):
        load(write_loans(tmp_path, content), **options)  # type: ignore[arg-type]


def test_numbers_whose_span_is_beyond_all_numbers_are_scaled_all_the_same(tmp_path: Path) -> None:
    data = load(write_loans(tmp_path, "a,y\n-1e308,no\n1e308,yes\n0,no\n5e307,yes\n"), label_column="y")
    assert isinstance(data, TableDataset)
    assert data.rows[:, 0].tolist() == pytest.approx([0.0, 1.0, 0.5, 0.75])
    assert float(words_of(data, 0)[0]) == -1e308
    assert float(words_of(data, 2)[0]) == 0


def test_a_lone_carriage_return_ends_a_line(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_bytes(LOANS.replace("\n", "\r").encode())
    old, plain = (
        load(str(tmp_path / "old.csv"), label_column="default"),
        load(write_loans(tmp_path), label_column="default"),
    )
    assert isinstance(old, TableDataset)
    assert isinstance(plain, TableDataset)
    assert torch.equal(old.rows, plain.rows)


@pytest.mark.parametrize("kind", ["date32", "timestamp", "duration"])
def test_dates_beyond_the_calendar_are_a_sentence(kind: str, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    far = arrow.array([2**31 - 1], arrow.int32()) if kind == "date32" else arrow.array([2**62], arrow.int64())
    kinds = {"date32": arrow.date32(), "timestamp": arrow.timestamp("us"), "duration": arrow.duration("s")}
    parquet.write_table(arrow.table({"a": far.cast(kinds[kind]), "y": ["no"]}), tmp_path / "far.parquet")
    with pytest.raises(SeepageError, match="cannot be read as Parquet"):
        load(str(tmp_path / "far.parquet"), label_column="y")


def test_a_small_file_of_very_many_rows_is_refused_before_it_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"a": [0] * 600, "y": [0] * 600}), tmp_path / "long.parquet")
    monkeypatch.setattr("seepage.federation.data.table_files.MAX_CELLS", 1000)
    with pytest.raises(SeepageError, match="600 rows of 2 columns"):
        load(str(tmp_path / "long.parquet"), label_column="y")


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.parquet"])
def test_a_file_larger_than_is_read_is_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**28 + 1)  # takes no room on the disk
    with pytest.raises(SeepageError, match="256 MiB"):
        load(str(tmp_path / name), label_column="y")


@pytest.mark.parametrize("limit", [10**400, float("nan"), float("inf")])
def test_a_damaged_column_is_refused(limit: float) -> None:
    with pytest.raises(SeepageError, match="limits of a column"):
        Column.read({**Column("age").record(), "categories": [], "high": limit})


def test_bytes_that_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"age,y\n\xff\xfe,1\n")
    with pytest.raises(SeepageError, match="UTF-8"):
        load(str(tmp_path / "a.csv"), label_column="y")
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SeepageError, match="cannot be read as Parquet"):
        load(str(tmp_path / "a.parquet"), label_column="y")


def test_a_report_shows_records_in_their_own_words(tmp_path: Path) -> None:
    tables = {
        "data": {"use": write_loans(tmp_path), "label_column": "default", "split": 1.0},
        "model": {"use": "fc2"},
        "batch": {"size": 1, "count": 4},
        "training": {"steps": 0},
        "attack": [{"use": "linear"}],
    }
    found = run(tables, out=tmp_path / "run", jobs=1)
    row = found.result.rows[0]
    assert row.mean("exact") == 1.0
    assert [row.mean(name) for name in ROW_METRICS] == [1.0, 1.0, 1.0]
    assert "columns of words" in row.known
    assert any(
        "of 4 rows each column of words was right in 4" in note for note in row.notes
    )  # how often each column was right
    page = write_report(found.folder).read_text(encoding="utf-8")
    for said in ("1200.75", "south", NO_VALUE):
        assert f"<strong><bdi>{said}</bdi></strong>" in page
    assert "<strong><bdi>&lt;b&gt;Leer&lt;/b&gt;</bdi></strong>" in page
    assert "linear 4 of 4" in page
    words = page.partition('id="made"')[0]
    assert "picture" not in words.replace("pictures, pixel", "")
    assert "SSIM" not in words
    hidden = write_report(found.folder, pictures=False).read_text(encoding="utf-8")
    # What columns are called and what is in them is the owner's: private/ has it, and the page with records.
    for place in [hidden, (found.folder / "result.json").read_text(), json.dumps(_observed(found.folder))]:
        assert not any(word in place for word in ("income", "1200.75", "Leer"))


def _observed(folder: Path) -> list[str]:
    return [path.read_bytes().decode("latin-1") for path in (folder / "observed").rglob("*") if path.is_file()]


def test_what_other_rows_say_is_no_recovery(tmp_path: Path) -> None:
    # Columns that hardly vary: the mean of other rows is close to each, and a guess of it must not count.
    lines = [f"{1000 + place % 3},{'a' if place % 9 else 'b'},{place % 2}" for place in range(40)]
    file = write_loans(tmp_path, "\n".join(["x,word,y", "0,b,0", "2000,b,1", *lines]))
    data = load(file, label_column="y")
    assert isinstance(data, TableDataset)
    truth = data.batch(data.private[:8])
    typical = data.typical
    assert typical is not None
    assert torch.allclose(typical, data.rows[data.train].mean(0))
    guess = Reconstruction(typical.expand(8, -1).clone())
    wide = Limits(gain_db=3.0)
    assert score(guess, truth, Yardstick(limits=wide)).recovered == 0.75  # by the own mean alone
    found = score(guess, truth, Yardstick(typical=typical, limits=wide))
    assert found.recovered == 0
    assert found.gain_db <= 0
    assert score(Reconstruction(truth.inputs), truth, Yardstick(typical=typical)).recovered == 1
    save_truth(Truth((truth,), typical=typical), tmp_path)
    kept = open_truth(tmp_path).typical
    assert kept is not None
    assert torch.equal(kept, typical)


def test_rows_of_an_npz_score_a_captured_update(tmp_path: Path) -> None:
    rows, labels = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)).numpy(), [0, 1, 0]
    numpy.savez(tmp_path / "batch.npz", x=rows, y=labels)
    data = load(str(tmp_path / "batch.npz"), split=1.0)
    assert isinstance(data, TableDataset)
    assert torch.equal(data.batch(torch.arange(3)).inputs, torch.from_numpy(rows))
    assert data.input_shape == (5,)
    numpy.savez(tmp_path / "values.npz", x=rows, y=numpy.float32([0.5, 2, 3]))
    assert load(str(tmp_path / "values.npz"), split=1.0).batch(torch.arange(3)).labels.dtype == torch.float32
    numpy.savez(tmp_path / "wide.npz", x=10 * rows, y=labels)
    with pytest.raises(SeepageError, match=r"must lie in \[0, 1\]"):
        load(str(tmp_path / "wide.npz"))
