"""Processes that train together; a process that is alone enters this room in no step.

ranks           who they are, and what they agree on
ddp             DistributedDataParallel, and BatchNorm over all batches
fsdp            fully_shard: the part of a tensor that a rank holds, and the whole
sharded_files   checkpoints that all ranks write together
"""
