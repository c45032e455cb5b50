"""The checks of the house: words, class names, rooms, and stores to attributes of other modules' objects."""

from __future__ import annotations

import ast

import pytest

import rooms
import stores
import words


def test_the_tree_has_the_docstringof_the_glossary_and_no_class_name_twice() -> None:
    assert words.problems() == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# who is told of it", [(1, "told")]),
        ("def is_told(): ...", [(1, "is told".removeprefix("is "))]),
        ("x = 1\n# it is no number", [(2, "is no number")]),
        ("there is no key; it is no longer there, and no such file", []),
        ("Lets go of the stranger's lock", [(1, "Lets go"), (1, "stranger")]),
        ("a bold story, untold; the speakerphone", []),
    ],
)
def test_a_refused_word_is_found_in_names_and_in_text(text: str, found: list[tuple[int, str]]) -> None:
    assert list(words.refused(text)) == found


def test_a_class_name_in_two_modules_is_found() -> None:
    twice = words.defined_twice([("a.py", "class Frame: ...\nclass Other: ..."), ("b.py", "\nclass Frame: ...")])

    assert list(twice) == ["b.py:2: class Frame is defined in a.py:1 too"]


@pytest.mark.parametrize(
    ("docstring", "found"),
    [
        ("Translator of one run.", 1),
        ("Numbers of waiting rows.", 1),
        ("What was recorded.", 1),
        ("Translates one run.", 0),
        ("Raised when the disk is full.", 0),
    ],
)
def test_a_class_that_is_described_without_a_verb_is_found(docstring: str, found: int) -> None:
    lines = list(words.without_verb("a.py", f'class Frame:\n    """{docstring}"""'))

    assert lines == [f"a.py:1: class Frame is described by {docstring!r}, expected a verb: 'Holds …'"] * found


def test_objects_are_changed_by_their_own_methods() -> None:
    assert len(list(stores.stores())) <= 30, "python tests/stores.py"


@pytest.mark.parametrize(
    ("call", "counts"),
    [
        ("setattr(run, 'step', 1)", True),
        ("object.__setattr__(record, name, 1)", True),
        ("setattr(self, name, 1)", False),
        ("object.__setattr__(self, 'step', 1)", False),
        ("getattr(run, 'step')", False),
    ],
)
def test_a_store_by_a_function_counts_unless_it_is_to_the_object_itself(call: str, counts: bool) -> None:
    assert stores.sets_other(ast.parse(call, mode="eval").body) is counts


def test_no_import_circle_and_no_crowded_folder() -> None:
    assert list(rooms.problems()) == []


def test_a_circle_by_an_import_for_types_is_found() -> None:
    known = {"p.a": "if TYPE_CHECKING:\n    from p.b import B", "p.b": "def f():\n    from p import a", "p": ""}

    found = rooms.circle({name: rooms.imported(source, known) for name, source in known.items()})

    assert set(found) == {"p.a", "p.b"}
