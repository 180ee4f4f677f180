"""Reads YAML that a person wrote: plain values, lists and groups, without aliases and dates."""

from typing import Any

import yaml

_LONGEST = 1 << 20  # characters; the longest params.yaml has 10,000
_DEEPEST = 20  # groups inside each other; a configuration has five
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_PREFIX = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """Refuses YAML that expands to gigabytes, and values that no key can hold."""

    # A date stays text, for example the name of a directory.
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag.removeprefix(_PREFIX) in _PLAIN]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_PREFIX) in _PLAIN
    }
    _depth = 0

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            self._refuse("aliases (*name) are not allowed; write the value again")
        if self._depth == _DEEPEST:
            self._refuse(f"more than {_DEEPEST} groups or lists inside each other")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key in keys if keys.count(key) > 1]:
            mark = node.start_mark
            raise yaml.MarkedYAMLError(None, None, f"the key {twice[0]!r} is given twice", mark)
        return super().construct_mapping(node, deep)

    def _refuse(self, reason):
        raise yaml.MarkedYAMLError(None, None, reason, self.peek_event().start_mark)


def parse(text: str) -> Any:
    """Parses YAML into None, booleans, numbers, text, lists and dictionaries.

    Raises:
      yaml.YAMLError: it is not YAML, or it has aliases, a key twice, values of other kinds (dates
        are text), deep nesting, or too many characters.
    """
    if len(text) > _LONGEST:
        raise yaml.YAMLError(f"{len(text)} characters, at most {_LONGEST} are allowed")
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    except (ValueError, OverflowError) as error:  # a number of thousands of digits
        raise yaml.YAMLError(str(error)) from None
    finally:
        loader.dispose()
