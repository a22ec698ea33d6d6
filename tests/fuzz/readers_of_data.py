"""Readers of data sets: images, record files, packs, verification packs, lists of pairs, landmarks and templates."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from field_layouts import WRITERS
from numpy.typing import NDArray
from reader import PLACE, Reader, anew, joined, of_file, parts, put, whole_or_within

from coalface.data.faceset import FaceSet
from coalface.data.partition_file import read_partition
from coalface.data.photographs import decode_photograph
from coalface.data.readers import ijb, landmarks, layouts, megaface
from coalface.data.readers.bin import read_bin, write_bin
from coalface.data.readers.file_names import read_names
from coalface.data.readers.headers import check_header
from coalface.data.readers.pack import read_pack
from coalface.data.readers.pair_lines import read_pair_lines
from coalface.data.readers.records import read_rec, write_rec
from coalface.data.source import decode
from coalface.data.stores import open_store

# --- images -----------------------------------------------------------------------------------------------------------

SHADES: NDArray[np.uint8] = (np.arange(3 * 20 * 16) % 251).astype(np.uint8).reshape(20, 16, 3)


def encoded(ending: str) -> bytes:
    return bytes(cv2.imencode(ending, SHADES if ending != ".pgm" else SHADES[:, :, 0])[1])


IMAGES = tuple(map(encoded, (".jpg", ".png", ".bmp", ".webp", ".ppm", ".pgm")))


def read_image(data: bytes) -> None:
    """The header is read whatever it says; what is decoded is not large, so that time goes into the decoders."""
    header = check_header(data, "image")
    if header.width * header.height > 1 << 16:
        return
    photograph = decode_photograph(data, "image")
    assert sorted(photograph.shape[:2]) == sorted((header.height, header.width))
    assert decode(data, "image", size=8, grey=True).shape == (8, 8, 1)


def of_chunks(data: bytes) -> bytes:
    """A PNG of chunks, each after its length in two bytes: with the lengths and checksums that a PNG has."""
    png = b"\x89PNG\r\n\x1a\n"
    while data:
        (chunk,), data = parts(data, 1), data[2 + int.from_bytes(data[:2], "big") :]
        png += struct.pack(">I", max(len(chunk) - 4, 0)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png


def chunks(png: bytes) -> bytes:
    """What `of_chunks` makes a PNG of."""
    at, found = 8, []
    while at < len(png):
        end = at + 8 + int.from_bytes(png[at : at + 4], "big")
        found.append(png[at + 4 : end])
        at = end + 4
    return joined(*found)


def png_of(pixels: NDArray[np.uint8], *options: int) -> bytes:
    return b"\0" + chunks(bytes(cv2.imencode(".png", pixels, options)[1]))


PNGS = (
    png_of(SHADES),
    png_of(SHADES[:, :, 0]),
    png_of(np.dstack([SHADES, SHADES[:, :, :1]])),
    png_of(SHADES[:, :, 0] & np.uint8(1), cv2.IMWRITE_PNG_BILEVEL, 1),
)

# --- stores -----------------------------------------------------------------------------------------------------------


def read_verification_pack(data: bytes) -> None:
    pack = read_bin(put("fuzzed.bin", data))
    ends = pack.starts + pack.lengths
    assert len(pack) == 2 * len(pack.same) > 0 and len(pack.files) == len(pack)
    assert pack.starts.min() >= 0 and pack.lengths.min() > 0 and ends.max() <= len(pack.data) <= 2 * len(data)


def of_python_2() -> bytes:
    """A pack as most in the field are: 8-bit strings."""
    images = b"".join(b"T" + struct.pack("<i", len(image)) + image for image in IMAGES[:2])
    return b"\x80\x02](" + images + b"e](\x88e\x86."


def of_arrays(protocol: int) -> bytes:
    """A pack as NumPy arrays make it."""
    return pickle.dumps(([np.frombuffer(IMAGES[0], np.uint8)] * 2, [np.bool_(True)]), protocol)


def written_bin() -> bytes:
    write_bin(path := PLACE / "sound.bin", IMAGES[:2], [True])
    return path.read_bytes()


def read_records(data: bytes) -> None:
    """A record file, its index and `property`; an empty index is none."""
    folder = anew("records")
    for name, content in zip(("train.rec", "train.idx", "property"), parts(data, 3), strict=True):
        if content or name == "train.rec":
            put(f"records/{name}", content)
    for damaged in ("leave out", "error"):
        rec = read_rec(folder, damaged=damaged)
        assert len(rec.files) == len(rec.labels) == len(rec.keys) > 0
        payloads = [rec.encoded(i) for i in range(min(len(rec.keys), 50))]
        assert sum(map(len, payloads)) <= 60 * len(data)
        open_store(folder, damaged=damaged).doubts()


def written_records() -> bytes:
    folder = anew("sound") / "set"
    write_rec([(0, IMAGES[0]), (0, IMAGES[1]), (1, IMAGES[2])], folder, size=(20, 16))
    return joined(*((folder / name).read_bytes() for name in ("train.rec", "train.idx", "property")))


PACK_FILES = ("pixels.u8", "labels.npy", "index.json")


def read_packed(data: bytes) -> None:
    """A pack whose `meta.json` has the digests of the other files: each is read further than its digest."""
    meta, *contents = parts(data, 4)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in zip(PACK_FILES, contents, strict=True)}
    for name, content in zip(PACK_FILES, contents, strict=True):
        put(f"pack/{name}", content)
    put("pack/meta.json", meta.replace(b'"sums"', json.dumps(sums).encode()))
    faces = read_pack(PLACE / "pack", verify=False)
    assert len(faces) == len(faces.labels) == len(list(faces.files or ()))
    assert faces.labels.max() < len(faces.names)


def read_file_names(data: bytes) -> None:
    """The quick reader of names gives what JSON gives, or leaves it to that."""
    names = read_names(put("index.json", data), 2)
    if names is None:
        raise ValueError("another form")
    index = json.loads(data)
    assert list(names[0]) == index["names"] and list(names[1]) == index["files"] == [names[1][0], names[1][1]]


INDEX = b'{"names": ["Ann \\u00e9"], "files": ["Ann/1.jpg", "Ann/\\u00e9.jpg"]}'
META = {"format": "coalface-pack", "version": 1, "shape": [2, 2, 2, 1], "size": 2, "grey": True, "sha256": "sums"}
LABELS = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }".ljust(127) + b"\n" + bytes(16)
)


# --- lists ------------------------------------------------------------------------------------------------------------

FILES = ("African/m.1/m.1_0001.jpg", "African/m.1/m.1_0002.jpg", "Asian/m.2/m.2_0001.jpg")
FIVE = "30.1 50 60 51.5 45 70 33 90 60 91"
LISTS: dict[str, tuple[str, Callable[[Path], object], tuple[str, ...]]] = {
    "pairs": (
        "pairs.txt",
        read_pair_lines,
        (
            "1 1\nAnn\t1\t2\nAnn\t1\tBo\t2\n",
            "left,right,same,fold\na/1.jpg,b/2.jpg,1,0\na/1.jpg,b/3.jpg,0,0\n",
            "a b 1\nc d 0\n",
        ),
    ),
    "landmarks-text": (
        "African_lmk.txt",
        lambda path: landmarks.read_landmarks([path], FILES),
        ("".join(f"/data/{file}\t0\t{FIVE}\n" for file in FILES),),
    ),
    "landmarks-points": (
        "African/m.1/m.1_0001.pts",
        lambda path: landmarks.read_landmarks([path], FILES),
        ("version: 1\nn_points: 5\n{\n30 50\n60 50\n45 70\n33 90\n60 90\n}\n",),
    ),
    "landmarks-json": (
        "faces.json",
        lambda path: landmarks.read_landmarks([path], FILES),
        (
            json.dumps([{"file": FILES[0], "keypoints": [[30, 50], [60, 50], [45, 70], [33, 90], [60, 90]]}]),
            json.dumps(
                {
                    FILES[0]: {
                        "face_1": {
                            "landmarks": dict(
                                left_eye=[30, 50],
                                right_eye=[60, 50],
                                nose=[45, 70],
                                mouth_left=[33, 90],
                                mouth_right=[60, 90],
                            )
                        }
                    }
                }
            ),
        ),
    ),
    "partition": ("partition.txt", read_partition, ("Ann, london\nBo, -\nBo/1.jpg, york\n",)),
    "ijb-media": ("ijbc_face_tid_mid.txt", ijb.read_media, ("1.jpg 1 2\n2.jpg 1 3\n",)),
    "ijb-faces": ("ijbc_name_5pts_score.txt", ijb.read_faces, (f"1.jpg {FIVE} 0.9\n",)),
    "ijb-pairs": ("ijbc_template_pair_label.txt", ijb.read_template_pairs, ("1 2 1\n3 4 0\n",)),
    "ijb-metadata": (
        "verify_metadata_1.csv",
        ijb.read_metadata,
        ("TEMPLATE_ID,SUBJECT_ID,FILE,MEDIA_ID\n1,2,a.jpg,3\n",),
    ),
    "megaface-probes": (
        "facescrub_features_list.json",
        megaface.read_probes,
        ('{"path": ["a.jpg", "b.jpg"], "id": ["A", 2]}',),
    ),
    "megaface-distractors": (
        "megaface_features_list.json_2_1",
        megaface.read_distractors,
        ('{"path": ["a.jpg", "b.jpg"]}',),
    ),
    "megaface-noises": (
        "megaface_noises.txt",
        partial(megaface.read_noises, among="megaface"),
        ("# remark\n375/3@N00/4_0.jpg\n",),
    ),
}


def layout(name: str) -> Reader:
    """All lists of a data set in one of the field's layouts, one after the other."""
    root = anew(f"layouts/{name}") / "set"
    root.mkdir()
    WRITERS[name](root)
    texts = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".jpg")
    sound = [path.read_bytes() for path in texts]
    source = layouts.read_layout(root)
    rows = np.arange(len(source.files), dtype=np.int64)
    pixels = np.zeros((len(rows), 1, 1, 1), np.uint8)
    faces = FaceSet(pixels, rows, source.labels, source.names, source.files)

    def read(data: bytes) -> None:
        for path, content in zip(texts, parts(data, len(texts)), strict=True):
            path.write_bytes(content)
        layouts.read_layout(root)
        for pairs in layouts.read_lists(root, faces).values():
            assert max(pairs.left.max(), pairs.right.max()) < len(faces) and len(pairs.same) > 0

    return Reader(read, (joined(*sound),))


DATA = {
    "image": Reader(whole_or_within(read_image, lambda data: read_image(of_chunks(data))), (*IMAGES, *PNGS)),
    "bin": Reader(
        read_verification_pack,
        (written_bin(), of_python_2(), pickle.dumps(([IMAGES[0]] * 2, [True]), 0), *map(of_arrays, (2, 4, 5))),
    ),
    "records": Reader(read_records, (written_records(),)),
    "pack": Reader(read_packed, (joined(json.dumps(META).encode(), bytes(8), LABELS, INDEX),)),
    "file-names": Reader(read_file_names, (INDEX,), (ValueError,)),
    **{name: Reader(of_file(file, read), tuple(map(str.encode, texts))) for name, (file, read, texts) in LISTS.items()},
    **{f"layout-{name}": layout(name) for name in ("agedb-30", "calfw", "cfp", "cfp-fp", "cplfw", "rfw")},
}
