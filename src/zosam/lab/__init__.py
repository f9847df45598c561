"""The laboratory: runs, data, networks, measurements, the paper and the report. Needs the extra `zosam[lab]`."""
