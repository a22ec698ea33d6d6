"""YAML, more strictly than PyYAML reads it: no key twice, and faults in one line."""

from __future__ import annotations

from typing import Any

import yaml


def parse_yaml(text: str) -> Any:
    """The value of a YAML text. Raises ValueError saying, in one line, what is wrong and where.

    A key that is given twice in a mapping is an error: PyYAML would take the last one without a word.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or str(error)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ValueError(where + " ".join(problem.split())) from None


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value} is given twice: join the two", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
