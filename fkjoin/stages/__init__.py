"""The stages of joins and aggregates, as pure functions: messages + store → messages, with writes
to the store.

No clock, no Spark, no Kafka, no logging in here: the time is an argument and counters are returned.
"""
