"""The fault catalogue as code: planted bugs that the checks must catch."""
