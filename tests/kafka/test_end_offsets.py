"""The records that are left to read: from the positions of a query up to what brokers said last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fkjoin.kafka.end_offsets import Ends, Left, Silence, up_to

TOPICS = st.sampled_from(["orders", "customers"])
OFFSETS = st.dictionaries(TOPICS, st.dictionaries(st.integers(0, 3), st.integers(0, 9), min_size=1, max_size=3))


@given(OFFSETS, OFFSETS, OFFSETS)
def test_the_later_of_both_ends_counts_and_a_topic_without_an_answer_keeps_sparks(
    read: dict[str, dict[int, int]], by_spark: dict[str, dict[int, int]], said: dict[str, dict[int, int]]
) -> None:
    """The ends in ``by_spark`` are of the batch's begin; a partition that is new is read from its beginning."""

    def left(topic: str, ends: dict[int, int]) -> dict[str, int]:
        return {str(part): end - read[topic].get(part, 0) for part, end in ends.items() if end >= read[topic].get(part, 0)}

    positions = {topic: {str(part): at for part, at in parts.items()} for topic, parts in read.items()}
    of_spark = {topic: left(topic, parts) for topic, parts in by_spark.items() if topic in read}
    found = up_to({topic: Ends(parts, 9.0) for topic, parts in said.items()}, positions, Left(of_spark, 5.0))
    for topic in read:
        known = [of_spark.get(topic, {}), left(topic, said.get(topic, {}))]
        wanted = {part: max(one.get(part, 0) for one in known) for one in known for part in one}
        counted = {part: records for part, records in found.lag.get(topic, {}).items() if records}
        assert counted == {part: records for part, records in wanted.items() if records}
    assert found.lag.keys() <= read.keys(), "of a topic that was not read yet nothing is known"


def test_a_lag_is_as_old_as_the_oldest_answer() -> None:
    positions = {"orders": {"0": 1}, "customers": {"0": 1}}
    of_spark = Left({"orders": {"0": 0}, "customers": {"0": 0}}, 5.0)
    orders, customers = {"orders": Ends({0: 4}, 8.0)}, {"customers": Ends({0: 1}, 7.0)}
    assert up_to({}, positions, of_spark) == of_spark
    assert up_to(orders, positions, of_spark) == Left({"orders": {"0": 3}, "customers": {"0": 0}}, 5.0)
    assert up_to(orders | customers, positions, of_spark).as_of == 7.0
    assert up_to({"orders": Ends({0: 4}, 2.0)}, positions, of_spark).as_of == 5.0, "Spark's event is newer"


def test_silence_names_the_brokers_of_a_topic() -> None:
    one = Silence("orders", ("b1:9092",), 0.0).words(0.0)
    assert one.startswith("broker b1:9092 of topic orders has not answered since ")
    assert Silence("orders", ("b1:9092", "b2:9092"), 0.0).words(0.0).startswith("brokers b1:9092, b2:9092 of topic orders have")
