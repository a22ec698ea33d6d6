"""Commands that evaluate a model: `coalface evaluate`, `ijb` and `megaface`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coalface.cli.console import print_table
from coalface.cli.data import AsJson, Quiet

Model = Annotated[Path, typer.Argument(help="A run folder, or its model folder.")]
Party = Annotated[str | None, typer.Option(help="Whose model, where each party has its own.")]
Flip = Annotated[bool, typer.Option("--flip", help="Add the embedding of the mirrored image (F1).")]
Features = Annotated[
    Path | None, typer.Option(help="A folder that keeps what was embedded, so that a stopped run goes on.")
]


def evaluate(
    model: Model,
    on: Annotated[
        Path, typer.Option("--on", help="A pair list (with --images), a .bin, a pack, or folders of images.")
    ],
    images: Annotated[Path | None, typer.Option(help="The identity folders or pack that a pair list names.")] = None,
    party: Party = None,
    threshold_from: Annotated[
        Path | None, typer.Option(help="A second list that the threshold is chosen on (View 1).")
    ] = None,
    flip: Flip = False,
    pairs: Annotated[
        int | None,
        typer.Option(help="Draw so many genuine pairs; 3000, or all, where --on is a pack or folders without a list."),
    ] = None,
    own: Annotated[
        str | None, typer.Option("--list", help="One of the pair lists that --on, a layout such as RFW, brings along.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a model on pairs: ten-fold accuracy, TAR at FARs with the threshold named, EER.

    Where people in them were trained on, the figures on the pairs of others stand beside.
    """
    from coalface.data.stores import telling_passed_over
    from coalface.data.tools.progress_bar import counting
    from coalface.evaluation.finished_model import evaluate_model

    show = functools.partial(counting, quiet=quiet or as_json)
    with telling_passed_over(lambda said: typer.echo(f"note: {said}", err=True)):
        figures = evaluate_model(
            model,
            on,
            images=images,
            party=party,
            threshold_from=threshold_from,
            flip=flip,
            pairs=pairs,
            own=own,
            show=show,
        )
    for said in remarks(figures, asked=pairs):
        typer.echo(said, err=True)
    typer.echo(json.dumps(figures, indent=1)) if as_json else print_figures(figures)


def ijb(
    model: Model,
    meta: Annotated[Path, typer.Argument(help="The folder `meta` of IJB-B or IJB-C, or IJB-A's folder of splits.")],
    images: Annotated[Path, typer.Option(help="The folder of the images that the lists name, such as loose_crop.")],
    party: Party = None,
    flip: Flip = False,
    norm: Annotated[
        bool, typer.Option("--norm/--no-norm", help="Features keep their length (N1), or have length one (N0).")
    ] = True,
    detector: Annotated[
        bool | None,
        typer.Option(
            "--detector-score/--no-detector-score",
            help="Weigh by the detector's score (D1), or not (D0); where the lists have it, it is on.",
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
    found = evaluate_ijb(
        model, meta, images, party=party, flip=flip, norm=norm, detector=detector, features=features, show=show
    )
    typer.echo(json.dumps(found, indent=1)) if as_json else _print_ijb(found)


def megaface(
    model: Model,
    lists: Annotated[Path, typer.Argument(help="The kit's folder `templatelists`.")],
    probes: Annotated[Path, typer.Option(help="The folder of FaceScrub's images.")],
    distractors: Annotated[Path, typer.Option(help="The folder of MegaFace's images.")],
    size: Annotated[int, typer.Option(help="Distractors: the size of one of the kit's lists.")] = 1_000_000,
    number: Annotated[int, typer.Option("--set", help="Which of the lists of that size.")] = 1,
    facescrub_noises: Annotated[Path | None, typer.Option(help="insightface's list of wrong probes.")] = None,
    megaface_noises: Annotated[Path | None, typer.Option(help="insightface's list of wrong distractors.")] = None,
    party: Party = None,
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

    found = evaluate_megaface(
        model,
        lists,
        probes,
        distractors,
        size=size,
        number=number,
        facescrub_noises=facescrub_noises,
        megaface_noises=megaface_noises,
        party=party,
        flip=flip,
        features=features,
        show=functools.partial(counting, quiet=quiet),
    )
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        typer.echo(f"{name:24} {said(name, value)}")


def remarks(figures: dict[str, Any], asked: int | None) -> Iterator[str]:
    """What a person must know to read the figures of `coalface evaluate`, `asked` being the pairs to draw."""
    from coalface.evaluation.finished_model import PAIRS

    if asked is None and (drawn := figures.get("drawn", PAIRS)) < PAIRS:
        yield f"note: drew {drawn:,} genuine pairs and as many impostor pairs: these images make no {PAIRS:,} of each"
    lists = figures.get("lists", {"": figures})
    if any(each["trained_on"] is None for each in lists.values()):
        yield (
            "note: nothing says who the model was trained on (it lies outside of its run, is of an earlier version, or "
            "its parties have images of their own), so nobody can tell whether people in the pairs were"
        )
    for name, each in lists.items():
        where = f"{name}: " if name else ""
        if shared := each.get("people_in_both_lists"):
            yield (
                f"warning: {where}{shared:,} people are in both lists, so the threshold has seen people of the pairs"
            )
        for key, what in (("trained_on", "in the pairs"), ("threshold_trained_on", "in the list of the threshold")):
            found = each.get(key)
            if found and found["people"]:
                alone = f" ({found['by_name_alone']:,} by name alone)" if found["by_name_alone"] else ""
                left = (
                    "`others` is without them" if "eer" in each["others"] else "too few others are left to evaluate on"
                )
                yield (
                    f"warning: {where}{found['people']:,} of the {found['of']:,} people {what} were trained on{alone}, "
                    f"and {found['pairs']:,} pairs show them: {left}"
                )


def print_figures(figures: dict[str, Any]) -> None:
    """The figures of `coalface evaluate`, list by list, those on people who were not trained on beside them."""
    lists = figures.pop("lists", {})
    for name, each in [("", figures), *lists.items()]:
        if name:
            typer.echo(f"\n{name}")
        others = each.pop("others", None)
        for key, value in each.items():
            if others is not None and key == "pairs":
                typer.echo(f"{'':24} {'all':>12} {'others':>12}")
            if others is not None and isinstance(others.get(key), (int, float)):
                typer.echo(f"{key:24} {said(key, value):>12} {said(key, others[key]):>12}")
            elif key != "roc":  # points for a drawing
                typer.echo(f"{key:24} {said(key, value)}")


def said(name: str, value: Any) -> str:
    """A figure for people, in its unit."""
    from coalface.evaluation.figures import figure_of

    if name.endswith("trained_on"):
        return f"{value['people']:,} of {value['of']:,} people, {value['pairs']:,} pairs" if value else "not known"
    if isinstance(value, float):
        figure = figure_of(name)
        return figure.mean_text(value) + figure.unit.sign
    return f"{value:,}" if isinstance(value, int) else str(value)


def _print_ijb(found: dict[str, Any]) -> None:
    for name in ("model", "set", "options", "images", "templates", "pairs", "genuine", "splits"):
        if name in found:
            typer.echo(f"{name:24} {said(name, found[name])}")
    typer.echo("")
    if "splits" in found:
        rows = [
            {"1:1": name, "mean %": f"{mean:.2f}", "sd": f"{found['sd'][name]:.2f}"}
            for name, mean in found["mean"].items()
        ]
    else:
        fars = [name for name in found if name.startswith("tar@far=")]
        rows = [
            {
                "1:1": name,
                "TAR %": f"{found[name]:.2f}",
                "threshold": f"{found[name.replace('tar', 'threshold')]:.6f}",
            }
            for name in fars
        ]
    if rows:
        print_table(rows, numbers=set(rows[0]) - {"1:1"})
    else:
        typer.echo("1:1: there are too few impostor pairs for any of the false accept rates")
    if "galleries" in found:
        searched = {**found["galleries"], "mean": found["mean"]}
        names = list(dict.fromkeys(name for figures in searched.values() for name in figures))
        lines = [
            {"1:N": gallery, **{name: f"{figures[name]:.2f}" if name in figures else "" for name in names}}
            for gallery, figures in searched.items()
        ]
        typer.echo("")
        print_table(lines, numbers=names)
