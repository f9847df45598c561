"""The paper's tables and figures as data: what was printed, the runs behind it, and how ours compare.

What is asked, in TOML files beside these modules:
source         the TOML files
table          a table: what was printed in each cell, and the training behind it
printed        a number as it was printed
recipes        from the paper's words to a `Run`: learning rate, epochs and all (recipes.toml)
figure         a figure: what is measured, and on which trainings
evidence       arms, grids and questions of our own (evidence.toml)

The trainings:
train_missing  train what a command still lacks
sweep          any number of processes on one folder, none twice
cluster        the same on a Ray cluster
cost           what a run will cost, by its like
dry_run        what runs would take, by ten real steps

What came out:
results_store  finished runs, in folders or committed
notes          what was measured of a trained network, checked as it is read
value          what a run gives for a cell
speed          images per second, by turns
measured       the figures of finished runs
compare        any trainings against the first
corrupted      the arms of a question on corrupted pictures
verdict        whether it is the same as was printed

For people:
commands       zosam table, figure and report
answers        zosam evidence
show           a table in the terminal and for the report
contents       what is in the report
kept           what is kept of each layer, and the film of the masks, for the report
"""
