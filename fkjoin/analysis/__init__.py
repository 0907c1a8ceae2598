"""What users write, checked against Spark's analyzer where the call stands."""
