"""Identities that several parties of a recipe hold, or that it both trains on and evaluates, compared by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coalface.core.errors import RecipeError
from coalface.core.text import first_few, several, shown
from coalface.data.faceset import FaceSet
from coalface.experiments.recipe.schema import Recipe
from coalface.experiments.setup.pair_lists import evaluation_pairs
from coalface.experiments.setup.parts import Parts
from coalface.experiments.setup.sources import origin, unseen

TELLING = 5
"""Digits of a name that is a person's number in a whole data set, as `n000123`; `s1` and `007` are in many."""


@dataclass
class Overlap:
    """Who of a recipe's people is where."""

    path: str
    kind: str = "recipe"
    parties: dict[str, int] = field(default_factory=dict)
    """Party, or `public`, → identities."""
    between: dict[str, list[str]] = field(default_factory=dict)
    """Identity → the parties that hold it, where these are several."""
    evaluated: dict[str, list[str]] = field(default_factory=dict)
    """Pair list → identities that it evaluates and that are called as others that are trained on."""
    refused: list[str] = field(default_factory=list)
    """Pair lists that a run would refuse, and why: identities of the very images that are trained on, for one."""

    @property
    def wrong(self) -> list[str]:
        """What looks wrong, in sentences, each with what to do."""
        sentences = list(self.refused)
        for name, people in self.evaluated.items():
            sentences.append(
                f"{_are(len(people))} of evaluation.pairs.{name} called as others who are trained on, such as "
                f"{first_few(people)}: if they are the same people, keep them out of training by data.exclude"
            )
        if self.between:
            person, parties = next(iter(self.between.items()))
            sentences.append(
                f"{_are(len(self.between))} at several parties, such as {person} at {first_few(parties)}: people who "
                "are the same are learnt as different ones; keep each at one party, or list them in data.exclude"
            )
        return sentences

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**dataclasses.asdict(self), "wrong": self.wrong}

    def __str__(self) -> str:
        counts = self.parties.values()
        people = ""
        if counts:
            least, most = min(counts), max(counts)
            one = f"{several(most, 'identity', 'identities')} each"
            people = f" of {one if least == most else f'{least:,} to {most:,} identities'}"
        lines = [f"{self.path} (recipe): {several(len(counts), 'party', 'parties')}{people}"]
        lines += ["", "what looks wrong:", *(f"- {sentence}" for sentence in self.wrong)] if self.wrong else []
        return "\n".join(map(shown, lines if self.wrong else [*lines, "nothing looks wrong"]))


def find_overlap(recipe: Recipe, path: str) -> Overlap:
    """Look for the recipe's people by their names; no image is decoded. Raises RecipeError as a run would.

    People of one source are compared by name. Across sources, names with one to four digits are not compared.
    """
    parts, overlap = Parts(recipe, unseen), Overlap(path)
    parties = parts.truth if recipe.domains is not None else parts.silos
    if parts.public is not None:
        parties = {**parties, "public": parts.public}
    holders: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for party, faces in parties.items():
        overlap.parties[party] = len(faces.names)
        for name in faces.names:
            prefix, person = _split(recipe, name)
            origin_of = origin(recipe, recipe.data.parts[prefix]) if prefix else "?"
            source = "" if _is_telling(person) else str(origin_of)
            holders.setdefault((source, person), set()).add((party, name))
    for (_, person), held in sorted(holders.items()):
        if len(held) > 1:
            overlap.between[person] = sorted(party for party, _ in held)
    trained = {person for _, person in holders if _is_telling(person)}
    for name, settings in recipe.evaluation.pairs.items():
        evaluation = recipe.evaluation.model_copy(update={"pairs": {name: settings}})
        alone = recipe.model_copy(update={"evaluation": evaluation})
        try:
            (evaluated,) = evaluation_pairs(alone, parts.split.train, parts.split.held, unseen, parts.public)
        except RecipeError as error:
            overlap.refused.append(str(error))
            continue
        images = np.concatenate([evaluated.pairs.left, evaluated.pairs.right])
        if shared := sorted(trained & set(_people(recipe, evaluated.faces, images))):
            overlap.evaluated[name] = shared
    return overlap


def _people(recipe: Recipe, faces: FaceSet, images: Any) -> Iterator[str]:
    for number in np.unique(faces.labels[images]).tolist():
        yield _split(recipe, faces.names[number])[1]


def _split(recipe: Recipe, name: str) -> tuple[str, str]:
    """(the part of a joined source, or '', the person) of an identity's name."""
    prefix, _, person = name.partition("/")
    return (prefix, person) if prefix in recipe.data.parts else ("", name)


def _is_telling(person: str) -> bool:
    digits = sum(map(str.isdigit, person))
    return digits == 0 or digits >= TELLING


def _are(count: int) -> str:
    return several(count, "identity is", "identities are")
