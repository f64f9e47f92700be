"""The curves of article 000's engine, fitted to the rows of the claims that are marked `fit`, and to nothing else."""
