"""All small histories, in every order in which their messages can be delivered: they end as the final tables say.

``make test`` walks small histories of all operators, and ``make proof`` larger ones.  ``tests/support/exploring.py`` says what
is walked, and why that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fkjoin.codec import records, tags, versions
from fkjoin.codec.arrays import BYTES, constant
from fkjoin.codec.messages import LEFT
from fkjoin.codec.rows import RowCodec
from fkjoin.folds.extremes import Extreme
from fkjoin.folds.fold import Fold
from fkjoin.folds.sums import Count, WholeSum
from fkjoin.stages.aggregate import aggregate
from fkjoin.stages.counters import Counters
from fkjoin.stages.gather import gather
from fkjoin.stages.join_rows import join_rows, split_rows
from fkjoin.stages.owners import owners
from fkjoin.stages.pair import pair
from fkjoin.stages.regroup import regroup
from fkjoin.stages.rekey import rekey
from fkjoin.stages.resolve import resolve
from fkjoin.stages.scatter import answered, scatter
from fkjoin.stages.spread import spread
from fkjoin.stages.subscription import subscription
from fkjoin.state import MemoryStore
from tests.support import flat_maps, grouping, multi_join, oracle, pairing
from tests.support.exploring import History, Node, System
from tests.support.machines import END, Tables, messages_of
from tests.support.sampling import sampled

TIMES: Any = {"now_ms": 0, "retention_ms": 1000}
KEY = "k" + END
"""The key of the one left row."""


def untimed(messages: pa.Table) -> pa.Table:
    """Messages without times: they decide about nothing, and would only make more of them."""
    return messages.set_column(messages.schema.get_field_index("ts"), "ts", pa.array([0] * len(messages), pa.int64()))


def join(how: Any, *, at_once: int = 1, in_order: bool = False) -> System:
    """A foreign-key join; ``in_order``: in one query."""

    def rekeyed(came: Tables, store: MemoryStore) -> Tables:
        sent = rekey(came["left"], store, Counters(), **TIMES)
        return dict(zip(("subscription", "answer"), sent, strict=True))

    def subscribed(came: Tables, store: MemoryStore) -> Tables:
        how: Any = {"in_order": in_order, **TIMES}
        pages = subscription(came["subscription"], came["right"], store, Counters(), **how)
        return {"answer": pa.concat_tables(pages)}

    def resolved(came: Tables, store: MemoryStore) -> Tables:
        rows = join_rows(came["answer"], how)
        return {"result": resolve(rows, store, Counters(), in_order=in_order, **TIMES)}

    def row(value: bytes) -> tuple[str, str | None]:
        one, other = (side[0].as_py() for side in split_rows(pa.array([value], BYTES)))
        return one.decode(), other and other.decode()

    to = {"left": "rekey", "right": "subscription", "subscription": "subscription", "answer": "resolve"}
    return System({"rekey": rekeyed, "subscription": subscribed, "resolve": resolved}, to, row, at_once)


def join_cases(lefts: int, rights: int, how: str) -> Iterator[History]:
    """All histories of a left row of so many versions over two foreign keys, and of right rows of so many versions."""
    versions_of_left = [*product("ab-", "xy"), None]
    for left in histories(versions_of_left, 1, lefts):
        present = [version for version in left if version is not None]
        foreign_keys = [foreign_key for foreign_key, _ in present if foreign_key != "-"]
        if not named_in_order(foreign_keys, "ab") or not named_in_order([text for _, text in present], "xy"):
            continue
        of_a, of_b = ([()] if name not in foreign_keys else list(histories("pq-", 0, rights)) for name in "ab")
        for one, other in product(of_a, of_b):
            if named_in_order([*one, *other], "pq"):
                yield join_case(left, {"a": one, "b": other}, how)


def join_case(left: Sequence[Any], rights: dict[str, Sequence[str]], how: str) -> History:
    changes = [
        oracle.Change(True, KEY.encode(), None, at)
        if version is None
        else oracle.Change(True, KEY.encode(), version[1].encode(), at, _key(version[0]))
        for at, version in enumerate(left, 1)
    ]
    changes += [
        oracle.Change(False, _key(name), None if text == "-" else text.encode(), at)
        for name, texts in rights.items()
        for at, text in enumerate(texts, 1)
    ]
    sources = [
        message
        for side, channel in ((True, "left"), (False, "right"))
        for message in messages_of(channel, untimed(oracle.messages(changes, left=side)))
    ]

    def wanted(node: Node, some: Sequence[oracle.Change]) -> Any:
        if node.stage == "resolve":
            row = oracle.batch_join(some, how).get(node.key)
            return row and tuple(text and text.decode() for text in row)
        if node.stage == "rekey":
            return None
        final = max((change for change in some if change.left), key=lambda change: change.version, default=None)
        return int(final is not None and final.value is not None and final.foreign_key == node.key)

    key = KEY.encode()
    nodes = [Node("rekey", key), *(Node("subscription", _key(name)) for name in rights), Node("resolve", key)]
    return History(changes, sources, nodes, wanted)


def _key(name: str) -> Any:
    """The bytes of a key; "-" is none."""
    return None if name == "-" else (name + END).encode()


def joins(how: tuple[str, str], *, at_once: int = 1, in_order: bool = False) -> System:
    """A multi-way join with two right tables; ``in_order``: in one query."""
    of = multi_join.of_rights(*how)

    def scattered(came: Tables, store: MemoryStore) -> Tables:
        sent = scatter(came["left"], store, Counters(), 2, **TIMES)
        return dict(zip(("subscription", "part"), sent, strict=True))

    def subscribed(came: Tables, store: MemoryStore) -> Tables:
        pages = answered(came["subscription"], came["right"], store, Counters(), (1, 1), in_order=in_order, **TIMES)
        return {"part": pa.concat_tables(pages)}

    def gathered(came: Tables, store: MemoryStore) -> Tables:
        return {"result": gather(came["part"], store, Counters(), of, in_order=in_order, **TIMES)}

    def row(value: bytes) -> multi_join.Row:
        _, left, both, second = (column[0].as_py() for column in RowCodec(of.schema).decode(pa.array([value], BYTES)))
        return left, both["first"] and both["first"]["text"], second

    to = {"left": "scatter", "right": "subscription", "subscription": "subscription", "part": "gather"}
    return System({"scatter": scattered, "subscription": subscribed, "gather": gathered}, to, row, at_once)


def joins_cases(lefts: int, rights: tuple[int, int], how: tuple[str, str]) -> Iterator[History]:
    """All histories of a left row of so many versions over foreign keys to two tables, and of right rows of so many in each."""
    for left in histories([*product("ab-", "c-", "xy"), None], 1, lefts):
        present = [version for version in left if version is not None]
        if not all(named_in_order([version[at] for version in present], letters) for at, letters in ((0, "ab"), (2, "xy"))):
            continue
        named = {(at, version[at]) for version in present for at in (0, 1) if version[at] != "-"}
        each = [
            list(histories("pq-", 0, rights[right[0]])) if right in named else [()] for right in ((0, "a"), (0, "b"), (1, "c"))
        ]
        for of_a, of_b, of_c in product(*each):
            if named_in_order([*of_a, *of_b], "pq") and named_in_order(of_c, "pq"):
                yield joins_case(left, {(0, "a"): of_a, (0, "b"): of_b, (1, "c"): of_c}, how)


def joins_case(left: Sequence[Any], rights: dict[tuple[int, str], Sequence[str]], how: tuple[str, str]) -> History:
    changes = [
        multi_join.Change(LEFT, KEY, at, None)
        if version is None
        else multi_join.Change(LEFT, KEY, at, version[2], (_name(version[0], END), _name(version[1], END)))
        for at, version in enumerate(left, 1)
    ]
    changes += [
        multi_join.Change(number, name + END, at, _name(text))
        for (number, name), texts in rights.items()
        for at, text in enumerate(texts, 1)
    ]
    sources = [
        message
        for number, channel in ((LEFT, "left"), (0, "right"), (1, "right"))
        for message in messages_of(channel, untimed(multi_join.messages(changes, number)))
    ]

    def wanted(node: Node, some: Sequence[multi_join.Change]) -> Any:
        if node.stage == "gather":
            return multi_join.batch_join(some, how).get(KEY)
        if node.stage == "scatter":
            return None
        number, name = node.key[0], node.key[1:].decode()
        final = max((one for one in some if one.number == LEFT), key=lambda one: one.version, default=None)
        return int(final is not None and final.text is not None and final.foreign[number] == name)

    key, by_foreign_key = KEY.encode(), [Node("subscription", bytes([number]) + _key(name)) for number, name in rights]
    return History(changes, sources, [Node("scatter", key), *by_foreign_key, Node("gather", key)], wanted)


def joins_by_key(how: Any, *, at_once: int = 1) -> System:
    """A join by primary key."""

    def make(rows: pa.Table) -> pa.Table:
        return join_rows(rows, how)

    def paired(came: Tables, store: MemoryStore) -> Tables:
        about: Any = {"parts": (1, 1), **TIMES}
        return {"result": pair(came["numbered"], store, Counters(), make, **about)}

    return System({"pair": paired}, {"numbered": "pair"}, pairing.pair_of, at_once)


def joins_by_key_cases(lefts: int, rights: int, how: str) -> Iterator[History]:
    """All histories of a left row and a right row of so many versions under one key."""
    for left, right in product(histories("xy-", 0, lefts), histories("pq-", 0, rights)):
        if named_in_order(left, "xy") and named_in_order(right, "pq"):
            changes = [
                pairing.Event(number, KEY, at, None if text == "-" else text.encode())
                for number, texts in enumerate((left, right))
                for at, text in enumerate(texts, 1)
            ]
            messages = messages_of("numbered", pairing.messages(changes))
            yield History(changes, messages, [Node("pair", KEY.encode())], _pair_of(how))


def _pair_of(how: str) -> Callable[[Node, Sequence[Any]], Any]:
    def wanted(node: Node, some: Sequence[pairing.Event]) -> Any:
        found = pairing.joined(some, how).get(node.key.decode())
        return found and found.pair

    return wanted


SUMMED = Fold(pa.schema([("n", pa.int64())]), (Count("rows"), WholeSum("sum", 0, "sum"), Extreme("most", 0, "max", pa.int64())))


def aggregates(*, at_once: int = 1, guarded: bool = True) -> System:
    """A count, a sum and a maximum; ``guarded``: over a topic."""

    def regrouped(came: Tables, store: MemoryStore) -> Tables:
        return {"grouped": regroup(came["row"], store, Counters(), as_read=True, **TIMES)}

    def aggregated(came: Tables, store: MemoryStore) -> Tables:
        how: Any = {"source": grouping.SOURCE, "guarded": guarded, **TIMES}
        results = aggregate(came["grouped"], store, Counters(), SUMMED, **how)
        start_counting_anew(store)
        return {"result": results}

    def row(value: bytes) -> tuple[int, ...]:
        return tuple(column[0].as_py() for column in RowCodec(SUMMED.schema).decode(pa.array([value], BYTES)))

    to = {"row": "regroup", "grouped": "aggregate"}
    return System({"regroup": regrouped, "aggregate": aggregated}, to, row, at_once)


def start_counting_anew(store: MemoryStore) -> None:
    """Set the versions of groups to the first one: they count what was emitted, and decide about nothing."""
    groups = [(key, value) for key, value in store.items() if key[:1] == tags.ROW]
    names, values = (pa.array([entry[at] for entry in groups], BYTES) for at in (0, 1))
    held = records.decode(values)
    version = versions.encode(grouping.SOURCE, [np.ones(len(groups), np.int64)])
    store.write(names, records.encode(held.flags, held.ts, version, held.body))
    due = [key for key, _ in store.items() if key[:1] == tags.DUE and key[9:10] == tags.ROW]
    store.write(pa.array(due, BYTES), constant(version[0].as_py(), len(due)) if due else pa.array([], BYTES))


def two_rows(
    versions_of_row: Sequence[Any], first: int, second: int, case: Callable[[dict[str, Any]], History]
) -> Iterator[History]:
    """All histories of two rows of so many versions, each of which has texts by names, or is None."""
    both = product(histories(versions_of_row, 1, first), histories(versions_of_row, 0, second))
    for one, other in both:
        named = list(chain.from_iterable((version or {}).items() for version in (*one, *other)))
        names, texts = (name for name, _ in named), (text for _, text in named)
        if named_in_order(names, "ab") and named_in_order(texts, "xy"):
            yield case({"i" + END: one, "j" + END: other})


IN_GROUPS = [*({group: text} for group, text in product("ab", "xy")), None]
"""The group of a row's version, and its number, as a letter; None: the row is deleted."""


def aggregates_case(by_row: dict[str, Sequence[Any]]) -> History:
    changes = []
    for key, history in by_row.items():
        for number, version in enumerate(history, 1):
            ((group, text),) = (version or {None: None}).items()
            changes.append(grouping.Change(key, number, group and group + END, (text and ord(text),)))
    sources = messages_of("row", grouping.Grouping(SUMMED.value).messages(changes))

    def wanted(node: Node, some: Sequence[grouping.Change]) -> Any:
        if node.stage == "regroup":
            return None
        newest = {change.key: change for change in sorted(some, key=lambda change: change.version)}
        numbers = [change.values[0] for change in newest.values() if change.group == node.key.decode()]
        return (len(numbers), sum(numbers), max(numbers)) if numbers else None

    groups = [Node("aggregate", _key(name)) for name in "ab"]
    return History(changes, sources, [*(Node("regroup", key.encode()) for key in by_row), *groups], wanted)


def flat_map(*, at_once: int = 1) -> System:
    """Rows that make others under keys of their own, in one query, as there is no other way."""

    def spread_out(came: Tables, store: MemoryStore) -> Tables:
        return {"grouped": spread(came["row"], store, Counters(), as_read=True, **TIMES)}

    def shown(came: Tables, store: MemoryStore) -> Tables:
        source = versions.identity("flat map")
        results = owners(came["grouped"], store, Counters(), source=source, **TIMES)
        start_counting_anew(store)
        return {"result": results}

    return System({"spread": spread_out, "owners": shown}, {"row": "spread", "grouped": "owners"}, bytes.decode, at_once)


OUTPUTS: list[dict[str, str] | None] = [
    None,
    *(
        {key: text for key, text in zip("ab", made, strict=True) if text != "-"}
        for made in ("--", "x-", "y-", "-x", "xx", "yx", "xy")
    ),
]
"""Outputs of a row's version, by their keys; None: the row is deleted."""


def flat_map_case(by_row: dict[str, Sequence[Any]]) -> History:
    changes = [
        flat_maps.Change(key, at, outputs and {name + END: text.encode() for name, text in outputs.items()})
        for key, history in by_row.items()
        for at, outputs in enumerate(history, 1)
    ]
    sources = messages_of("row", untimed(flat_maps.messages(changes)))

    def wanted(node: Node, some: Sequence[flat_maps.Change]) -> Any:
        if node.stage == "spread":
            return None
        output = flat_maps.recomputed(some).get(node.key.decode())
        return output and output.decode()

    outputs = [Node("owners", _key(name)) for name in "ab"]
    return History(changes, sources, [*(Node("spread", key.encode()) for key in by_row), *outputs], wanted)


def _name(text: str, end: str = "") -> str | None:
    return None if text == "-" else text + end


def histories(of: Sequence[Any], least: int, most: int) -> Iterator[tuple[Any, ...]]:
    """All histories of a row of so many versions."""
    for size in range(least, most + 1):
        yield from product(of, repeat=size)


def named_in_order(texts: Iterable[str], alphabet: str) -> bool:
    """Tell whether letters come first in their order; of histories that are the same but for names, one has it so."""
    firsts = [letter for letter in dict.fromkeys(texts) if letter in alphabet]
    return "".join(firsts) == alphabet[: len(firsts)]


ENDS = 400
"""The least number of ends: with fewer, the test would walk next to nothing."""
HOWS = ("inner", "left")
PAIRS = [("inner", "left"), ("left", "inner"), ("left", "left"), ("inner", "inner")]


LARGE = [(3, 2, 1), (3, 2, 3), (4, 1, 2)]
SMALL = [(2, 2, 1, "inner"), (2, 2, 1, "left")]


@pytest.mark.parametrize(("lefts", "rights", "at_once", "how"), sampled([(*one, how) for how in HOWS for one in LARGE], SMALL))
def test_a_join_ends_as_the_batch_join_in_every_order(lefts: int, rights: int, at_once: int, how: str) -> None:
    """One left row over two foreign keys, null and deletion; right rows, there or not, the same as before, and deleted."""
    assert join(how, at_once=at_once).check(join_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(PAIRS, PAIRS[:1]))
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(2, (2, 1), 1), (2, (1, 1), 2)], [(1, (2, 2), 1)]))
def test_a_multi_way_join_ends_as_the_batch_join_in_every_order(
    lefts: int, rights: tuple[int, int], at_once: int, how: tuple[str, str]
) -> None:
    assert joins(how, at_once=at_once).check(joins_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize(("first", "second", "at_once"), sampled([(3, 3, 2), (4, 2, 1)], [(2, 2, 3)]))
def test_an_aggregate_ends_as_a_recomputation_in_every_order(first: int, second: int, at_once: int) -> None:
    assert aggregates(at_once=at_once).check(two_rows(IN_GROUPS, first, second, aggregates_case)) > ENDS


@pytest.mark.parametrize("how", pairing.HOWS)
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(4, 3, 2)], [(2, 2, 2)]))
def test_a_join_by_primary_key_is_the_batch_join_after_every_batch(lefts: int, rights: int, at_once: int, how: str) -> None:
    assert joins_by_key(how, at_once=at_once).lockstep(joins_by_key_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(HOWS, HOWS[1:]))
@pytest.mark.parametrize(("lefts", "rights", "at_once"), sampled([(3, 2, 1), (3, 1, 2)], [(2, 1, 2)]))
def test_in_one_query_a_join_is_the_batch_join_after_every_batch(lefts: int, rights: int, at_once: int, how: str) -> None:
    """Sources have any order, batches are cut anywhere, and any records come again."""
    assert join(how, at_once=at_once, in_order=True).lockstep(join_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize("how", sampled(PAIRS, PAIRS[1:2]))
@pytest.mark.parametrize(("lefts", "rights"), sampled([(2, (1, 1))], [(1, (2, 1))]))
def test_in_one_query_a_multi_way_join_is_the_batch_join_after_every_batch(
    lefts: int, rights: tuple[int, int], how: tuple[str, str]
) -> None:
    assert joins(how, at_once=2, in_order=True).lockstep(joins_cases(lefts, rights, how)) > ENDS


@pytest.mark.parametrize(("first", "second"), sampled([(3, 2)], [(2, 2)]))
def test_in_one_query_an_aggregate_is_a_recomputation_after_every_batch(first: int, second: int) -> None:
    cases = two_rows(IN_GROUPS, first, second, aggregates_case)
    assert aggregates(at_once=2, guarded=False).lockstep(cases) > ENDS


@pytest.mark.parametrize(("first", "second", "at_once"), sampled([(2, 2, 2), (3, 1, 1)], [(2, 1, 1)]))
def test_a_flat_map_is_a_recomputation_after_every_batch(first: int, second: int, at_once: int) -> None:
    """Two rows, each with or without an output under each of two keys, so that both make one, hide it, and take it back."""
    assert flat_map(at_once=at_once).lockstep(two_rows(OUTPUTS, first, second, flat_map_case)) > ENDS
