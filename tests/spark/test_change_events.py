"""Change events: what one means does not depend on those beside it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fkjoin.codec.json_read import Reading
from fkjoin.codec.units import Unit
from fkjoin.spark.change_events import ReadEvents, ReadKeys
from fkjoin.spark.event_rows import EventRows
from fkjoin.spark.json_lines import field_at
from fkjoin.spark.unavailable import PLACEHOLDER

ROW = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("bio", pa.string())])
KINDS = ("Timestamp", "MicroTimestamp", "NanoTimestamp", None)
HOW = (Reading(), Reading({"at": Unit("micros")}))

times = st.none() | st.integers(0, 2**62) | st.sampled_from(["2023-07-26T10:22:47Z", 86_400_000, "x"])
bios = st.none() | st.text(max_size=3) | st.sampled_from([PLACEHOLDER, [PLACEHOLDER], 1.5])
bodies = st.none() | st.fixed_dictionaries({}, optional={"id": st.integers(0, 3), "at": times, "bio": bios})
events = st.fixed_dictionaries(
    {"op": st.sampled_from(["c", "u", "r", "d", "t", None])}, optional={"after": bodies, "before": bodies, "payload": st.none()}
)


def schema(kind: str | None, of: str) -> dict[str, Any]:
    fields = [{"field": "at", "type": "int64", **({"name": f"io.debezium.time.{kind}"} if kind else {})}]
    return {"type": "struct", "fields": fields if of == "key" else [{"field": "after", "type": "struct", "fields": fields}]}


@st.composite
def messages(draw: Any, of: str) -> bytes | None:
    event = draw(events if of == "event" else bodies)
    wrapped = {"schema": draw(st.none() | st.sampled_from(KINDS).map(lambda kind: schema(kind, of))), "payload": event}
    whole = draw(st.sampled_from([event, wrapped, wrapped, dict(reversed(wrapped.items()))]))
    compact, blank = draw(st.tuples(st.booleans(), st.sampled_from(["", "", "", "\n ", "\ufeff"])))
    text = (blank + json.dumps(whole, separators=(",", ":") if compact else None)).encode()
    return draw(st.sampled_from([text, text, text, text, text[:-2], text + b"}", None]))


def shown(found: Any, place: int) -> Any:
    """A row with its times as numbers, since some are in years that Python does not know."""
    columns = {name: field_at(found.rows, (name,)) for name in found.rows.type.names}
    row = [str((column.cast(pa.int64()) if name == "at" else column)[place]) for name, column in columns.items()]
    return row, bool(found.rows.is_valid()[place].as_py()), bool(found.deleted[place]), found.problem[place].as_py()


@given(st.lists(messages("event"), min_size=1, max_size=8), st.sampled_from(HOW), st.booleans())
def test_events_are_read_together_as_alone(some: list[bytes | None], how: Reading, marks: bool) -> None:
    read = ReadEvents(EventRows(ROW, marks=marks), "this", how)
    together = read(pa.array(some, pa.binary()))
    assert together.rows.type == pa.struct(list(read.schema))
    for place, one in enumerate(some):
        assert shown(read(pa.array([one], pa.binary())), 0) == shown(together, place)


@given(st.lists(messages("key"), min_size=1, max_size=8), st.sampled_from(HOW))
def test_keys_are_read_together_as_alone(some: list[bytes | None], how: Reading) -> None:
    read = ReadKeys(ROW, "this", how)
    together = read(pa.array(some, pa.binary()))
    for place, one in enumerate(some):
        assert shown(read(pa.array([one], pa.binary())), 0) == shown(together, place)


@given(messages("event"))
def test_a_placeholder_is_no_value(one: bytes | None) -> None:
    found = ReadEvents(EventRows(ROW), "this", HOW[1])(pa.array([one], pa.binary()))
    if found.problem[0].as_py() is None and not found.deleted[0]:
        assert PLACEHOLDER not in (found.rows.field("bio")[0].as_py() or "")
