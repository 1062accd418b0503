"""Exit codes of a broker's process, for its guardian, and for a person who started one by hand."""

STOPPED = 0
FAILED = 1
WRONG_USAGE = 2  # wrong arguments or settings, or another cluster's directory
IN_USE = 3  # another process lives in the directory
TAKEN_OVER = 4  # a later guardian holds the lease
