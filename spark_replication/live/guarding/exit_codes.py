"""What the end of a broker's process says to its guardian, and to a person who started one by hand."""

STOPPED = 0
FAILED = 1
WRONG_USAGE = 2  # or another cluster's directory
IN_USE = 3  # another process lives in the directory
TAKEN_OVER = 4  # a later guardian holds the lease
