"""The shipped checks as pytest tests: what ``pytest --attention pkg.module:function`` runs."""
