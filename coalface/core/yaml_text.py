"""Strict YAML: no key twice, no aliases that grow, and one-line errors."""

from __future__ import annotations

from typing import Any

import yaml

DEPTH = 50
"""How deep lists and mappings may lie in each other."""
_DEEP = f"lists and mappings lie more than {DEPTH} deep in each other"
VALUES = 50_000
"""The most values of a text, those that its aliases repeat included: a few lines of them can stand for billions."""
_CHARACTERS = 1_000_000
_BEFORE_A_VALUE = ",\n:[{"
_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast; not every PyYAML has it
LONGEST = 200
"""Characters of a number; reading a longer one takes the square of its length."""


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError saying, in one line, what is wrong and where.

    A key that is given twice in a mapping is an error: PyYAML would take the last one without a word.
    """
    if len(text) > _CHARACTERS or sum(map(text.count, _BEFORE_A_VALUE)) > 4 * VALUES:
        raise ValueError(f"it is too long: at most {_CHARACTERS:,} characters and {VALUES:,} values are read")
    try:
        _check(text)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(where + " ".join(problem.split())) from None
    except (ArithmeticError, LookupError, TypeError, AttributeError) as error:  # of a tag with no value of its kind
        raise ValueError(f"a value does not match its tag ({error})") from None


def _check(text: str) -> None:
    """Refuse, event by event, what lies too deep, or holds too many values, before any is made."""
    sizes: dict[str | None, int] = {}
    """Values below an anchor whose value is whole, itself included."""
    values, within = 0, list[tuple[str | None, int]]()
    for event in yaml.parse(text, _Fast):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in (anchor for anchor, _ in within):
                raise _refused("a value holds itself", event)
            values += sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = within.pop()
            if anchor is not None:
                sizes[anchor] = values - before
        elif isinstance(event, yaml.NodeEvent):
            if isinstance(event, yaml.CollectionStartEvent):
                within.append((event.anchor, values))
            elif event.anchor is not None:
                sizes[event.anchor] = 1
            values += 1
        if len(within) > DEPTH:
            raise _refused(_DEEP, event)
        if values > VALUES:
            raise _refused(f"it holds more than {VALUES:,} values, counting those that aliases repeat", event)


class _Loader(_Fast):
    def construct_scalar(self, node: yaml.Node) -> Any:
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(str(node.value)) > LONGEST:
            raise _refused(f"a number has more than {LONGEST} characters", node)
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in keys:
                raise _refused(f"the key {key.value} is given twice: join the two", key)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(why: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)
