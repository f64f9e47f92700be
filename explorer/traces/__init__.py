"""What ran on a GPU and when: predicted steps written as traces, recorded traces read and taken apart.

Nothing here imports JAX but the reader of its own format; times are whole nanoseconds, so that parts sum exactly.
"""
