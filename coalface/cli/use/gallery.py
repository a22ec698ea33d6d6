"""Commands that use a model: `coalface embed`, `verify` and `gallery`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalface.cli.console import Commands, print_json, print_table
from coalface.cli.data import AsJson, Quiet
from coalface.cli.use.options import (
    MODEL,
    DetectorPath,
    Input,
    Party,
    Photographs,
    Upright,
    detector_of,
    open_model,
)
from coalface.core.text import several, shown

if TYPE_CHECKING:
    from coalface.experiments.gallery.gallery import Gallery, Identified
    from coalface.experiments.gallery.images import Refusal
    from coalface.models.calibration import Threshold

Model = Annotated[Path, typer.Option(help=MODEL)]
GalleryModel = Annotated[
    Path | None, typer.Option(help="The model, where it is no longer at the place that the gallery names.")
]
Place = Annotated[Path, typer.Argument(metavar="GALLERY", help="The gallery's file.")]
ImagePaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="IMAGES...", help="Images, folders of them, a .rec or a pack: aligned faces, or --photographs."
    ),
]
Key = Annotated[
    Path | None, typer.Option(help="The file of the key (32 random bytes or more) of an encrypted gallery.")
]
Far = Annotated[float | None, typer.Option(help="Decide by the model's threshold at this false accept rate.")]
Cosine = Annotated[float | None, typer.Option("--threshold", help="Decide by this cosine instead.")]

gallery = typer.Typer(
    name="gallery", cls=Commands, no_args_is_help=True, help="People enrolled by images: identify them in others."
)


def embed(
    images: ImagePaths,
    model: Model,
    out: Annotated[Path, typer.Option(help="The .npz file to write: embeddings, files, model.")] = Path(
        "embeddings.npz"
    ),
    party: Party = None,
    convention: Input = None,
    photographs: Photographs = False,
    detector: DetectorPath = None,
    upright: Upright = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Embed images: unit embeddings, one a row, and the names of their files, as a NumPy file."""
    import numpy as np

    from coalface.core.disk import beside, check_free, put_in_place
    from coalface.core.errors import DataError
    from coalface.data.tools.progress_bar import counting
    from coalface.experiments.gallery.images import embed_images, find_images

    check_free(out)
    _print_notes(images)
    network, finder = open_model(model, party, convention), detector_of(photographs, detector, upright)
    show = functools.partial(counting, quiet=quiet or as_json)
    batches = list(embed_images(network, find_images(images), show, finder))
    files = [image.file for batch in batches for image in batch.images]
    refused = [refusal for batch in batches for refusal in batch.refused]
    if not files:
        raise DataError(
            f"{several(len(refused), 'image')}, of which none can be embedded: {refused[0].reason}",
            where=refused[0].file,
        )
    with beside(out) as partial:
        with open(partial, "wb") as file:
            embeddings = np.concatenate([batch.embeddings for batch in batches])
            np.savez(file, embeddings=embeddings, files=np.array(files), model=np.array(network.fingerprint))
        put_in_place(partial, out)
    if as_json:
        print_json({"out": out, "embeddings": len(files), "model": network.fingerprint, "refused": _rows(refused)})
        return
    _print_refused(refused)
    typer.echo(f"{out}: {several(len(files), 'embedding')} of {network.embedding_size} numbers")


def verify(
    first: Annotated[Path, typer.Argument(metavar="A", help="An aligned face, or with --photographs a photograph.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another.")],
    model: Model,
    far: Far = None,
    threshold: Cosine = None,
    party: Party = None,
    convention: Input = None,
    photographs: Photographs = False,
    detector: DetectorPath = None,
    upright: Upright = False,
    as_json: AsJson = False,
) -> None:
    """Verify whether two images show one person. Exits with 0 if they do, 1 if not, 2 after an error.

    The threshold is the model's at a false accept rate, 0.001 unless --far names another.
    """
    from coalface.core.errors import DataError, RecipeError
    from coalface.experiments.gallery.gallery import choose_threshold
    from coalface.experiments.gallery.images import embed_images, find_images

    network, finder = open_model(model, party, convention), detector_of(photographs, detector, upright)
    for path in (first, second):
        if path.is_dir():
            raise RecipeError("a folder; give one image, or look for a person by `coalface gallery`", where=str(path))
    decided_by = choose_threshold(network, far, threshold)
    (batch,) = embed_images(network, find_images([first, second]), detector=finder)
    for refusal in batch.refused:
        raise DataError(refusal.reason, where=refusal.file)
    similarity = float(batch.embeddings[0] @ batch.embeddings[1])
    same = similarity >= decided_by.cosine
    if as_json:
        print_json({"same": same, "similarity": similarity, **vars(decided_by), "model": network.fingerprint})
    else:
        typer.echo(f"{'same person' if same else 'different people'}: similarity {similarity:.6f}, {decided_by}")
    if not same:
        raise typer.Exit(1)


@gallery.command()
def create(
    place: Place,
    model: Model,
    party: Party = None,
    convention: Input = None,
    far: Far = None,
    threshold: Cosine = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Create a gallery without people, for one model. With --key, names and embeddings are encrypted.

    The threshold is the model's at a false accept rate, 0.001 unless --far names another.
    """
    from coalface.experiments.gallery.gallery import Gallery

    created = Gallery.create(place, open_model(model, party, convention), key=key, far=far, threshold=threshold)
    _print_warnings(created, created.threshold())
    if as_json:
        about = {"out": place, "model": created.file.about["model"], "encrypted": key is not None}
        print_json({**about, "threshold": vars(created.threshold())})
    else:
        typer.echo(f"wrote {place}; it decides by {created.threshold()}")


@gallery.command()
def enroll(
    place: Place,
    images: ImagePaths,
    name: Annotated[
        str | None, typer.Option(help="The person that all images show; by default each is named as its folder.")
    ] = None,
    photographs: Photographs = False,
    detector: DetectorPath = None,
    upright: Upright = False,
    model: GalleryModel = None,
    party: Party = None,
    key: Key = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Enroll people by images. The images are not kept; what is enrolled already is passed over.

    Exits with 1 where every image is refused.
    """
    from coalface.core.errors import RecipeError
    from coalface.data.tools.progress_bar import counting

    show = functools.partial(counting, quiet=quiet or as_json)
    finder = detector_of(photographs, detector, upright)
    if name == "":
        raise RecipeError("it is empty; name whom the images show, or leave it out", where="--name")
    opened = _open(place, model, party, key)
    enrolment = opened.enroll(images, name, detector=finder, show=show)
    _print_notes(images, named_by_folder=name is None)
    _print_warnings(opened, opened.threshold())
    if as_json:
        print_json({**vars(enrolment), "refused": _rows(enrolment.refused)})
    else:
        _print_refused(enrolment.refused)
        already = f", {several(enrolment.already, 'image')} before" if enrolment.already else ""
        people = several(len(enrolment.people), "person", "people")
        typer.echo(f"{place}: enrolled {several(enrolment.images, 'image')} of {people}{already}")
    if not enrolment.images + enrolment.already:
        raise typer.Exit(1)


@gallery.command()
def remove(
    place: Place,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The person, as `coalface gallery list` names them.")],
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Remove a person, from the bytes of the file too. Copies and backups of the file are yours to remove."""
    from coalface.experiments.gallery.gallery import Gallery

    count = Gallery(place, key=key).remove(name)
    print_json({"images": count}) if as_json else typer.echo(f"{place}: removed {several(count, 'image')} of {name}")


@gallery.command("list")
def list_people(
    place: Place,
    files: Annotated[bool, typer.Option("--files", help="List every image, with its file and SHA-256.")] = False,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List the people of a gallery, its model and its threshold."""
    from coalface.experiments.gallery.gallery import Gallery

    opened = Gallery(place, key=key)
    people = opened.people
    rows = (
        [vars(image) for image in opened.images()]
        if files
        else [{"person": person, "images": count} for person, count in people.items()]
    )
    if as_json:
        about = {"model": opened.file.about["model"], "threshold": vars(opened.threshold())}
        print_json({**about, "images" if files else "people": rows})
        return
    if rows:
        print_table([{key: shown(value) for key, value in row.items()} for row in rows], numbers={"images"})
    typer.echo(f"{several(len(people), 'person', 'people')}; {opened.threshold()}")


@gallery.command()
def identify(
    place: Place,
    images: ImagePaths,
    far: Far = None,
    fpir: Annotated[
        float | None, typer.Option(help="Decide by the gallery's threshold at this rate of strangers accepted.")
    ] = None,
    threshold: Cosine = None,
    top: Annotated[int, typer.Option(min=1, help="Candidates to show for each image, the nearest first.")] = 1,
    faiss: Annotated[
        bool, typer.Option("--faiss", help=r"Search by an index of faiss, of `coalface\[faiss]`.")
    ] = False,
    photographs: Photographs = False,
    detector: DetectorPath = None,
    upright: Upright = False,
    model: GalleryModel = None,
    party: Party = None,
    key: Key = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Identify people, and strangers, in images. Exits with 1 where every image is refused."""
    from coalface.data.tools.progress_bar import counting

    opened, show = _open(place, model, party, key, faiss), functools.partial(counting, quiet=quiet or as_json)
    finder = detector_of(photographs, detector, upright)
    identified = opened.identify(images, far=far, fpir=fpir, threshold=threshold, top=top, detector=finder, show=show)
    _print_notes(images)
    _print_warnings(opened, identified.threshold)
    if as_json:
        matches = _rows(identified.matches)
        print_json({"threshold": vars(identified.threshold), "matches": matches, "refused": _rows(identified.refused)})
    else:
        _print_refused(identified.refused)
    if not identified.matches:
        raise typer.Exit(1)
    if not as_json:
        _print_matches(opened, identified)


def _print_matches(opened: Gallery, identified: Identified) -> None:
    decided_by = identified.threshold
    rows = [
        {
            "file": shown(match.file),
            "person": shown(match.person),
            "similarity": f"{match.similarity:.6f}",
            "accepted": "yes" if match.accepted else "no",
        }
        for match in identified.matches
    ]
    print_table(rows, numbers={"similarity"})
    typer.echo(str(decided_by))
    if decided_by.kind == "FAR" and decided_by.rate is not None:
        people = len(opened.people)
        share = f"{100 * min(1.0, people * decided_by.rate):.2g} %"
        typer.echo(f"among {several(people, 'person', 'people')}, about {share} of strangers are taken for somebody")


def _open(place: Path, model: Path | None, party: str | None, key: Path | None, faiss: bool = False) -> Gallery:
    """A gallery with its model: the one that is named, or that which lies where the gallery says."""
    from coalface.core.errors import RecipeError
    from coalface.experiments.api.face_model import FaceModel
    from coalface.experiments.gallery.gallery import Gallery
    from coalface.models.folder import locate
    from coalface.models.pretrained.input import convention_of

    about = Gallery(place, key=key).file.about
    folder = model or place.absolute().parent / about["made_by"]
    if model is None and not folder.exists():
        raise RecipeError(f"the model of {place} is no longer at {folder}; name its folder", where="--model")
    is_onnx = folder.suffix == ".onnx"
    convention = convention_of(about) if is_onnx else None
    holds_one = is_onnx or (locate(folder) / "backbone.safetensors").exists()
    party = party or (None if holds_one else about["party"])
    return Gallery(place, FaceModel.opened(folder, party, convention), key=key, faiss=faiss)


def _rows(items: Any) -> list[dict[str, Any]]:
    return [vars(item) for item in items]


def _print_notes(images: list[Path], *, named_by_folder: bool = False) -> None:
    from coalface.experiments.gallery.images import notes_on

    for note in notes_on(images, named_by_folder=named_by_folder):
        typer.echo(f"note: {note}", err=True)


def _print_warnings(opened: Gallery, threshold: Threshold) -> None:
    for warning in opened.warnings(threshold):
        typer.echo(f"warning: {warning}", err=True)


def _print_refused(refused: list[Refusal]) -> None:
    for refusal in refused:
        typer.echo(f"refused: {shown(refusal.file)}: {shown(refusal.reason)}", err=True)
