"""The pytest plugin: hooks translate, the core decides."""
