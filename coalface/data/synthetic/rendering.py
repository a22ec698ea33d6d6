"""Draws faces from numbers: a shaded egg with features on it, seen from an angle, through a camera.

The maths uses + − × ÷ √, comparison and rounding alone. IEEE 754 fixes the result of each to the last bit, so the same
numbers give the same image on every machine; sines, exponentials and powers would not, and matrix products need not.
That is why angles come in as tangents of half angles, waves are parabolas and bells are polynomials.

Units: the picture spans −1 to 1 both ways, x to the right and y down. The face is mapped to the unit sphere, seen from
the front as (u, v) with u = ±1 at its sides, v = −1 at the top of the skull and v = 1 at the chin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""float32 throughout."""
Look = Mapping[str, Floats]
"""Parameters by name: (n, 1, 1, 1), or (n, channels, 1, 1) for a colour."""


def clip01(x: Floats) -> Floats:
    return np.clip(x, 0.0, 1.0)


def edge(distance: Floats, width: Floats | float) -> Floats:
    """Coverage of a pixel by a shape: 0 outside, 1 inside, a straight ramp of `width` across its border.

    `distance` is positive inside.
    """
    return clip01(distance * (1.0 / width) + 0.5)


def smooth(distance: Floats, width: Floats | float) -> Floats:
    """`edge` with the ramp rounded off: 3t² − 2t³."""
    t = edge(distance, width)
    return t * t * (3.0 - 2.0 * t)


def blob(q: Floats) -> Floats:
    """A bell over a squared distance: (1 − q)² within q < 1, else 0."""
    t = clip01(1.0 - q)
    return t * t


def wave(t: Floats) -> Floats:
    """A sine made of two parabolas: period 1, 0 at 0, 1 at ¼, −1 at ¾."""
    s = t - np.rint(t)
    return 8.0 * s * (1.0 - 2.0 * np.abs(s))


def turn(half_tangent: Floats) -> tuple[Floats, Floats]:
    """Cosine and sine of an angle θ from t = tan(θ/2): (1 − t²)/(1 + t²) and 2t/(1 + t²)."""
    square = half_tangent * half_tangent
    return (1.0 - square) / (1.0 + square), 2.0 * half_tangent / (1.0 + square)


def lay(image: Floats, cover: Floats, colour: Floats) -> None:
    """Lay a colour over the image, in place, as thickly as `cover` (0 to 1) says."""
    image += cover * (colour - image)


def render(look: Look, noise: Floats, size: int) -> NDArray[np.uint8]:
    """The images of n looks: (n, size, size, channels).

    `noise` is (n, size, size) of unit variance, the camera's. The parameters are those that `generator.py` draws.
    """
    grid = (np.arange(size, dtype=np.float32) * 2.0 + 1.0) / np.float32(size) - 1.0
    x, y = _place(look, grid)
    face = _Face(look, x, y, size)
    image = _background(look, x, y, np.broadcast_shapes(x.shape, look["skin"].shape))
    _behind(look, face, image)
    lay(image, face.cover, _skin(look, face))
    _features(look, face, image)
    _hair_in_front(look, face, image)
    _eyewear(look, face, image)
    return _camera(look, image, noise, grid)


def _place(look: Look, grid: Floats) -> tuple[Floats, Floats]:
    """The picture's coordinates seen from the head: undo the crop's shift, scale and in-plane rotation (roll)."""
    x = (grid - look["shift_x"]) * look["zoom"]
    y = (grid[:, None] - look["shift_y"]) * look["zoom"]
    cosine, sine = turn(look["roll"])
    return cosine * x + sine * y, cosine * y - sine * x


class _Face:
    """Where each pixel lies on the head: outline, front coordinates, light."""

    def __init__(self, look: Look, x: Floats, y: Floats, size: int) -> None:
        self.x, self.y = x, y
        self.pixel = np.float32(2.0 / size) * look["zoom"]
        v = y / look["face_length"]
        below, above = np.clip(v, 0.0, 1.3), np.clip(-v, 0.0, 1.3)
        egg = 1.0 - look["jaw"] * below * below - look["temple"] * above * above
        egg += look["cheek"] * blob((v - 0.25) * (v - 0.25) * 6.0)
        u = x / (look["face_width"] * egg)
        self.radius2 = u * u + v * v
        self.side, self.rise = u, v  # on the sphere as the camera sees it
        self.depth = np.sqrt(clip01(1.0 - self.radius2))
        self.cover = edge((1.0 - self.radius2) * (0.5 * look["face_width"]), self.pixel)
        self.yaw_cosine, self.yaw_sine = turn(look["yaw"])
        pitch_cosine, pitch_sine = turn(look["pitch"])
        front = self.yaw_cosine * self.depth + self.yaw_sine * u
        self.u = self.yaw_cosine * u - self.yaw_sine * self.depth
        self.v = pitch_cosine * v - pitch_sine * front
        self.mirror = np.abs(self.u)  # a face has two sides: draw both eyes, brows, nostrils at once
        self.level = self.v + look["asymmetry"] * self.u
        # Features are never sharper than the pixels that show them.
        self.sharp = np.maximum(self.pixel * 1.6, np.float32(0.03))
        self.shade = self._shade(look)

    def _shade(self, look: Look) -> Floats:
        """Light on skin: ambient, plus the cosine between the surface and the lamp, hard or soft."""
        lx, ly = look["light_x"], look["light_y"]
        length = np.sqrt(1.0 + lx * lx + ly * ly)
        # Noses, brow ridges and cheekbones tilt the surface away from the egg's own normal.
        t = np.clip((self.u - self.yaw_sine * 0.25) / (look["nose_width"] * 2.2), -1.0, 1.0)
        bell = 1.0 - t * t
        stretch = blob(((self.v - look["nose_tip"] * 0.6) / (look["nose_tip"] * 1.3)) ** 2)
        tilt_x = t * bell * bell * stretch * (2.2 * look["nose_relief"])
        ridge = (self.v + look["eye_height"] + 0.02) * 5.0
        tilt_y = ridge * blob(ridge * ridge + self.u * self.u * 1.3) * (-look["socket"])
        chin = (self.v - 0.80) * 6.0
        tilt_y += chin * blob(chin * chin + self.u * self.u * 8.0) * 0.8
        facing = ((self.side + tilt_x) * lx + (self.rise * 0.8 + tilt_y) * ly + self.depth + 0.15) / length
        lit = clip01(facing)
        lit += look["hardness"] * (smooth(facing - 0.45, 0.5) - lit)
        shade = look["ambient"] + look["lamp"] * lit
        return shade


def _background(look: Look, x: Floats, y: Floats, shape: tuple[int, ...]) -> Floats:
    image = np.empty(shape, dtype=np.float32)
    t = 0.5 + 0.35 * (look["back_slope_x"] * x + look["back_slope_y"] * y)
    t += look["clutter"] * wave(look["back_freq_x"] * x + look["back_phase"]) * wave(look["back_freq_y"] * y + 0.3)
    image[:] = look["back_dark"] + clip01(t) * (look["back_light"] - look["back_dark"])
    return image


def _behind(look: Look, face: _Face, image: Floats) -> None:
    """Shoulders, neck, the hair behind the head, ears."""
    x, y, px = face.x, face.y, face.pixel
    width, length = look["face_width"], look["face_length"]
    shade = face.shade
    hair = look["hair"] * (0.55 + 0.45 * shade)
    # The crown: an ellipse somewhat larger than the head; long hair falls straight from its widest line.
    volume = look["hair_volume"]
    crown_x = x / (width * (1.0 + volume))
    crown_y = (y + 0.04) / (length * (1.0 + 0.7 * volume))
    fall = np.clip(crown_y, -2.0, 0.0) + clip01(crown_y - look["hair_length"])
    crown = edge((1.0 - crown_x * crown_x - fall * fall) * (0.5 * width), px)
    lay(image, crown, hair)
    neck = edge(width * 0.62 - np.abs(x) + clip01(y - 0.75) * 0.4, px * 2.0) * edge(y - 0.4 * length, px)
    lay(image, neck, look["skin"] * (shade * 0.62))
    lay(image, edge(y - length - 0.12 + 0.14 * (1.0 - x * x) - 0.10, px * 2.0), look["clothes"])
    ear_x = (np.abs(face.side) - 1.02) * 5.5
    ear_y = (face.rise - 0.08) * (3.6 / look["ear_size"])
    lay(image, edge((1.0 - ear_x * ear_x - ear_y * ear_y) * 0.1, px), look["skin"] * (shade * 0.85))


def _skin(look: Look, face: _Face) -> Floats:
    """The bare head: skin, its large spots, cheeks, beard and age lines, under the light."""
    u, v, mirror = face.u, face.v, face.mirror
    texture = np.zeros_like(u)
    for k in range(3):
        texture += wave(look[f"spot{k}_u"] * u + look[f"spot{k}_v"] * v + look[f"spot{k}_phase"])
    tone = 1.0 + look["spot_depth"] * texture
    for k in range(3):
        du, dv = u - look[f"mole{k}_u"], v - look[f"mole{k}_v"]
        tone -= look[f"mole{k}_dark"] * blob((du * du + dv * dv) / (look["mole_size"] * look["mole_size"]))
    # Sunken eyes, hollow cheeks, the shadow under the nose and the lower lip.
    de, dh = mirror - look["eye_distance"] * 0.9, v - look["eye_height"]
    tone -= look["socket"] * 0.30 * blob(de * de * 9.0 + dh * dh * 18.0)
    dc, dk = mirror - 0.52, v - 0.36
    tone -= look["hollow"] * blob(dc * dc * 14.0 + dk * dk * 9.0)
    fold = mirror - (look["nose_width"] * 0.9 + (v - look["nose_tip"]) * 0.55)
    tone -= look["age"] * 0.30 * blob(fold * fold * 400.0 + (v - 0.44) * (v - 0.44) * 20.0)
    tone -= look["age"] * 0.10 * wave(v * 9.0) * blob((v + 0.48) * (v + 0.48) * 16.0 + u * u * 1.6)
    bag = v - look["eye_height"] - 0.14 - look["eye_open"]
    tone -= look["age"] * 0.22 * blob(bag * bag * 500.0 + de * de * 22.0)
    skin = look["skin"] * tone
    skin += look["blush"] * blob((mirror - 0.5) * (mirror - 0.5) * 7.0 + (v - 0.26) * (v - 0.26) * 8.0)
    jawline = smooth(v - look["beard_line"] + 0.35 * (mirror - 0.4) * (0.4 - mirror) + 0.2 * mirror * mirror, 0.3)
    skin += (look["beard"] * jawline) * (look["hair"] * 0.9 - skin)
    gloss = (face.side - 0.25 * look["light_x"]) * 2.4
    glint = (face.rise + 0.42 - 0.2 * look["light_y"]) * 3.2
    skin *= face.shade
    skin += look["gloss"] * blob(gloss * gloss + glint * glint)
    return skin


def _features(look: Look, face: _Face, image: Floats) -> None:
    """Eyes, brows, nose and mouth."""
    v, mirror, sharp, shade = face.v, face.mirror, face.sharp, face.shade
    cover = face.cover
    # Eyes: an almond between two parabolas, the iris a disc within it.
    du = mirror - look["eye_distance"]
    dv = face.level - look["eye_height"] + look["eye_tilt"] * du
    span = du / look["eye_width"]
    arc = look["eye_open"] * (1.0 - span * span)
    almond = edge(arc - np.abs(dv + 0.15 * arc), sharp) * cover
    lid = dv + arc
    lay(image, blob(lid * lid / (look["lid"] * look["lid"]) + span * span * 0.6) * (0.85 * cover), look["lash"] * shade)
    lay(image, almond, look["eye_white"] * shade)
    gaze = du - look["gaze"] * np.sign(face.u)
    rise = dv - look["gaze_y"]
    q = gaze * gaze * 0.6 + rise * rise  # heads are longer than wide, so this is round in the picture
    q /= look["iris_size"] * look["iris_size"]
    lay(image, edge((1.0 - q) * 0.5 * look["iris_size"], sharp) * almond, look["iris"] * shade)
    lay(image, blob(q * 2.5) * almond, look["pupil"])
    # Brows: an arched band that thins outwards.
    run = (mirror - look["eye_distance"] + 0.02) / look["brow_length"]
    line = face.level - look["eye_height"] + look["brow_height"] + look["brow_tilt"] * run * 0.2
    line -= look["brow_arch"] * (run * run - 0.3)
    thick = look["brow_thick"] * (1.15 - 0.45 * run)
    brow = edge(thick - np.abs(line), sharp) * edge(1.0 - np.abs(run), 0.35)
    lay(image, brow * look["brow_dark"] * cover, look["hair"] * (0.75 * shade))
    # Nose: it stands out of the face, so a turned head moves it sideways.
    tip = look["nose_tip"]
    un = np.abs(face.u - face.yaw_sine * 0.25)
    width = look["nose_width"]
    nostril_u, nostril_v = (un - width * 0.55) / (width * 0.42), (v - tip - 0.015) / 0.05
    wing_u, wing_v = (un - width) / 0.06, (v - tip + 0.05) / 0.11
    base = (v - tip - 0.055) / 0.06
    dark = 0.75 * blob(nostril_u * nostril_u + nostril_v * nostril_v)
    dark += 0.40 * blob(wing_u * wing_u + wing_v * wing_v)
    dark += 0.35 * blob(base * base + un * un / (width * width * 1.6))
    bridge_u = (un - look["bridge"]) / 0.07
    dark += look["nose_relief"] * 0.22 * blob(bridge_u * bridge_u + (v - tip * 0.35) ** 2 / (tip * tip))
    lay(image, clip01(dark) * cover, look["skin"] * (0.35 * shade))
    shine = (v - tip + 0.07) / 0.12
    image += (0.16 * cover) * shade * blob(un * un / (width * width * 0.35) + shine * shine) * look["skin"]
    _mouth(look, face, image)


def _mouth(look: Look, face: _Face, image: Floats) -> None:
    """Two lips that meet on a parabola; a smile bends it, an open mouth parts them."""
    half = look["mouth_width"]
    um = (face.u - face.yaw_sine * 0.06) / half
    square = um * um
    taper = clip01(1.0 - square)
    line = face.level - look["mouth_height"] + look["smile"] * (square - 0.3)
    gap = look["mouth_open"] * taper
    bow = look["upper_lip"] * taper * (1.0 - look["mouth_bow"] * blob(square * 9.0))
    above, below = line + gap + bow, gap + look["lower_lip"] * taper - line
    inside = np.minimum(above, below)
    sharp = face.sharp
    lips = edge(inside, sharp) * clip01(taper * 4.0) * face.cover
    lay(image, lips, look["lips"] * face.shade)
    opened = edge(gap - np.abs(line) - 0.012, sharp) * face.cover
    teeth = edge(gap * 0.35 - line - 0.3 * gap, sharp)
    lay(image, opened, look["mouth_dark"] + teeth * (look["teeth"] * face.shade - look["mouth_dark"]))
    closed = blob(line * line * 900.0) * clip01(taper * 4.0) * (1.0 - opened)
    lay(image, closed * (0.75 * face.cover), look["lips"] * (0.35 * face.shade))
    under = (below + 0.05) / 0.07
    shadow = blob(under * under + square * 1.8)
    lay(image, shadow * (0.28 * face.cover), look["skin"] * (0.4 * face.shade))


def _hair_in_front(look: Look, face: _Face, image: Floats) -> None:
    """The hair above the hair line, parted somewhere, and the sideburns."""
    u, v = face.u, face.v
    part = u - look["part"]
    line = look["hair_line"] + look["hair_curve"] * part * part + look["fringe"] * wave(u * 0.8 + look["part"])
    strand = wave(u * 6.0 + v * look["strand"]) * 0.12
    top = edge(line - v, 0.07)
    side = edge(face.mirror - look["sideburn"] - 0.5 * clip01(v + 0.1), 0.08) * edge(0.15 - v, 0.3)
    cover = np.maximum(top, side) * face.cover
    lay(image, cover * look["hair_cover"], look["hair"] * ((0.5 + 0.5 * face.shade) * (1.0 + strand)))


def _eyewear(look: Look, face: _Face, image: Floats) -> None:
    """Glasses, clear or dark, and a band that hides the mouth; each is there or not, per image."""
    du, dv = face.mirror - look["eye_distance"], face.v - look["eye_height"] - 0.02
    radius = np.sqrt(du * du * look["rim_shape"] + dv * dv * 1.6 + 1e-6)
    ring = edge(0.022 - np.abs(radius - look["rim_size"]), face.sharp)
    bridge = edge(0.02 - np.abs(dv), face.sharp) * edge(look["eye_distance"] - look["rim_size"] - face.mirror, 0.05)
    temple = edge(0.02 - np.abs(dv), face.sharp) * edge(face.mirror - look["eye_distance"] - look["rim_size"], 0.05)
    rims = np.maximum(np.maximum(ring, bridge), temple)
    lens = edge(look["rim_size"] - radius, face.sharp)
    lay(image, lens * (look["dark_lens"] * look["glasses"] * face.cover), look["frame"] * 0.6)
    lay(image, rims * (look["glasses"] * face.cover), look["frame"])
    band = edge(face.v - 0.26 - 0.06 * face.u * face.u, 0.05) * face.cover * look["mask"]
    lay(image, band, look["cloth"] * face.shade)


def _camera(look: Look, image: Floats, noise: Floats, grid: Floats) -> NDArray[np.uint8]:
    """What the camera makes of the scene: blur, exposure, tone, vignette, noise, 8 bits."""
    step = max(1, round(len(grid) / 64))
    for taps in ("blur", "blur_more"):
        image = _soften(image, look[taps], step)
    image = image * look["gain"] * (1.0 - look["vignette"] * (grid * grid + (grid * grid)[:, None]))
    image = clip01(image + look["haze"] * (0.5 - image))
    tone = look["tone"]  # lifts (above 0) or sinks (below 0) the middle greys: x(1 + t)/(1 + tx)
    image = image * (1.0 + tone) / (1.0 + tone * image)
    image += noise[:, None] * look["grain"]
    levels = np.rint(clip01(image) * 255.0).astype(np.uint8)
    return np.ascontiguousarray(levels.transpose(0, 2, 3, 1))


def _soften(image: Floats, weight: Floats, step: int) -> Floats:
    """Mix each pixel with those `step` away, along both axes: (w, 2 − 2w, w)/2 with w = weight, up to ½."""
    for axis in (2, 3):
        last = image.shape[axis] - 1
        index = np.arange(last + 1)
        before = image.take(np.clip(index - step, 0, last), axis=axis)
        after = image.take(np.clip(index + step, 0, last), axis=axis)
        image = image + weight * (0.5 * (before + after) - image)
    return image


def mix(colours: Sequence[tuple[float, float, float]], channels: int) -> NDArray[np.float64]:
    """Colours as a table (len(colours), channels): RGB as given, or the grey that a camera would make of them."""
    table = np.array(colours, dtype=np.float64)
    if channels == 3:
        return table
    return table[:, :1] * 0.299 + table[:, 1:2] * 0.587 + table[:, 2:3] * 0.114
