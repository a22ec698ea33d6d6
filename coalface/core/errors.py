"""The errors that a person can mend, by what is wrong: a recipe, or a file of images, pairs or weights."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from coalface.core.text import shown


class CoalfaceError(ValueError):
    """Something is wrong, and a person can mend it.

    `where` names the key, file, option or party at fault; the text says what is wrong there and what to do. Programs
    look at the type and at `where`: they are stable, the text is free to improve.

    Examples:
        >>> try:
        ...     raise RecipeError("it is below 1; use 1 or more", where="data.clients")
        ... except CoalfaceError as error:
        ...     print(error.where, "|", error)
        data.clients | data.clients: it is below 1; use 1 or more
    """

    def __init__(self, text: str, *, where: str | Path = "") -> None:
        super().__init__(f"{where}: {text}" if where else text)
        self.where, self.text = str(where), text


def raised_at(error: BaseException) -> str:
    """The last line outside Coalface, as of a user's method, that led to an error: ` (mine.py, line 12, in round)`.

    Empty where Coalface and installed packages alone took part.
    """
    ours = [Path(__file__).parents[1], *map(Path, (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")))]
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        if {"site-packages", "dist-packages"}.isdisjoint(file.parts) and file.suffix == ".py":
            if not any(file.is_relative_to(folder) for folder in ours):
                place = f" ({file.name}, line {line}, in {frame.f_code.co_name})"
    return place


class RunError(RuntimeError):
    """A run that cannot go on; the text says why, and what to do."""


class MissingExtra(ImportError):
    """A package that an extra of Coalface installs is not here.

    >>> print(MissingExtra("a search by faiss", "faiss"))
    a search by faiss needs the extra `faiss`, which is not installed: pip install 'coalface[faiss]'
    """

    def __init__(self, what: str, extra: str) -> None:
        text = f"{what} needs the extra `{extra}`, which is not installed: pip install 'coalface[{extra}]'"
        super().__init__(text)
        self.extra = extra


class RecipeError(CoalfaceError):
    """A recipe, a command or a folder that cannot be run as it is."""


class PluginError(RecipeError):
    """What a recipe names as `package.module:Name` cannot be imported here, or is another thing than the key takes."""


class DataError(CoalfaceError):
    r"""A file of images, pairs or weights that cannot be read as what it should be; what cannot be printed is escaped.

    Examples:
        >>> print(DataError("it is empty; fetch it again", where=Path("new\nline.txt")))
        new\nline.txt: it is empty; fetch it again
    """

    def __init__(self, text: str, *, where: str | Path = "") -> None:
        super().__init__(shown(text), where=shown(where))
