"""The scenarios of a recipe: where training images come from and who holds them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from coalface.experiments.recipe.base import Kinds, Section
from coalface.experiments.recipe.partitions import PARTITIONS, Equal, Partition
from coalface.experiments.recipe.sections import (
    AnyFaces,
    JoinedParts,
    LoadedFaces,
    OneSource,
    PartyName,
    Source,
    Synthetic,
)


class Augmentation(Section):
    """Changes to training images."""

    flip: bool = True
    """Mirror left and right with probability 1/2."""
    crop: int = 0
    """Shift by a whole number of pixels, up to so many, down and across."""
    colour: float = 0.0
    """Multiply brightness, contrast and saturation by factors from 1 − colour to 1 + colour."""
    blur: float = 0.0
    """The probability of a blur."""


class Private(Section):
    """Which of the trainable identities the parties hold; the others are public, and a pre-training's."""

    identities: int = Field(ge=1)
    """So many of them, drawn by a fixed seed."""
    min_images: int = 1
    """From those with so many images or more."""
    public: int | None = Field(None, ge=1)
    """So many of the other identities are public, drawn by a fixed seed, and nobody's the rest; None: all."""
    assigned: int | None = Field(None, ge=1)
    """The parties hold only so many of them, and nobody the rest; None, or all of them: all."""

    @field_validator("assigned")
    @classmethod
    def _all_is_none(cls, value: int | None, info: ValidationInfo) -> int | None:
        """One recipe, and one digest, for all."""
        identities = info.data.get("identities")
        if value is not None and identities is not None and value > identities:
            raise ValueError(f"{value:,} of {identities:,} identities; give fewer")
        return None if value == identities else value


class Testing(Section):
    """Which images of those who are trained on are kept out of training, to verify them by afterwards."""

    images: int = Field(ge=1)
    """So many of every identity that has more, drawn by a fixed seed. Those with fewer keep all, and have none."""


class Data(Section):
    """What every scenario has."""

    root: str | None = None
    """Where the data sets lie; None: the environment variable COALFACE_DATA."""
    size: int = 64
    """Side of the images in pixels."""
    grey: bool = True
    """Whether images have one channel in place of three."""
    exclude: tuple[str, ...] | dict[str, tuple[str, ...]] = ()
    """Pair lists whose identities are not trained on. Of joined faces: part -> lists, each holding for that part; of
    parties that bring their own images: party, or `public`, -> lists."""
    exclude_people: tuple[str, ...] | None = None
    """Identities that are not trained on, by name: of joined faces as `part/identity`. For people of one part whom
    another holds, or whom a list shows, under another name."""
    min_images: int = 2
    """Identities with fewer images are left out."""
    augment: Augmentation = Augmentation()
    """Changes to training images."""

    @property
    def parts(self) -> dict[PartyName, Source]:
        """The named sources that the images are joined of; {} where they are of one."""
        return {}


class Tested(Data):
    """A scenario whose people may be verified by images of theirs that are kept out of training."""

    test: Testing | None = None
    """Images that no method trains on, of identities whose others are trained on: see
    `coalface.evaluation.enrolled`."""
    unlabelled: float | None = Field(None, ge=0, lt=1)
    """The share of each identity's training images, rounded down, whose identity its party does not know; drawn by a
    fixed seed. A method that has no use for them trains without them."""
    party_augment: dict[PartyName, Augmentation] = {}
    """Party -> what takes the place of `augment` there; a pooled party changes each image as its silo would."""


class OfFaces(Data):
    """A scenario of one set of faces."""

    faces: AnyFaces = Synthetic()
    """The images."""

    @model_validator(mode="before")
    @classmethod
    def _take_loaded(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(faces := values.get("faces"), LoadedFaces):
            return {"size": faces.size, "grey": faces.grey, **values, "faces": faces.source}
        return values

    @property
    def parts(self) -> dict[PartyName, Source]:
        """The named sources that the images are joined of; {} where they are of one."""
        return self.faces.parts if isinstance(self.faces, JoinedParts) else {}


class Assigned(OfFaces, Tested):
    """A scenario whose identities are assigned to parties by draws."""

    max_identities: int | None = None
    """Take only so many identities, drawn by the partition's seed."""
    max_images: int | None = Field(None, ge=1)
    """Take only so many images of an identity, its first; None: all."""
    hold_out: int | dict[PartyName, int] = 0
    """Identities set aside for evaluation, drawn by a fixed seed; of joined faces, of each part in proportion. Or part
    -> how many of it: those with the smallest SHA-256 of `part/identity`, whoever else is in the set."""
    rehearsal: dict[PartyName, int] | None = None
    """Part -> how many more to set aside, who are next by SHA-256 and are evaluated in place of those held out, and
    nobody else is. To choose settings on, so that the people that figures are of remain unseen."""


class Partitioned(Assigned):
    """A scenario whose parties a partition makes."""

    partition: Annotated[Partition, PARTITIONS] = Equal()
    """Who holds which identities; of private and public ones, which of the private."""


class Silos(Partitioned):
    """Parties of many identities each."""

    scenario: Literal["silos"] = "silos"
    """The scenario that `data` is of."""


class Public(Partitioned):
    """Silos of public people, as for a pre-training: a run on them leaves their class embeddings."""

    scenario: Literal["public"] = "public"
    """The scenario that `data` is of."""


class Devices(Assigned):
    """A party for each identity."""

    scenario: Literal["devices"] = "devices"
    """The scenario that `data` is of."""


class PrivatePublic(Partitioned):
    """The parties hold some of the identities, and all others are public."""

    scenario: Literal["private-public"] = "private-public"
    """The scenario that `data` is of."""
    private: Private
    """Whom the parties hold."""
    side: Literal["private", "public", "both"] | None = None
    """Whose images are trained on. None: the private ones, and in `pretrain` the public ones; for a pooled method, as
    the upper bound, `both`."""


class Domains(OfFaces):
    """Two parts of joined faces as domains: one whose identities are known, one whose are not."""

    scenario: Literal["domains"] = "domains"
    """The scenario that `data` is of."""
    source_domain: str
    """The part that the source client holds, with its identities."""
    target_domain: str
    """The part that the target clients hold, without."""
    clients: int = Field(1, ge=1)
    """Target clients, to whom its identities are assigned equally."""
    hold_out: int = Field(0, ge=0)
    """Identities of the target that nobody trains on, to be evaluated."""
    rehearsal: int | None = Field(None, ge=1)
    """How many more of the target to set aside, who are evaluated in place of those held out. To choose settings on, so
    that the people that figures are of remain unseen."""
    split: int | None = Field(None, ge=0)
    """Which of them: splits evaluate other people as long as there are enough. None: the run's seed."""
    calibrate: int = Field(0, ge=0)
    """Identities of the source that nobody trains on, by which the source client chooses a threshold of clustering."""
    side: Literal["source"] | None = None
    """Train on the source's alone, as in `pretrain`."""


class Own(Tested):
    """Each party brings images of its own, which the recipe does not name."""

    scenario: Literal["own"] = "own"
    """The scenario that `data` is of."""
    parties: tuple[PartyName, ...] = Field(min_length=1)
    """The names of the trainers."""
    party_data: dict[PartyName, OneSource] = {}
    """Where the images of parties lie that are played on this machine, as `coalface run --party-data` fills it in."""
    public: OneSource | None = None
    """Images of public people. A pre-training is on them, and where the method shares them the server and every party
    hold them. `exclude` calls them `public`."""

    @property
    def parts(self) -> dict[PartyName, Source]:
        """Party -> its images, of those that are played here."""
        return self.party_data


SCENARIOS = Kinds(Silos, Devices, Public, PrivatePublic, Domains, Own, key="scenario")
"""Every scenario; the first is the usual one."""
Scenario = Annotated[Data, SCENARIOS]
"""The data of a recipe."""
