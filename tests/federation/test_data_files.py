"""Folders and zip archives of image files, honest and hostile ones."""

import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from seepage.errors import SeepageError
from seepage.federation.data import FileDataset, load
from seepage.federation.data.pixels import fit


def picture(seed: int, width: int = 12, height: int = 10, mode: str = "RGB") -> Image.Image:
    shape = (height, width) if mode == "L" else (height, width, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes with two images each, one of them in a deeper folder."""
    root = tmp_path / "pets"
    for place, name in enumerate(("cat/a.png", "cat/deep/b.png", "dog/c.PNG", "dog/d.bmp")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(place).save(path)
    return root


def pixels_of(data: object) -> torch.Tensor:
    assert isinstance(data, FileDataset)
    return data.batch(torch.arange(len(data))).inputs


def test_a_folder_is_its_sub_folders(folder: Path) -> None:
    data = load(str(folder))
    assert isinstance(data, FileDataset)
    assert (data.name, data.classes, data.labels.tolist()) == ("pets", ("cat", "dog"), [0, 0, 1, 1])
    assert data.input_shape == (3, 10, 12)
    assert sorted([*data.train.tolist(), *data.private.tolist()]) == [0, 1, 2, 3]
    oracle = np.stack([np.asarray(picture(place)) for place in range(4)]).transpose(0, 3, 1, 2) / 255
    assert np.allclose(pixels_of(data).numpy(), oracle)
    backwards = data.batch(torch.tensor([3, 0]))
    assert np.allclose(backwards.inputs.numpy(), oracle[[3, 0]])
    assert backwards.labels.tolist() == [1, 0]


def test_what_is_no_image_is_passed_over(folder: Path) -> None:
    (folder / "cat" / ".hidden.png").write_bytes(b"x")
    (folder / "cat" / "notes.txt").write_text("x")
    (folder / "cat" / ".trash").mkdir()
    picture(9).save(folder / "cat" / ".trash" / "old.png")
    (folder / ".git").mkdir()
    (folder / "empty").mkdir()
    picture(9).save(folder / "loose.png")
    data = load(str(folder))
    assert (len(data), data.classes) == (4, ("cat", "dog"))


def test_links_out_of_the_folder_are_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    picture(7).save(secret / "s.png")
    (folder / "cat" / "out.png").symlink_to(secret / "s.png")
    (folder / "cat" / "in.png").symlink_to(folder / "dog" / "c.PNG")
    (folder / "dog" / "far").symlink_to(secret)
    (folder / "spy").symlink_to(secret)
    os.mkfifo(folder / "cat" / "pipe.png")
    data = load(str(folder))
    assert isinstance(data, FileDataset)
    assert data.classes == ("cat", "dog")
    assert data.files == ("cat/a.png", "cat/deep/b.png", "cat/in.png", "dog/c.PNG", "dog/d.bmp")


def test_a_link_to_the_folder_itself_is_fine(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert len(load(str(tmp_path / "link"))) == 4


def test_progress_counts_every_file(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    load(str(folder), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_mixed_sizes_need_a_size(folder: Path) -> None:
    picture(5, 40, 30).save(folder / "dog" / "big.png")
    with pytest.raises(SeepageError, match=r"12x10 \(4\), 40x30 \(1\).*--set data\.size=64"):
        load(str(folder))
    data = load(str(folder), size=8)
    assert data.input_shape == (3, 8, 8)
    big = torch.from_numpy(np.asarray(picture(5, 40, 30)).copy()).permute(2, 0, 1)[None] / 255
    place = list(data.files).index("dog/big.png") if isinstance(data, FileDataset) else -1
    assert (data.batch(torch.tensor([place])).inputs - fit(big, 8, 3)).abs().max() <= 2 / 255


def test_grey_stays_grey_unless_asked(folder: Path) -> None:
    for path in folder.rglob("*.*"):
        picture(1, mode="L").save(path)
    assert load(str(folder)).input_shape == (1, 10, 12)
    repeated = pixels_of(load(str(folder), channels=3))
    assert torch.equal(repeated[:, 0], repeated[:, 2])


def test_one_color_image_makes_the_set_color(folder: Path) -> None:
    picture(1, mode="L").save(folder / "cat" / "a.png")
    assert load(str(folder)).input_shape == (3, 10, 12)
    assert load(str(folder), channels=1).input_shape == (1, 10, 12)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_images_are_turned_upright(folder: Path, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise to see it upright
    ramp = np.zeros((12, 10, 3), dtype=np.uint8)
    ramp[:6] = 255  # bright on top; clockwise that is: bright on the right
    for path in folder.rglob("*.*"):
        path.unlink()
    for place in range(2):
        path = folder / "cat" / f"{place}.{kind.lower()}"
        lossless = {"lossless": True} if kind == "WEBP" else {}
        Image.fromarray(ramp).save(path, kind, exif=exif if kind == "TIFF" else exif.tobytes(), **lossless)
    data = load(str(folder))
    assert data.input_shape == (3, 10, 12)
    image = pixels_of(data)[0]
    assert image[..., 8:].mean() > 0.95
    assert image[..., :4].mean() < 0.05


def test_every_kind_of_pixel_keeps_its_brightness(folder: Path) -> None:
    grey = np.full((10, 12), 0.6)
    palette = Image.fromarray((grey * 255).astype(np.uint8)).convert("P")
    cases = {
        "sixteen.png": Image.fromarray(np.full((10, 12), (153 << 8) + 7, dtype=np.uint16)),
        "alpha.png": Image.new("RGBA", (12, 10), (153, 153, 153, 255)),
        "la.png": Image.new("LA", (12, 10), (153, 255)),
        "palette.gif": palette,
        "see-through.png": palette,
        "cmyk.jpg": Image.new("CMYK", (12, 10), (0, 0, 0, 102)),
        "plain.webp": Image.new("RGB", (12, 10), (153, 153, 153)),
    }
    for name, image in cases.items():
        options = {"transparency": bytes([0, 128, 255])} if name == "see-through.png" else {}
        image.save(folder / "cat" / name, **options)
    data = load(str(folder), channels=1)
    assert isinstance(data, FileDataset)
    for name in cases:
        place = data.files.index(f"cat/{name}")
        assert data.batch(torch.tensor([place])).inputs.mean() == pytest.approx(0.6, abs=0.012), name


def test_black_and_white_reads_as_zero_and_one(folder: Path) -> None:
    Image.new("1", (12, 10), 1).save(folder / "cat" / "a.png")
    assert pixels_of(load(str(folder)))[0].min() == 1


def test_of_an_animation_the_first_frame_counts(folder: Path) -> None:
    frames = [Image.new("RGB", (12, 10), (value, value, value)) for value in (0, 255)]
    frames[0].save(folder / "cat" / "0.gif", save_all=True, append_images=frames[1:])
    assert pixels_of(load(str(folder)))[0].max() == 0


def bomb(width: int, height: int) -> bytes:
    """A PNG that says it is huge."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"0" * 99)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no whole JPEG"),
        (b"not an image at all", "no whole JPEG"),
        (encoded(picture(0))[:20], "Truncated"),
        (bomb(9000, 9000), "pixels"),
        (bomb(12000, 12000), "pixels"),
        (bomb(100_000, 100_000), "pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no whole JPEG"),
        (encoded(Image.new("F", (4, 4)), "TIFF"), "kind 'F'"),
    ],
    ids=["empty", "text", "cut", "81 MP", "144 MP", "10 GP", "postscript", "floats"],
)
def test_bad_images_are_named_at_load(folder: Path, content: bytes, reason: str) -> None:
    (folder / "cat" / "bad.png").write_bytes(content)
    with pytest.raises(SeepageError, match=rf"1 of the 5 .*'cat/bad\.png'.*{reason}"):
        load(str(folder), size=8)


def test_many_bad_images_are_counted_and_three_are_named(folder: Path) -> None:
    for place in range(5):
        (folder / "cat" / f"bad{place}.png").write_bytes(b"x")
    with pytest.raises(SeepageError, match="5 of the 9") as caught:
        load(str(folder))
    assert [f"bad{place}" in str(caught.value) for place in range(5)] == [True, True, True, False, False]


def test_pixels_cut_short_are_told_by_the_batch(folder: Path) -> None:
    content = encoded(picture(0, 64, 64))
    for path in folder.rglob("*.*"):
        path.write_bytes(content)
    (folder / "cat" / "a.png").write_bytes(content[: len(content) // 2])
    data = load(str(folder))
    with pytest.raises(SeepageError, match=r"'cat/a\.png'"):
        data.batch(torch.tensor([0]))
    assert len(data.batch(torch.tensor([1]))) == 1


def test_files_that_changed_after_load_are_told(folder: Path) -> None:
    data = load(str(folder))
    picture(0, 20, 20).save(folder / "cat" / "a.png")
    with pytest.raises(SeepageError, match=r"20x20.*12x10"):
        data.batch(torch.tensor([0]))
    (folder / "cat" / "a.png").unlink()
    with pytest.raises(SeepageError, match="cannot be read"):
        data.batch(torch.tensor([0]))


def test_folders_without_classes_or_images(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "flat").mkdir()
    picture(0).save(tmp_path / "flat" / "a.png")
    with pytest.raises(SeepageError, match="no class folders"):
        load(str(tmp_path / "flat"))
    (tmp_path / "void" / "cat").mkdir(parents=True)
    with pytest.raises(SeepageError, match="no images in its sub-folders"):
        load(str(tmp_path / "void"))
    (tmp_path / "both").mkdir()
    folder.rename(tmp_path / "both" / "train")
    (tmp_path / "both" / "val").mkdir()
    with pytest.raises(SeepageError, match="no class folders"):
        load(str(tmp_path / "both"))
    (tmp_path / "both" / "val" / "cat").mkdir()
    with pytest.raises(SeepageError, match="both/val"):
        load(str(tmp_path / "both"))
    (tmp_path / "both" / "train").rename(tmp_path / "both" / "test")
    with pytest.raises(SeepageError, match="named train"):
        load(str(tmp_path / "both"))


def test_linnaeus_5_as_its_archive_unpacks(tmp_path: Path) -> None:
    """Five classes below `train` and `test`, files named NUMBER_SIDE.jpg: the layout of the real set, in small."""
    root, classes = tmp_path / "Linnaeus 5 64X64", ("berry", "bird", "dog", "flower", "other")
    for part, count in (("train", 3), ("test", 2)):
        for number, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            for place in range(count):
                flat = Image.new("RGB", (64, 64), (50 * number, 100 if part == "test" else 0, 0))
                flat.save(root / part / name / f"{place + 1}_64.jpg", quality=100)
    data = load(str(root), split=0.9)  # a folder's own split stands
    assert isinstance(data, FileDataset)
    assert data.classes == classes
    assert data.input_shape == (3, 64, 64)
    assert (len(data.train), len(data.private)) == (15, 10)
    for places, green in ((data.train, 0), (data.private, 100)):
        batch = data.batch(places)
        assert torch.allclose(batch.inputs[:, 1] * 255, torch.tensor(float(green)), atol=3)
        assert torch.allclose(batch.inputs[:, 0].mean((1, 2)) * 255, 50.0 * batch.labels, atol=3)


def test_other_files_are_refused_with_the_list_of_what_works(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"x")
    with pytest.raises(SeepageError, match=r"\.zip.*labels\.csv.*\.npz"):
        load(str(tmp_path / "x.tar"))


def test_a_path_with_a_separator_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("faces").name == "faces"
    with pytest.raises(SeepageError, match=r"\./faces"):
        load("./faces")
    for name in ("faces/me/a.png", "faces/you/b.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        picture(0).save(tmp_path / name)
    assert load("faces").classes == ("me", "you")


# --- zip ---


def pack(path: Path, table: str | bytes | None, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> str:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if table is not None:
            archive.writestr("labels.csv", table)
    return str(path)


FILES = {f"images/{name}.png": encoded(picture(place)) for place, name in enumerate("abcd")}


@pytest.mark.parametrize(
    ("column", "prefix"),
    [("file", ""), ("name", ""), ("image", "images/"), ("filename", "images/"), ("whatever", "")],
)
def test_an_archive_is_its_table(tmp_path: Path, column: str, prefix: str) -> None:
    rows = [f"{prefix}{name}.png,{label}" for name, label in zip("dbca", (2, 0, 0, 5), strict=True)]
    path = pack(tmp_path / "mine.zip", "\n".join([f"{column},label", *rows]), FILES)
    data = load(path)
    assert (data.name, data.labels.tolist(), len(data.classes)) == ("mine", [2, 0, 0, 5], 6)
    oracle = np.stack([np.asarray(picture(place)) for place in (3, 1, 2, 0)]).transpose(0, 3, 1, 2) / 255
    assert np.allclose(pixels_of(data).numpy(), oracle)


def test_archive_and_folder_of_the_same_files_agree(tmp_path: Path, folder: Path) -> None:
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*.*"))]
    table = "file,label\n" + "\n".join(f"{name},{name.split('/')[0]}" for name in names)
    files = {f"images/{name}": (folder / name).read_bytes() for name in names}
    archived, lying = load(pack(tmp_path / "x.zip", table, files), size=6), load(str(folder), size=6)
    assert archived.classes == lying.classes
    assert torch.equal(archived.labels, lying.labels)
    assert torch.equal(pixels_of(archived), pixels_of(lying))


def test_a_column_that_names_the_classes_is_used(tmp_path: Path) -> None:
    table = "file,label,patient,kind\na.png,0,p,x\nb.png,2,q,y\nc.png,2,p,y\nd.png,0,r,x"
    assert load(pack(tmp_path / "x.zip", table, FILES)).classes == ("x", "1", "y")
    table = "file,label,code,class\na.png,0,n1,cat\nb.png,1,n2,dog"
    assert load(pack(tmp_path / "x.zip", table, FILES)).classes == ("cat", "dog")


def test_archives_from_other_systems(tmp_path: Path) -> None:
    table = '\ufeffFile,Label\r\n"a.png",1\r\nb.png,0\r\n\r\n'.encode()
    assert load(pack(tmp_path / "x.zip", table, FILES)).labels.tolist() == [1, 0]
    nested = {f"top/{name}": content for name, content in FILES.items()}
    nested |= {"top/labels.csv": b"file,label\na.png,0\nb.png,1", "__MACOSX/top/labels.csv": b"junk"}
    assert len(load(pack(tmp_path / "y.zip", None, nested))) == 2


GOOD = "file,label\na.png,0\nb.png,1"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, r"0 files named labels\.csv"),
        ("", "0 rows with the columns"),
        ("file,label", "0 rows with the columns"),
        ("file,class\na.png,0", r"columns \['file', 'class'\].*needs"),
        ("label\n0\n1", r"columns \['label'\]"),
        ("file,label\na.png\nb.png,1", "line 2 of"),
        ("file,label,label\na.png,0,1", "its head"),
        (b"file,label\n\xff\xfe,0", "no text table"),
        ("file,label\na.png,0\nz.png,1", r"1 files in the column 'file' are not in the archive \('z\.png'\)"),
        ("file,label\na.png,0\nimages/a.png,1", "listed more than once"),
        ("file,label\n../../etc/passwd,0\na.png,0", "not in the archive"),
        ("file,label\na.png,-1\nb.png,0", "negative labels"),
        (f"file,label\na.png,{10**30}\nb.png,0", "64 bits"),
        ("file,label\na.png,0", "has 1 image,"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, table: str | bytes | None, message: str) -> None:
    with pytest.raises(SeepageError, match=message):
        load(pack(tmp_path / "x.zip", table, FILES))


def test_all_mistakes_of_a_table_are_told_at_once(tmp_path: Path) -> None:
    table = "file,label\n" + "\n".join(f"{name}.png,0" for name in "aavwxyz")
    with pytest.raises(SeepageError, match=r"5 files .*'v\.png', 'w\.png', 'x\.png', \.\.\.") as caught:
        load(pack(tmp_path / "x.zip", table, FILES))
    assert "1 files are listed more than once" in str(caught.value)


@pytest.mark.parametrize(("limit", "value"), [("MAX_MEMBER", 100), ("MAX_TOTAL", 100), ("MAX_MEMBERS", 3)])
def test_archives_that_unpack_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    path = pack(tmp_path / "x.zip", GOOD, FILES)
    assert len(load(path)) == 2
    monkeypatch.setattr(f"seepage.federation.data.archive.{limit}", value)
    with pytest.raises(SeepageError, match="unpacks to"):
        load(path)


def test_unbounded_compression_and_encryption_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SeepageError, match="other than deflate"):
        load(pack(tmp_path / "x.zip", GOOD, FILES, zipfile.ZIP_LZMA))
    content = bytearray(Path(pack(tmp_path / "y.zip", GOOD, FILES)).read_bytes())
    content[content.find(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "y.zip").write_bytes(content)
    with pytest.raises(SeepageError, match="encrypted"):
        load(str(tmp_path / "y.zip"))


def test_a_bad_image_in_an_archive_is_named(tmp_path: Path) -> None:
    files = {**FILES, "images/b.png": b"x"}
    with pytest.raises(SeepageError, match=r"1 of the 2 .*'images/b\.png'"):
        load(pack(tmp_path / "x.zip", GOOD, files))


def test_an_archive_that_vanishes_is_told(tmp_path: Path) -> None:
    data = load(pack(tmp_path / "x.zip", GOOD, FILES))
    (tmp_path / "x.zip").unlink()
    with pytest.raises(SeepageError, match="cannot open"):
        data.batch(data.private)
