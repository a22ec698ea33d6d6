import hashlib
import math
from pathlib import Path

import cv2
import numpy as np
import pytest

from coalface.data.readers.pack import cached_pack
from coalface.data.synthetic import generator, rendering
from coalface.data.synthetic.appearance import DOMAINS
from coalface.data.synthetic.generator import BLOCK, SyntheticFaces, preview


def pixels(source: SyntheticFaces) -> np.ndarray:
    return source.take(np.arange(len(source)))


def test_an_identity_does_not_depend_on_how_many_there_are_nor_on_its_block() -> None:
    few, many = SyntheticFaces(10, 5, seed=1, size=32), SyntheticFaces(10_000, 5, seed=1, size=32)
    assert len(few) > BLOCK
    whole = pixels(few)
    assert np.array_equal(whole, many.take(np.arange(50)))
    assert np.array_equal(whole[35:40], many.take(np.arange(35, 40)))
    assert np.array_equal(whole[[41, 3, 20]], few.take(np.array([41, 3, 20])))
    later = SyntheticFaces(3, 5, seed=1, size=32, first=7)
    assert np.array_equal(whole[35:], pixels(later))
    assert later.names == few.names[7:]
    more = SyntheticFaces(10, 7, seed=1, size=32)  # more images of each leave the first ones alone
    assert np.array_equal(whole[5:10], more.take(np.arange(7, 12)))
    colour = np.stack(list(few.images(size=16, grey=False)))
    assert np.array_equal(colour, pixels(SyntheticFaces(10, 5, seed=1, size=16, grey=False)))


def test_seeds_identities_images_and_domains_all_differ() -> None:
    def image(seed: int = 1, identity: int = 0, image: int = 0, domain: str = "neutral") -> bytes:
        source = SyntheticFaces(1, image + 1, seed=seed, size=32, domains=(domain,), first=identity)
        return source.take(np.array([image])).tobytes()

    prints = [SyntheticFaces(2, 2, seed=0), SyntheticFaces(2, 2, seed=1), SyntheticFaces(2, 2, seed=0, strength=0.5)]
    assert len({source.fingerprint() for source in prints}) == 3
    assert prints[0].fingerprint() == SyntheticFaces(2, 2, seed=0).fingerprint()
    kinds = [image(), image(seed=2), image(identity=1), image(image=1), image(domain="night"), image(domain="street")]
    assert len(set(kinds)) == len(kinds)
    assert image(seed=2**64 - 1)  # the largest seed


def test_the_bytes_are_those_of_every_machine() -> None:
    # The renderer uses operations alone that IEEE 754 rounds exactly, so no tolerance is due. When a change to the
    # generator is meant, put the new hash here; caches follow the files' text by themselves.
    source = SyntheticFaces(4, 3, seed=11, size=48, grey=False, domains=tuple(DOMAINS))
    assert (
        hashlib.sha256(pixels(source).tobytes()).hexdigest()
        == "29870db117620fdb68dd81f42ce05b030ee62dcaeb5a99d797a12ca1295b8a3d"
    )


def test_waves_turns_and_bells() -> None:
    t = np.linspace(-2, 2, 33, dtype=np.float32)
    naive = [math.sin(2 * math.pi * x) for x in t]
    assert np.abs(rendering.wave(t) - naive).max() < 0.06  # two parabolas, not quite a sine
    assert rendering.wave(np.float32([0, 0.25, 0.5, 0.75, 1.25])).tolist() == [0, 1, 0, -1, 1]
    cosine, sine = rendering.turn(np.float32(math.tan(0.3 / 2)))
    assert (cosine, sine) == pytest.approx((math.cos(0.3), math.sin(0.3)), rel=1e-6)
    assert rendering.edge(np.float32([-1, 0, 0.25, 1]), 1.0).tolist() == [0, 0.5, 0.75, 1]
    assert rendering.blob(np.float32([0, 0.5, 2])).tolist() == [1, 0.25, 0]


def test_the_same_person_is_more_alike_than_two() -> None:
    # The nearest of all other pictures, by pixels, shows the same person far more often than chance (3 of 119).
    values = pixels(SyntheticFaces(30, 4, seed=6, domains=("studio",))).reshape(120, -1).astype(float)
    values -= values.mean(axis=1, keepdims=True)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    cosine = values @ values.T - 2 * np.eye(120)
    assert (cosine.argmax(axis=1) // 4 == np.arange(120) // 4).mean() > 0.15


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"identities": 0}, "identities is 0; give 1 or more"),
        ({"size": 8}, "size is 8; give 16 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "give less than 2\\*\\*64"),
        ({"domains": ()}, "no domain named; choose from neutral"),
        ({"domains": ("nihgt",)}, "no domain 'nihgt'; choose from neutral, studio, street, night"),
    ],
)
def test_errors_name_the_object_and_the_fix(wrong: dict, message: str) -> None:
    with pytest.raises(IndexError, match="no image 4; there are 4, numbered from 0"):
        SyntheticFaces(2, 2, seed=0).take(np.array([1, 4]))
    with pytest.raises(ValueError, match=message):
        SyntheticFaces(**({"identities": 1, "images_per_identity": 1, "seed": 0} | wrong))


@pytest.mark.parametrize("edited", ["generator.py", "appearance.py", "rendering.py"])
def test_an_edit_of_the_generator_makes_new_packs(edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COALFACE_CACHE", str(tmp_path / "cache"))

    def packs() -> set[str]:
        cached_pack(SyntheticFaces(2, 2, seed=0, size=32), size=32, grey=True)
        return {path.name for path in (tmp_path / "cache").iterdir()}

    before = packs()
    assert packs() == before  # the same text again is read from the cache
    copies = tuple(tmp_path / file.name for file in generator.DRAWN_BY)
    for file, copy in zip(generator.DRAWN_BY, copies, strict=True):
        copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(generator, "DRAWN_BY", copies)
    assert packs() == before  # where the files lie is nothing to the pixels
    (tmp_path / edited).write_text((tmp_path / edited).read_text() + "# another table\n")
    generator._sha256_of.cache_clear()
    assert packs() > before


def test_the_sheet_shows_each_identity_in_each_domain(tmp_path) -> None:  # type: ignore[no-untyped-def]
    preview(tmp_path / "preview.png", seed=4, identities=2, images=3, size=32, domains=("studio", "night"))
    picture = cv2.imread(str(tmp_path / "preview.png"))
    assert picture.shape == (18 + 2 * 32, 2 * 3 * 32 + 6, 3)
    night = pixels(SyntheticFaces(2, 3, seed=4, size=32, grey=False, domains=("night",)))
    assert np.array_equal(picture[18 + 32 :, -32:, ::-1], night[5])
    with pytest.raises(FileNotFoundError, match="absent"):
        preview(tmp_path / "absent" / "preview.png", identities=1, images=1, size=32)
    with pytest.raises(ValueError, match=r"ends in \.png"):
        preview(tmp_path, identities=1, images=1, size=32)
