"""The flags of the engines' parsers as data, read from their sources without running them."""
