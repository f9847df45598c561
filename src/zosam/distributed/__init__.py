"""Processes that train together: who they are, DistributedDataParallel, fully_shard, and files they all write."""
