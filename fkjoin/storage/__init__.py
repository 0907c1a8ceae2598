"""Small files beside a checkpoint or a sink, on whatever file system they are."""
