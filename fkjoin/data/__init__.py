"""Change logs for the demo; made by tools/make_demo_data.py."""
