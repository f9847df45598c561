"""The paper's tables and figures as data: what was printed, the runs behind it, and how ours compare."""
