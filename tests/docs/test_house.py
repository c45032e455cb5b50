"""The checks of the house: words, class names, plain lines, rooms, stores to attributes of other modules' objects."""

from __future__ import annotations

import ast

import pytest

import plain
import rooms
import stores
import words


@pytest.mark.long  # `make check` does the same
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
        ('KEYS = ("from", "speaker")  # third-party name', []),
    ],
)
def test_a_refused_word_is_found_in_names_and_in_text(
    text: str, found: list[tuple[int, str]]
) -> None:
    assert list(words.refused(text)) == found


def test_a_class_name_in_two_modules_is_found() -> None:
    twice = words.defined_twice(
        [("a.py", "class Frame: ...\nclass Other: ..."), ("b.py", "\nclass Frame: ...")]
    )

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
def test_a_class_that_is_described_without_a_verb_is_found(
    docstring: str, found: int
) -> None:
    lines = list(words.without_verb("a.py", f'class Frame:\n    """{docstring}"""'))

    assert (
        lines
        == [
            f"a.py:1: class Frame is described by {docstring!r}, expected a verb: 'Holds …'"
        ]
        * found
    )


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        (
            "complexity",
            f"def f(a):\n    return {' and '.join('a' * 13)}",
            "1: f has a complexity of 13, at most 12",
        ),
        ("complexity", f"def f(a):\n    return {' and '.join('a' * 12)}", None),
        (
            "complexity",
            f"def f(a):\n    def g():\n        return {' or '.join('a' * 9)}\n    return {' or '.join('a' * 9)}",
            None,
        ),
        (
            "nested-ternary",
            "x = 1 if a else (2 if b else 3)",
            "1: a ternary inside a ternary: use if and elif, or a table",
        ),
        ("nested-ternary", "x = 1 if a else 3", None),
        (
            "packed-assignment",
            "\na, b = 1, 2",
            "2: several assignments in one statement: one a line",
        ),
        (
            "packed-assignment",
            "a = b = 1",
            "1: several assignments in one statement: one a line",
        ),
        ("packed-assignment", "a, b = pair", None),
        (
            "generic-name",
            "for found in rows: ...",
            "1: 'found' is not the name of a thing",
        ),
        (
            "generic-name",
            "def f(_known): ...",
            "1: '_known' is not the name of a thing",
        ),
        ("generic-name", "for row in found: ...", None),
        (
            "attributes",
            "class Run:\n    def __init__(self):\n"
            + "".join(f"        self.a{n} = 1\n" for n in range(13)),
            "1: Run has 13 attributes, at most 12",
        ),
        (
            "attributes",
            "class Run:\n    def __init__(self):\n        self.a = other.b = 1",
            None,
        ),
    ],
)
def test_a_line_that_is_hard_to_read_is_found(
    kind: str, source: str, text: str | None
) -> None:
    places = [f"{line}: {text}" for line, text in plain.KINDS[kind](ast.parse(source))]

    assert places == ([text] if text else [])


def test_only_more_lines_that_are_hard_to_read_fail_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {
        kind: len(plain.places(kind, "otel_bridge/journal")) for kind in plain.CEILINGS
    }
    monkeypatch.setattr(plain, "PRODUCT", ("otel_bridge/journal",))

    monkeypatch.setattr(
        plain, "CEILINGS", {kind: number + 1 for kind, number in numbers.items()}
    )
    assert plain.main([]) == 0
    assert "complexity: lower the ceiling" in capsys.readouterr().out

    monkeypatch.setattr(plain, "CEILINGS", {**numbers, "attributes": -1})
    assert plain.main([]) == 1
    assert "attributes: 0 places, at most -1" in capsys.readouterr().out


@pytest.mark.long
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
def test_a_store_by_a_function_counts_unless_it_is_to_the_object_itself(
    call: str, counts: bool
) -> None:
    assert stores.sets_other(ast.parse(call, mode="eval").body) is counts


def test_no_import_circle_and_no_crowded_folder() -> None:
    assert list(rooms.problems()) == []


def test_a_circle_by_an_import_for_types_is_found() -> None:
    known = {
        "p.a": "if TYPE_CHECKING:\n    from p.b import B",
        "p.b": "def f():\n    from p import a",
        "p": "",
    }

    found = rooms.circle(
        {name: rooms.imported(source, known) for name, source in known.items()}
    )

    assert set(found) == {"p.a", "p.b"}
