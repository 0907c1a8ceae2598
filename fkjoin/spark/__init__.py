"""The Spark shell around the pure stages: packing, stateful operators, session settings."""
