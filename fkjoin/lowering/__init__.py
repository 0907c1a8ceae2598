"""Physical plans of tables: a module for each operator makes its part."""
