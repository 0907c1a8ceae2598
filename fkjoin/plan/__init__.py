"""Plans as data, without Spark: nodes, the rules of the optimizer, names, facts that checkpoints are bound to."""
