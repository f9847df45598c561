"""The laboratory: runs, data, networks, measurements, the paper and the report. Needs the extra `zosam[lab]`.

What to train, said once and checked as it is said:
run            Run, its address, and run()
settings       things chosen by name, every default filled in
spelling       values as text and back
one_spelling   one address for equal trainings, however they are written
radius         how far the optimizer climbs: a number or a schedule
lr_schedules   schedules of the learning rate
length         a longer training, stretched as a whole
precision      fp32, bf16, fp16
where          where and how: device, threads, workers, kernels; no part of the address

A training:
assemble       from its words to data, network, optimizer and masks
attempt        from the last checkpoint to the end
train          the loop
device         the device, chosen and made the current one
decay_groups   what is decayed, and what climbs
clipping       gradient clipping inside a step
ema            averaged weights
scoring        the batch on which masks are chosen

What is told and kept:
callbacks      who is told how it goes
watching       the bar, or plain lines
logs           CSV, TensorBoard, Weights & Biases
record         record.json
checkpoints    all that must be kept to go on bit for bit
serialize      nested tensors as safetensors
claim          whose folder it is
locks          one process at a time
preempt        SIGTERM and Ctrl-C
disk_space     room on the disk, before hours are spent
shelf          what lies in a folder of runs

For people:
demo           three optimizers on the digits
serve          a trained network, ready to serve
terminal       tables, JSON and CSV
cli            the commands
data           data sets
models         networks
measure        measurements of networks, steps and trainings
paper          the paper's tables and figures, and the questions of the evidence
report         one page of runs and figures
"""
