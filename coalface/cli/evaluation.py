"""Commands that evaluate a model: `coalface evaluate`, `ijb` and `megaface`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coalface.cli.console import print_json, print_table
from coalface.cli.data import AsJson, Quiet
from coalface.cli.use.options import MODEL, Input, Party, open_model, read_input
from coalface.core.text import several

if TYPE_CHECKING:
    from coalface.models.calibration import Threshold

Model = Annotated[Path, typer.Argument(help=MODEL)]
Flip = Annotated[bool, typer.Option("--flip", help="Add the embedding of the mirrored image (F1).")]
Features = Annotated[
    Path | None, typer.Option(help="A folder to keep embeddings in, so that a stopped evaluation can resume.")
]


def evaluate(
    model: Model,
    on: Annotated[
        Path, typer.Option("--on", help="A pair list (with --images), a .bin, a pack, or folders of images.")
    ],
    images: Annotated[Path | None, typer.Option(help="The identity folders or pack that a pair list names.")] = None,
    party: Party = None,
    convention: Input = None,
    threshold_from: Annotated[
        Path | None, typer.Option(help="A second list to choose the threshold on (View 1).")
    ] = None,
    flip: Flip = False,
    pairs: Annotated[
        int | None,
        typer.Option(help="How many genuine pairs to draw where --on has no list; 3000, or all, by default."),
    ] = None,
    list_name: Annotated[
        str | None, typer.Option("--list", help="The name of one of the pair lists of --on, a layout such as RFW.")
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Keep the thresholds at FARs as the model's own, in calibration.json beside it."
        ),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model on pairs: ten-fold accuracy, TAR at FARs with the threshold named, EER.

    Where the model was trained on people in them, the figures on the pairs of others are given too.

    Figures of your own that the run's recipe names are computed as well.
    """
    from coalface.core.errors import RecipeError
    from coalface.data.stores import telling_passed_over
    from coalface.data.tools.progress_bar import counting
    from coalface.evaluation.finished_model import evaluate_model

    if calibrate and flip:
        raise RecipeError("who uses a model embeds an image alone: leave --flip out", where="--calibrate")
    show = functools.partial(counting, quiet=quiet or as_json)
    with telling_passed_over(lambda note: typer.echo(f"note: {note}", err=True)):
        figures = evaluate_model(
            model,
            on,
            images=images,
            party=party,
            convention=read_input(convention),
            threshold_from=threshold_from,
            flip=flip,
            pairs=pairs,
            list_name=list_name,
            show=show,
        )
    if calibrate:
        typer.echo(_calibrated(open_model(model, party, convention).calibrate(figures, on.name)), err=True)
    for remark in _remarks(figures, requested_pairs=pairs):
        typer.echo(remark, err=True)
    print_json(figures) if as_json else _print_figures(figures)


def ijb(
    model: Model,
    meta: Annotated[Path, typer.Argument(help="The folder `meta` of IJB-B or IJB-C, or IJB-A's folder of splits.")],
    images: Annotated[Path, typer.Option(help="The folder of the images that the lists name, such as loose_crop.")],
    party: Party = None,
    convention: Input = None,
    flip: Flip = False,
    norm: Annotated[
        bool, typer.Option("--norm/--no-norm", help="Keep the length of features (N1), or set it to one (N0).")
    ] = True,
    detector: Annotated[
        bool | None,
        typer.Option(
            "--detector-score/--no-detector-score",
            help="Weight by the detector's score (D1), or not (D0); on by default where the lists have it.",
        ),
    ] = None,
    features: Features = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model on IJB-A, IJB-B or IJB-C: TAR at FARs over templates, rank-k and TPIR at FPIRs.

    Images of IJB-B and IJB-C are aligned by the landmarks in their list; those of IJB-A must be faces already.
    """
    from coalface.data.tools.progress_bar import counting
    from coalface.evaluation.ijb import evaluate_ijb

    show = functools.partial(counting, quiet=quiet)
    figures = evaluate_ijb(
        model,
        meta,
        images,
        party=party,
        convention=read_input(convention),
        flip=flip,
        norm=norm,
        detector=detector,
        features=features,
        show=show,
    )
    print_json(figures) if as_json else _print_ijb(figures)


def megaface(
    model: Model,
    lists: Annotated[Path, typer.Argument(help="The kit's folder `templatelists`.")],
    probes: Annotated[Path, typer.Option(help="The folder of FaceScrub's images.")],
    distractors: Annotated[Path, typer.Option(help="The folder of MegaFace's images.")],
    size: Annotated[int, typer.Option(help="Number of distractors: the size of one of the kit's lists.")] = 1_000_000,
    number: Annotated[int, typer.Option("--set", help="The number of the list of that size.")] = 1,
    facescrub_noises: Annotated[
        Path | None, typer.Option(help="insightface's list of noisy probes, to leave out.")
    ] = None,
    megaface_noises: Annotated[
        Path | None, typer.Option(help="insightface's list of noisy distractors, to leave out.")
    ] = None,
    party: Party = None,
    convention: Input = None,
    flip: Flip = False,
    features: Features = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model on MegaFace: rank-1 among distractors, and TAR at FAR 1e-6.

    Images must be faces already; noises are left out.
    """
    from coalface.data.tools.progress_bar import counting
    from coalface.evaluation.megaface import evaluate_megaface

    figures = evaluate_megaface(
        model,
        lists,
        probes,
        distractors,
        size=size,
        number=number,
        facescrub_noises=facescrub_noises,
        megaface_noises=megaface_noises,
        party=party,
        convention=read_input(convention),
        flip=flip,
        features=features,
        show=functools.partial(counting, quiet=quiet),
    )
    if as_json:
        print_json(figures)
        return
    for name, value in figures.items():
        typer.echo(f"{name:24} {_value_text(name, value)}")


def _calibrated(thresholds: list[Threshold]) -> str:
    """What thresholds are worth that were just kept."""
    if not thresholds:
        return "warning: no threshold is kept: one at FAR 0.1 needs 10 impostor pairs; give more pairs"
    least = min(thresholds, key=lambda threshold: threshold.rate or 1)
    people = several(round(0.1 / (least.rate or 1)), "person", "people")
    warning = f"warning: {least.collapsed}\n" if least.collapsed else ""
    return (
        f"{warning}note: the threshold at the smallest FAR that is kept, {least.rate:g}, rests on {least.basis} of "
        f"{least.on}; with {people} enrolled it takes a tenth of all strangers for somebody. Thresholds hold for "
        "images like these"
    )


def _remarks(figures: dict[str, Any], requested_pairs: int | None) -> Iterator[str]:
    """What a person must know to read the figures of `coalface evaluate`; `requested_pairs` is its --pairs."""
    from coalface.evaluation.finished_model import PAIRS

    if requested_pairs is None and (drawn := figures.get("drawn", PAIRS)) < PAIRS:
        yield f"note: drew {drawn:,} genuine pairs and as many impostor pairs: these images make no {PAIRS:,} of each"
    yield from (f"note: a figure of the run is left out: {reason}" for reason in figures.get("left_out", ()))
    lists = figures.get("lists", {"": figures})
    if any(of_list["trained_on"] is None for of_list in lists.values()):
        yield (
            "note: nothing says who the model was trained on (it lies outside of its run, or its parties have images "
            "of their own), so nobody can tell whether people in the pairs were"
        )
    for name, of_list in lists.items():
        where = f"{name}: " if name else ""
        if shared := of_list.get("people_in_both_lists"):
            text = f"{shared:,} people are in both lists, so the threshold has seen people of the pairs"
            yield f"warning: {where}{text}"
        for key, place in (("trained_on", "in the pairs"), ("threshold_trained_on", "in the list of the threshold")):
            trained = of_list.get(key)
            if trained and trained["people"]:
                alone = f" ({trained['by_name_alone']:,} by name alone)" if trained["by_name_alone"] else ""
                is_enough = "eer" in of_list["others"]
                remedy = "`others` is without them" if is_enough else "too few others are left to evaluate on"
                yield (
                    f"warning: {where}{trained['people']:,} of the {trained['of']:,} people {place} were trained "
                    f"on{alone}, and {trained['pairs']:,} pairs show them: {remedy}"
                )


def _print_figures(figures: dict[str, Any]) -> None:
    """The figures of `coalface evaluate`, list by list, those on people who were not trained on beside them."""
    lists = figures.pop("lists", {})
    figures.pop("left_out", None)
    for name, of_list in [("", figures), *lists.items()]:
        if name:
            typer.echo(f"\n{name}")
        figures_of_others = of_list.pop("others", None)
        for key, value in of_list.items():
            if figures_of_others is not None and key == "pairs":
                typer.echo(f"{'':24} {'all':>12} {'others':>12}")
            if figures_of_others is not None and isinstance(figures_of_others.get(key), (int, float)):
                typer.echo(f"{key:24} {_value_text(key, value):>12} {_value_text(key, figures_of_others[key]):>12}")
            elif key != "roc":  # points for a drawing
                typer.echo(f"{key:24} {_value_text(key, value)}")


def _value_text(name: str, value: Any) -> str:
    """A figure for people, in its unit."""
    from coalface.evaluation.figures import figure_of
    from coalface.models.pretrained.input import convention_of

    if name == "input":
        return str(convention_of({name: value}))
    if name.endswith("trained_on"):
        return f"{value['people']:,} of {value['of']:,} people, {value['pairs']:,} pairs" if value else "not known"
    if isinstance(value, float):
        figure = figure_of(name)
        return figure.mean_text(value) + figure.unit.sign
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_ijb(results: dict[str, Any]) -> None:
    for name in ("model", "set", "options", "images", "templates", "pairs", "genuine", "splits"):
        if name in results:
            typer.echo(f"{name:24} {_value_text(name, results[name])}")
    typer.echo("")
    if "splits" in results:
        rows = [
            {"1:1": name, "mean %": f"{mean:.2f}", "sd": f"{results['sd'][name]:.2f}"}
            for name, mean in results["mean"].items()
        ]
    else:
        fars = [name for name in results if name.startswith("tar@far=")]
        rows = [
            {
                "1:1": name,
                "TAR %": f"{results[name]:.2f}",
                "threshold": f"{results[name.replace('tar', 'threshold')]:.6f}",
            }
            for name in fars
        ]
    if rows:
        print_table(rows, numbers=set(rows[0]) - {"1:1"})
    else:
        typer.echo("1:1: too few impostor pairs for any of the false accept rates")
    if "galleries" in results:
        searched = {**results["galleries"], "mean": results["mean"]}
        names = list(dict.fromkeys(name for figures in searched.values() for name in figures))
        lines = [
            {"1:N": gallery, **{name: f"{figures[name]:.2f}" if name in figures else "" for name in names}}
            for gallery, figures in searched.items()
        ]
        typer.echo("")
        print_table(lines, numbers=names)
