"""The numbers behind a synthetic face: what stays with a person, what a picture adds, what a domain shifts.

Nearly every number comes from a bell of mean 0 and variance 1 that ends at ±√12; the tables below scale it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalface.data.synthetic.rendering import Floats, Look, mix

Numbers = NDArray[np.floating[Any]]
"""float64 (n,), one number for each image, or (n, channels), one colour."""

IDENTITY: dict[str, tuple[float, float]] = {
    # name: (mean, standard deviation); lengths are in the head's own units, see rendering.py
    "face_width": (0.62, 0.061), "face_length": (0.84, 0.058), "jaw": (0.29, 0.109), "temple": (0.08, 0.043),
    "cheek": (0.00, 0.043), "asymmetry": (0.0, 0.029), "eye_distance": (0.385, 0.049), "eye_height": (-0.06, 0.058),
    "eye_width": (0.175, 0.029), "eye_open": (0.076, 0.022), "eye_tilt": (0.0, 0.160), "iris_size": (0.074, 0.010),
    "lid": (0.035, 0.012), "socket": (0.55, 0.319), "brow_height": (0.205, 0.043), "brow_length": (0.225, 0.038),
    "brow_thick": (0.038, 0.019), "brow_arch": (0.030, 0.043), "brow_tilt": (-0.12, 0.290),
    "brow_dark": (0.72, 0.232), "nose_tip": (0.27, 0.065), "nose_width": (0.150, 0.039), "nose_relief": (0.8, 0.319),
    "bridge": (0.085, 0.029), "mouth_height": (0.56, 0.058), "mouth_width": (0.33, 0.065),
    "upper_lip": (0.050, 0.020), "lower_lip": (0.070, 0.026), "mouth_bow": (0.35, 0.217), "lip_tone": (0.5, 0.362),
    "hollow": (0.10, 0.08), "skin_tone": (0.0, 1.0), "hair_tone": (0.0, 1.0), "eye_tone": (0.4, 0.392),
    "hair_line": (-0.60, 0.123), "hair_curve": (0.25, 0.290), "hair_length": (0.65, 0.725),
    "hair_volume": (0.17, 0.07), "ear_size": (1.0, 0.232), "beard": (-0.25, 0.652), "beard_line": (0.62, 0.145),
    "spot_depth": (0.055, 0.029), "mole_size": (0.075, 0.017), "age": (0.35, 0.30),
} | {
    f"{part}{k}_{name}": value
    for k in range(3)
    for part, name, value in (
        ("spot", "u", (0.0, 0.8)),
        ("spot", "v", (0.0, 0.8)),
        ("spot", "phase", (0.0, 1.0)),
        ("mole", "u", (0.0, 0.42)),
        ("mole", "v", (0.15, 0.38)),
        ("mole", "dark", (0.15, 0.30)),
    )
}  # fmt: skip
"""What stays with a person, over all images."""

NUISANCE: tuple[str, ...] = (
    *("yaw", "pitch", "roll", "zoom", "shift_x", "shift_y", "light_x", "light_y", "lamp", "ambient"),
    *("gain", "tone", "blur", "grain", "haze", "white", "smile", "mouth_open", "eye_open", "brow_height"),
    *("gaze_x", "gaze_y", "age", "beard", "hair_volume", "hair_line", "fringe", "part", "blush"),
    *("back", "contrast", "slope_x", "slope_y", "back_freq_x", "back_freq_y", "back_phase", "clutter", "clothes"),
    *("frame", "rim_size", "rim_shape", "cloth"),
)
"""What changes from image to image, in the order in which it is drawn."""

CHANCES: tuple[str, ...] = ("glasses", "dark_lens", "mask")
"""What an image has or has not: an even number from 0 to 1 each, drawn after the others."""
IDENTITY_STREAM, IMAGE_STREAM = 1, 2

RAW = 64
"""64-bit draws kept for the numbers of an image, ahead of its camera noise: new ones then leave the noise alone."""


@dataclass(frozen=True)
class Domain:
    """Where and how pictures are taken, and of whom. The defaults are the neutral domain.

    Angles are tangents of half angles (0.1 is 11.4°); light is a direction, 0 frontal, 1 is 45° to the right or below.
    """

    skin: float = 0.42
    """Mean place on the scale of skins, 0 lightest to 1 darkest."""
    skin_spread: float = 0.24
    hair: float = 0.40
    """Mean place on the scale of hair colours, 0 darkest to 1 lightest."""
    yaw: float = 0.0
    """Mean half-angle tangent by which heads turn to the left of the picture."""
    yaw_spread: float = 0.07
    pitch: float = 0.0
    pitch_spread: float = 0.04
    roll_spread: float = 0.035
    shift: float = 0.022
    """Standard deviation of the crop's place, in half pictures; its scale varies as much."""
    light_x: float = 0.0
    light_x_spread: float = 0.40
    light_y: float = -0.30
    light_y_spread: float = 0.20
    lamp: float = 0.85
    """Strength of the directed light."""
    ambient: float = 0.30
    hardness: float = 0.3
    """0: light fades smoothly over the face; 1: a sharp border of shadow."""
    gain: float = 0.95
    """Exposure."""
    gain_spread: float = 0.11
    tone: float = 0.2
    """Above 0 lifts the middle greys, below 0 sinks them."""
    tone_spread: float = 0.15
    blur: float = 0.15
    """0 to 0.5 is one pass of a (¼, ½, ¼) blur; up to 1 adds a second."""
    grain: float = 0.014
    """Standard deviation of the camera's noise, 1 being white."""
    haze: float = 0.10
    """How far everything is pulled towards middle grey."""
    vignette: float = 0.06
    warm: float = 0.0
    """Colour of the light: above 0 redder, below 0 bluer. Without effect on grey images."""
    infrared: float = 0.0
    """0 visible light; 1 a camera that sees by infrared: all skin bright, lips pale, hair grey, irises dark."""
    back: float = 0.45
    """Mean brightness of the background."""
    clutter: float = 0.30
    expression: float = 1.0
    """Scale of everything that a face does: smile, open mouth, brows, lids."""
    glasses: float = 0.08
    """Share of images with glasses; a quarter of those are dark."""
    mask: float = 0.02
    """Share of images with a cloth over mouth and nose."""

    def towards(self, other: Domain, strength: float) -> Domain:
        """The domain a part of the way from here (0) to another (1); beyond 1 goes further."""
        here, there = asdict(self), asdict(other)
        return Domain(**{name: here[name] + strength * (there[name] - here[name]) for name in here})


DOMAINS: dict[str, Domain] = {
    "neutral": Domain(),
    "studio": Domain(
        skin=0.25, hair=0.55, light_x=0.0, light_x_spread=0.35, light_y=-0.15, light_y_spread=0.2, hardness=0.0,
        ambient=0.42, lamp=0.75, blur=0.05, grain=0.008, haze=0.0, back=0.70, clutter=0.05, warm=0.02,
    ),
    "street": Domain(
        skin=0.58, hair=0.25, light_x=0.7, light_x_spread=0.6, light_y=-1.0, light_y_spread=0.35, hardness=0.8,
        ambient=0.28, lamp=0.95, blur=0.15, grain=0.014, back=0.5, clutter=0.6, glasses=0.15, pitch=0.04, warm=0.06,
    ),
    "night": Domain(
        skin=0.42, hair=0.4, light_x=-0.4, light_x_spread=0.25, light_y=0.5, light_y_spread=0.2, hardness=0.2,
        ambient=0.34, lamp=0.9, gain=1.05, gain_spread=0.08, tone=0.15, tone_spread=0.1, blur=0.2, grain=0.012,
        haze=0.08, vignette=0.15, back=0.25, infrared=0.15, warm=-0.08,
    ),
}  # fmt: skip
"""The domains by name."""

SKINS = ((0.94, 0.80, 0.72), (0.87, 0.68, 0.55), (0.70, 0.49, 0.36), (0.47, 0.31, 0.22), (0.28, 0.18, 0.13))
HAIRS = ((0.05, 0.04, 0.04), (0.14, 0.09, 0.07), (0.30, 0.19, 0.12), (0.52, 0.30, 0.16), (0.80, 0.66, 0.42))
IRISES = ((0.12, 0.07, 0.04), (0.28, 0.17, 0.09), (0.30, 0.32, 0.20), (0.35, 0.48, 0.58))
LIPS = ((0.62, 0.34, 0.32), (0.86, 0.48, 0.46), (0.72, 0.26, 0.30))
WHITES = ((0.93, 0.92, 0.90), (0.93, 0.92, 0.90))
CLOTHES = ((0.08, 0.09, 0.14), (0.55, 0.16, 0.15), (0.18, 0.33, 0.52), (0.45, 0.48, 0.40), (0.90, 0.89, 0.86))
BACKS = ((0.04, 0.05, 0.07), (0.30, 0.34, 0.32), (0.56, 0.55, 0.50), (0.78, 0.84, 0.92), (0.97, 0.97, 0.95))
BLUSH = np.array([1.0, 0.1, 0.1])


def _draw(seed: int, stream: int, identity: int, image: int, count: int) -> NDArray[np.uint64]:
    """64-bit integers from Philox, a counter-based generator: each (identity, image) has a counter range of its own."""
    key = np.array([seed, stream], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array([0, image, identity, 0], dtype=np.uint64)).random_raw(count)


def _bell(raw: NDArray[np.uint64]) -> Numbers:
    """Bell-shaped numbers of mean 0 and variance 1 within ±√12: the scaled sum of a draw's four 16-bit parts."""
    parts = np.ascontiguousarray(raw).astype("<u8").view("<u2").reshape(*raw.shape, 4)
    total = parts.astype(np.int64).sum(axis=-1)
    return (total - 131070) / 37837.2  # mean 2·65535; standard deviation √(4·(65536² − 1)/12) = 37837.2


def _noise(raw: NDArray[np.uint64], size: int) -> Floats:
    """(n, size, size) of variance 1 from eight bytes a draw: four make a pixel."""
    parts = np.ascontiguousarray(raw).astype("<u8").view("<u1").reshape(len(raw), -1, 4)[:, : size * size]
    total = parts[..., 0].astype(np.float32) + parts[..., 1] + parts[..., 2] + parts[..., 3]
    return ((total - 510.0) / 147.8).reshape(-1, size, size)  # √(4·(256² − 1)/12) = 147.8


def _along(table: Sequence[tuple[float, float, float]], place: Numbers, channels: int) -> Numbers:
    """The colours (n, channels) at places 0 to 1 along a row of colours, straight between neighbours."""
    colours = mix(table, channels)
    t = np.clip(place, 0.0, 1.0) * (len(table) - 1)
    low = np.minimum(t.astype(np.int64), len(table) - 2)
    return colours[low] + (t - low)[:, None] * (colours[low + 1] - colours[low])


def draw_looks(
    seed: int,
    people: NDArray[np.int64],
    images: NDArray[np.int64],
    domain: Mapping[str, Numbers],
    *,
    size: int,
    channels: int,
) -> tuple[Look, Floats]:
    """Parameters and camera noise of the images (identity number, image number), each from its own draws alone.

    `domain` holds the fields of `Domain`, (n,) each. The noise is (n, size, size).
    """
    distinct, place = np.unique(people, return_inverse=True)
    lines = _bell(np.stack([_draw(seed, IDENTITY_STREAM, int(i), 0, len(IDENTITY)) for i in distinct]))[place]
    trait = {name: mean + spread * lines[:, k] for k, (name, (mean, spread)) in enumerate(IDENTITY.items())}
    count = RAW + (size * size + 1) // 2
    raw = np.stack([_draw(seed, IMAGE_STREAM, int(i), int(j), count) for i, j in zip(people, images, strict=True)])
    bells = _bell(raw[:, : len(NUISANCE)])
    number = {name: bells[:, k] for k, name in enumerate(NUISANCE)}
    chances = (raw[:, len(NUISANCE) : len(NUISANCE) + len(CHANCES)] >> np.uint64(11)) * 2.0**-53
    number |= {name: chances[:, k] for k, name in enumerate(CHANCES)}
    return _look(trait, number, domain, channels), _noise(raw[:, RAW:], size)


def _look(
    trait: Mapping[str, Numbers], number: Mapping[str, Numbers], domain: Mapping[str, Numbers], channels: int
) -> Look:
    """The parameters that `rendering.render` takes, from traits, an image's own numbers and its domain."""
    t, b, d = trait, number, domain
    wild = d["expression"]
    age = t["age"] + 0.06 * b["age"]
    grown = np.clip(age, 0.0, 1.2)
    smile = wild * b["smile"]
    opened = np.clip(wild * 0.016 * (b["mouth_open"] - 0.5), 0.0, 0.09)
    person = {name: t[name] for name in IDENTITY if name not in COMBINED}
    flat: dict[str, Numbers] = person | {
        "yaw": d["yaw"] + d["yaw_spread"] * b["yaw"],
        "pitch": d["pitch"] + d["pitch_spread"] * b["pitch"],
        "roll": d["roll_spread"] * b["roll"],
        "zoom": 1.02 + d["shift"] * b["zoom"],
        "shift_x": d["shift"] * b["shift_x"],
        "shift_y": d["shift"] * b["shift_y"] - 0.01,
        "light_x": d["light_x"] + d["light_x_spread"] * b["light_x"],
        "light_y": d["light_y"] + d["light_y_spread"] * b["light_y"],
        "lamp": d["lamp"] * (1.0 + 0.12 * b["lamp"]),
        "ambient": np.clip(d["ambient"] * (1.0 + 0.25 * b["ambient"]), 0.02, None),
        "hardness": d["hardness"],
        "gain": np.clip(d["gain"] + d["gain_spread"] * b["gain"], 0.2, None),
        "tone": np.clip(d["tone"] + d["tone_spread"] * b["tone"], -0.6, 3.0),
        "vignette": d["vignette"],
        "grain": np.clip(d["grain"] * (1.0 + 0.4 * b["grain"]), 0.0, None),
        "haze": np.clip(d["haze"] + 0.05 * b["haze"], 0.0, 0.8),
        "smile": 0.045 + 0.045 * smile,
        "mouth_open": opened,
        "mouth_width": t["mouth_width"] + 0.022 * smile,
        "mouth_height": t["mouth_height"] + 0.2 * opened,
        "eye_open": np.clip(t["eye_open"] * (1.0 + wild * 0.16 * (b["eye_open"] - 0.4 * b["smile"])), 0.012, None),
        "brow_height": t["brow_height"] + wild * 0.016 * b["brow_height"],
        "gaze": 0.022 * b["gaze_x"],
        "gaze_y": 0.008 * b["gaze_y"] - 0.008,
        "age": grown,
        "hollow": np.clip(t["hollow"] + 0.10 * grown, 0.0, 0.45),
        "beard": np.clip(t["beard"] + 0.10 * b["beard"], 0.0, 0.8),
        "gloss": np.full_like(age, 0.05),
        "hair_volume": np.clip(t["hair_volume"] + 0.025 * b["hair_volume"], 0.02, 0.45),
        "hair_line": t["hair_line"] + 0.03 * b["hair_line"],
        "hair_cover": np.full_like(age, 0.96),
        "fringe": 0.03 * b["fringe"],
        "part": 0.12 * b["part"],
        "sideburn": np.full_like(age, 0.93),
        "strand": 2.0 * b["part"],
        "back_slope_x": 1.5 * b["slope_x"],
        "back_slope_y": 1.5 * b["slope_y"],
        "back_freq_x": 0.8 + 0.5 * b["back_freq_x"],
        "back_freq_y": 0.6 + 0.5 * b["back_freq_y"],
        "back_phase": b["back_phase"],
        "clutter": np.clip(d["clutter"] * (1.0 + 0.5 * b["clutter"]), 0.0, None),
        "glasses": (b["glasses"] < d["glasses"]).astype(np.float64),
        "dark_lens": 0.08 + 0.87 * (b["dark_lens"] < 0.25),
        "rim_size": 0.235 + 0.018 * b["rim_size"],
        "rim_shape": 0.85 + 0.08 * b["rim_shape"],
        "mask": (b["mask"] < d["mask"]).astype(np.float64),
        "blur": np.clip(d["blur"] + 0.15 * b["blur"], 0.0, 0.5),
        "blur_more": np.clip(d["blur"] + 0.15 * b["blur"] - 0.5, 0.0, 0.5),
    }
    shaped = {name: value.astype(np.float32).reshape(-1, 1, 1, 1) for name, value in flat.items()}
    painted = _colours(t, b, d, grown, channels)
    return shaped | {name: value.astype(np.float32).reshape(*value.shape, 1, 1) for name, value in painted.items()}


COMBINED = frozenset({"lip_tone", "skin_tone", "hair_tone", "eye_tone"})
"""Traits that reach the renderer only within a colour."""


def _colours(
    t: Mapping[str, Numbers], b: Mapping[str, Numbers], d: Mapping[str, Numbers], age: Numbers, channels: int
) -> dict[str, Numbers]:
    """The colours (n, channels), infrared and the colour of the light included."""

    def paint(table: Sequence[tuple[float, float, float]], place: Numbers, infrared: float) -> Numbers:
        colour = _along(table, place, channels)
        colour += d["infrared"][:, None] * (infrared - colour) * 0.85
        if channels == 3:
            warm = (d["warm"] + 0.03 * b["white"])[:, None]
            colour *= 1.0 + warm * np.array([1.0, 0.0, -1.0])
        return colour

    nothing = np.zeros_like(age)
    skin = paint(SKINS, d["skin"] + d["skin_spread"] * t["skin_tone"], 0.72)
    hair = paint(HAIRS, d["hair"] + 0.28 * t["hair_tone"], 0.36)
    grey = np.clip(age - 0.6, 0.0, 0.6)[:, None]
    hair = hair + grey * (0.7 - hair)
    lips = paint(LIPS, t["lip_tone"], 0.66) * (0.35 + 0.65 * skin)
    back = d["back"] + 0.28 * b["back"]
    contrast = np.abs(b["contrast"]) * 0.20 + 0.05
    pupil = paint(HAIRS, nothing, 0.10)
    return {
        "skin": skin,
        "hair": hair,
        "lips": lips,
        "iris": paint(IRISES, t["eye_tone"], 0.12),
        "eye_white": paint(WHITES, nothing, 0.75),
        "teeth": paint(WHITES, nothing, 0.8),
        "pupil": pupil,
        "lash": pupil + 0.25 * (skin - pupil),
        "mouth_dark": pupil * 1.5,
        "blush": (0.03 + 0.015 * b["blush"])[:, None] * (BLUSH if channels == 3 else np.zeros(1)),
        "clothes": paint(CLOTHES, 0.5 + 0.3 * b["clothes"], 0.4),
        "back_dark": paint(BACKS, back - contrast, 0.1),
        "back_light": paint(BACKS, back + contrast, 0.2),
        "frame": paint(HAIRS, 0.3 + 0.3 * b["frame"], 0.2),
        "cloth": paint(BACKS, 0.6 + 0.3 * b["cloth"], 0.5),
    }
