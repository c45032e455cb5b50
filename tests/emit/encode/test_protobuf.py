from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common._internal import _encode_key_value
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from otel_bridge.emit.encode.protobuf import Attribute, key_value, varint


def _encoder_takes_none() -> bool:
    try:
        _encode_key_value("key", None)
    except Exception:  # noqa: BLE001  # below 1.40, a plain Exception
        return False
    return True


_SCALARS = st.one_of(
    *([st.none()] if _encoder_takes_none() else []),
    st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.text(), st.binary(),
)  # fmt: skip
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.text(), _VALUES)
def test_an_attribute_has_the_bytes_that_the_public_encoder_gives_it(
    key: str, value: Attribute
) -> None:
    packed = key_value(key, value)

    assert packed == _encode_key_value(key, value).SerializeToString()


def test_an_integer_beyond_64_bit_becomes_text_so_that_no_digit_is_lost() -> None:
    packed = key_value("seed", 1 << 70)

    assert KeyValue.FromString(packed).value.string_value == "1180591620717411303424"


def test_lone_surrogates_become_question_marks() -> None:
    packed = key_value("k\ud800", "a\udfffb")

    parsed = KeyValue.FromString(packed)
    assert (parsed.key, parsed.value.string_value) == ("k?", "a?b")


def test_a_varint_keeps_the_low_64_bits() -> None:
    numbers = [0, 127, 128, 16383, 16384, 2097151, 2097152, -1, 1 << 64]

    assert [varint(number).hex() for number in numbers] == [
        "00",
        "7f",
        "8001",
        "ff7f",
        "808001",
        "ffff7f",
        "80808001",
        "ffffffffffffffffff01",
        "00",
    ]
