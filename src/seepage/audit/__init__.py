"""The stages of an audit: record, attack, score, summarize. `seepage.audit.run` calls them in that order."""
