"""Plans as data, without Spark: nodes, rules of the optimizer, facts that bind checkpoints."""
