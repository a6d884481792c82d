"""Reports over evidence: the file, the terminal summary."""
