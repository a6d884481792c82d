"""Models by name: tiny sharpened ones, SmolLM2 from its wheel, hub ids and local folders."""
