"""Which cut is best: the question, the step, the ledger, the search, and what they say."""
