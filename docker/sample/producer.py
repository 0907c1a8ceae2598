"""Makes the sample's topics and goes on changing orders and customers; now and then it sends something that does not parse.

python producer.py BOOTSTRAP [CHANGES_PER_SECOND]
"""

from __future__ import annotations

import json
import random
import sys
import time

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = ("orders", "customers", "orders-with-customers", "dead-letters")


def make_topics(bootstrap: str) -> None:
    """Create what is not there, waiting for the broker if need be."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + 120
    while True:
        try:
            there = admin.list_topics(timeout=5).topics
            break
        except KafkaException:
            if time.monotonic() > deadline:
                raise
    config = {"cleanup.policy": "compact"}
    missing = [
        NewTopic(topic, 2, 1, config=config if topic != "dead-letters" else {}) for topic in TOPICS if topic not in there
    ]
    for done in admin.create_topics(missing).values() if missing else ():
        done.result(30)


def main() -> None:
    bootstrap = sys.argv[1]
    pause_s = 1 / float(sys.argv[2] if len(sys.argv) > 2 else 100)
    make_topics(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    rng = random.Random()
    while True:
        kind = rng.random()
        if kind < 0.2:
            row = {"name": f"customer {rng.randrange(1000)}", "tier": rng.choice(("gold", "basic"))}
            producer.produce("customers", json.dumps(row), f"c{rng.randrange(100)}")
        elif kind < 0.99:
            row = {"customer": f"c{rng.randrange(110)}", "amount": rng.randrange(10_000) / 100}
            producer.produce("orders", None if kind < 0.25 else json.dumps(row), f"o{rng.randrange(1000)}")
        else:
            producer.produce("orders", "{not JSON", f"o{rng.randrange(1000)}")
        producer.poll(0)
        time.sleep(pause_s)


if __name__ == "__main__":
    main()
