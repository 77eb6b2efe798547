"""Exit statuses."""

OK, BAD_VALUE, UNREACHABLE = 0, 2, 3
PIPE_CLOSED = 141
"""Of a program that SIGPIPE ends."""
VACUOUS = 2
"""Of an interval: nothing could be certified."""
