"""YAML, more strictly than PyYAML reads it: no key twice, nothing that grows as it is read, and faults in one line."""

from __future__ import annotations

from typing import Any

import yaml

DEPTH = 50
"""How deep lists and mappings may lie in each other."""
_DEEP = f"lists and mappings lie more than {DEPTH} deep in each other"
VALUES = 200_000
"""The most values of a text, those that its aliases repeat included: a few lines of them can stand for billions."""
LONGEST = 200
"""Characters of a number; reading a longer one takes the square of its length."""


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
    except (ArithmeticError, LookupError, TypeError, AttributeError) as error:  # of a tag with no value of its kind
        raise ValueError(f"a value is none of its kind ({error})") from None


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._values = 0
        self._sizes: dict[yaml.Node, int] = {}
        """Values below a node that is whole, itself included."""

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        """Refuses before the depth counts: the scanner looks a thousand characters ahead, over all open brackets."""
        if self.flow_level >= DEPTH:
            raise yaml.scanner.ScannerError(None, None, _DEEP, self.get_mark())
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        begun, alias, before = self.peek_event(), self.check_event(yaml.AliasEvent), self._values
        self._depth += 1
        if self._depth > DEPTH:
            raise _refused(_DEEP, begun)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if alias and node not in self._sizes:
            raise _refused("a value holds itself", begun)
        self._values += self._sizes[node] if alias else 1
        if self._values > VALUES:
            raise _refused(f"it holds more than {VALUES:,} values, counting those that aliases repeat", begun)
        self._sizes.setdefault(node, self._values - before)
        return node

    def construct_scalar(self, node: yaml.Node) -> Any:
        if node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float") and len(str(node.value)) > LONGEST:
            raise _refused(f"a number has more than {LONGEST} characters", node)
        return super().construct_scalar(node)  # type: ignore[arg-type]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise _refused(f"the key {key.value} is given twice: join the two", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _refused(why: str, what: Any) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, why, what.start_mark)
