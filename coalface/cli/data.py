"""The commands `coalface data`, for sets of face images."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from coalface.cli.console import Commands, print_json, stopping
from coalface.cli.use.options import MODEL, DetectorPath, Input, Party, Upright, open_detector, open_model
from coalface.core.errors import RecipeError
from coalface.core.text import several

Part = Annotated[str, typer.Option(help="A part of a layout: train or test of VGGFace2, a race of RFW or BUPT.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

data = typer.Typer(
    name="data", cls=Commands, no_args_is_help=True, help="Sets of face images: inspect, align, convert, pack."
)


@data.command()
def pack(
    source: Annotated[Path, typer.Argument(help="Identity folders, or insightface records.")],
    out: Annotated[Path, typer.Argument(help="The pack to write.")],
    size: Annotated[int, typer.Option(help="Side of the packed images in pixels.")] = 112,
    grey: Annotated[bool, typer.Option("--grey", help="One channel instead of three.")] = False,
    part: Part = "",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Decode a set of images once, into a pack that training reads as a memory map."""
    from coalface.data.readers.pack import read_pack, write_pack
    from coalface.data.stores import open_store
    from coalface.data.tools.progress_bar import counting

    store = open_store(source, part=part)
    with counting("packing", len(store.files), quiet or as_json) as count:
        write_pack(store, out, size=size, grey=grey, progress=lambda number, total: count(number))
    notes = [f"ignored: {ignored}" for ignored in store.passed_over()]
    _print_written(out, read_pack(out), f"{size}×{size}", notes, as_json)


@data.command()
def preview(
    out: Annotated[Path, typer.Argument(help="The PNG to write.")] = Path("synthetic-preview.png"),
    seed: Annotated[int, typer.Option(help="Seed of the people shown.")] = 0,
) -> None:
    """Draw a preview of the synthetic faces: the same people in every domain."""
    from coalface.data.synthetic import generator as synthetic

    synthetic.preview(out, seed=seed)
    typer.echo(f"wrote {out}")


@data.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Identity folders, train.rec or its folder, a .bin, or a pack.")],
    out: Annotated[Path, typer.Argument(help="The file or folder to write; a name that ends in .bin sets the format.")],
    to: Annotated[
        str | None, typer.Option(help="The format: folder, rec, bin or pack; required unless OUT ends in .bin.")
    ] = None,
    pairs: Annotated[Path | None, typer.Option(help="For a .bin: a pair list (docs/formats.md).")] = None,
    list_name: Annotated[
        str | None, typer.Option("--list", help="For a .bin: the name of one of a layout's own pair lists.")
    ] = None,
    draw: Annotated[
        int | None, typer.Option(help="For a .bin: how many genuine, and as many impostor, pairs to draw.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the drawn pairs; 0 by default.")] = None,
    size: Annotated[int | None, typer.Option(help="For a pack: side of the images in pixels; 112 by default.")] = None,
    grey: Annotated[bool, typer.Option("--grey", help="For a pack: one channel instead of three.")] = False,
    part: Part = "",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Convert between identity folders, insightface records (.rec) and pairs (.bin), and packs."""
    from coalface.core.method import generator
    from coalface.data.stores import open_store
    from coalface.data.tools import convert as converting
    from coalface.data.tools.progress_bar import counting

    kind = converting.kind_of(out, to)
    values = {"--pairs": pairs, "--list": list_name, "--draw": draw, "--seed": seed, "--size": size}
    converting.check_options(kind, [option for option in values if values[option] is not None] + ["--grey"] * grey)
    store = open_store(source, part=part)
    pair_source = converting.Pairs(pairs, draw, generator(seed or 0, "convert", "pairs"), list_name)
    side = 112 if size is None else size
    with counting("converting", len(store), quiet or as_json) as count:
        remarks = converting.convert(
            store, out, kind, size=side, grey=grey, pairs=pair_source, progress=lambda number, total: count(number)
        )
    _print_written(out, open_store(out), kind, remarks, as_json)


@data.command()
def align(
    source: Annotated[Path, typer.Argument(help="A folder of photographs, such as identity folders.")],
    out: Annotated[Path, typer.Argument(help="The folder of aligned faces to write, or to go on with.")],
    all_faces: Annotated[
        bool, typer.Option("--all", help="All faces of a photograph, as photo_1.jpg, photo_2.jpg, …")
    ] = False,
    landmarks: Annotated[
        Path | None,
        typer.Option(help="A list of landmarks, or a folder with lists named …_lmk.txt, in place of a detector."),
    ] = None,
    detector: DetectorPath = None,
    upright: Upright = False,
    size: Annotated[int, typer.Option(help="Side of the aligned faces in pixels.")] = 112,
    min_side: Annotated[
        float, typer.Option(help="Pixels of the photograph along the side of the square around a face, at least.")
    ] = 40,
    min_sharpness: Annotated[
        float, typer.Option(help="Detail of a face, at least: report.html has the figures of what was left out.")
    ] = 0.005,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the faces of photographs, align them by five landmarks, and write them into a folder with the same tree.

    What gives no face is listed with the reason in OUT/left-out.csv and OUT/report.html. The same command again goes
    on after Ctrl-C, and looks only at photographs that are new or changed.
    """
    from coalface.data.photographs import Limits
    from coalface.data.tools.aligned_folder import list_photographs
    from coalface.data.tools.progress_bar import counting
    from coalface.experiments.api import align as aligning
    from coalface.experiments.api import alignment_page

    if landmarks is not None and (detector is not None or upright or all_faces):
        raise RecipeError("no face is looked for where landmarks are given: leave the others out", where="--landmarks")
    limits = Limits(side=min_side, sharpness=min_sharpness)
    options: dict[str, Any] = {"landmarks": landmarks, "all_faces": all_faces, "size": size}
    if landmarks is None:
        options["detector"] = open_detector(detector, upright)
    progress = counting("aligning", len(list_photographs(source)[0]), quiet or as_json)
    with stopping("the same command goes on where it stopped"), progress as count:
        folder = aligning.align_folder(source, out, **options, limits=limits, progress=count)
    if as_json:
        counts = {"files": len(folder.photographs), "faces": folder.faces, "looked_at": folder.fresh}
        print_json({"out": out, "size": size, **counts, "left_out": folder.reasons, "removed": folder.removed})
        return
    if folder.removed:
        typer.echo(f"note: {several(len(folder.removed), 'face')} in {out} came from photographs that are gone")
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in folder.reasons.items())
    left_out = f"; {len(folder.left_out):,} gave none ({reasons}): {out / alignment_page.FILE}" if reasons else ""
    files = several(len(folder.photographs), "file")
    typer.echo(f"{out}: {several(folder.faces, 'face')} of {files}, {size}×{size}{left_out}")


@data.command()
def inspect(
    source: Annotated[
        Path, typer.Argument(help="Identity folders, train.rec or its folder, a .bin, a pack, or a recipe (.yaml).")
    ],
    headers: Annotated[
        bool, typer.Option("--headers", help="Read headers only: faster, but finds less damage and fewer copies.")
    ] = False,
    model: Annotated[Path | None, typer.Option(help=f"{MODEL[:-1]}: also look for images with wrong labels.")] = None,
    party: Party = None,
    convention: Input = None,
    party_data: Annotated[
        Path | None, typer.Option(help="Of a recipe: a YAML file that names each party's party.yaml, as for a run.")
    ] = None,
    part: Part = "",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Inspect a set of face images: counts, sizes, damage, copies, similar names, folders that are no people.

    Of a recipe, whether its parties, or training and evaluation, share identities, by their names.

    Exits with status 1 if an image, a record, a folder or a file is damaged.
    """
    if source.suffix in (".yaml", ".yml"):
        options = {"--headers": headers, "--model": model, "--party": party, "--input": convention, "--part": part}
        for option, value in options.items():
            if value:
                raise RecipeError("a recipe is inspected by the names of its people alone: leave it out", where=option)
        _inspect_recipe(source, party_data, as_json)
        return
    for option, value in (("--party", party), ("--input", convention)):
        if value is not None and model is None:
            raise RecipeError("it says how to read a model: add --model, or leave it out", where=option)
    if party_data is not None:
        raise RecipeError("it belongs to a recipe: leave it out", where="--party-data")
    from coalface.data.stores import open_store
    from coalface.data.tools import inspect as inspection
    from coalface.data.tools.progress_bar import counting

    show = functools.partial(counting, quiet=quiet or as_json)
    store = open_store(source, part=part, damaged="leave out")
    with show("looking", len(store)) as count:
        report = inspection.inspect(store, decode=not headers, progress=count)
    if model is not None:
        from coalface.experiments.gallery.label_noise import find_label_noise

        noise = find_label_noise(open_model(model, party, convention), store, show)
        report.wrong_labels = [vars(suspect) for suspect in noise.suspects]
        report.wrong += filter(None, [str(noise)])
    print_json(report.as_dict()) if as_json else typer.echo(inspection.report_text(report))
    if not report.sound:
        raise typer.Exit(1)


def _inspect_recipe(path: Path, party_data: Path | None, as_json: bool) -> None:
    from coalface.experiments.recipe import loader, party_file
    from coalface.experiments.setup.overlap import find_overlap
    from coalface.experiments.setup.party_data import check_here

    recipe = loader.load(path)
    if party_data is not None:
        recipe = party_file.fill(recipe, party_file.read_all(party_data))
    check_here(recipe)
    overlap = find_overlap(recipe, str(path))
    print_json(overlap.as_dict()) if as_json else typer.echo(str(overlap))


def _print_written(out: Path, images: Any, form: str, notes: Sequence[str], as_json: bool) -> None:
    """What a command has written: images of some format or size, and what to know of them."""
    if not as_json:
        for note in notes:
            typer.echo(f"note: {note}")
    counts = f"{several(len(images), 'image')} of {several(len(images.names), 'identity', 'identities')}"
    written = {"out": out, "form": form, "images": len(images), "identities": len(images.names), "notes": list(notes)}
    print_json(written) if as_json else typer.echo(f"{out}: {counts}, {form}")
