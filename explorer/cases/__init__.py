"""Reports of practitioners as files: what ran, what was read off it, and what this project says of the same."""
