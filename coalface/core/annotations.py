"""Annotations read as classes; one that cannot be read is named, with where it stands."""

from __future__ import annotations

import difflib
import re
import sys
import typing
from typing import Any


class DeclarationError(TypeError):
    """A message, a step or a method is declared, or used, in a way that no engine could carry out."""


def resolved(thing: Any, where: str) -> dict[str, Any]:
    """The annotations of a class or a function by name. Raises DeclarationError for a name that is not known."""
    try:
        return typing.get_type_hints(thing)
    except NameError as error:
        missing = error.name or ""
        written = {n: a for n, a in getattr(thing, "__annotations__", {}).items() if isinstance(a, str)}
        using = [f"`{n}: {a}`" for n, a in written.items() if re.search(rf"\b{re.escape(missing)}\b", a)]
        known = getattr(thing, "__globals__", None) or vars(sys.modules.get(thing.__module__, typing))
        near = difflib.get_close_matches(missing, [n for n in known if not n.startswith("_")], n=1)
        raise DeclarationError(
            f"{where}: {' and '.join(using) or 'an annotation'} names {missing!r}, which is not known in "
            f"{thing.__module__}.{f' Did you mean {near[0]!r}?' if near else ''} Import it, or define it above, at the "
            "top level of the file: neither in a function nor under TYPE_CHECKING."
        ) from None
    except (AttributeError, SyntaxError, TypeError) as error:
        raise DeclarationError(f"{where}: an annotation cannot be read as a class: {error}.") from error
