"""Documents drawn for people: one file a kind of document, over the JSON documents of `docs/json.md` alone."""
