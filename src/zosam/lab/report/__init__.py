"""The report: tables and figures, given as plain dicts, on one self-contained HTML page or drawn for print."""
