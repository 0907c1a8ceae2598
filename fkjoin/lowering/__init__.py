"""Tables as streaming DataFrames: the stages of each operator, applied."""
