"""What the records say: one run in the terminal, runs side by side, tables for elsewhere, steps on a timeline."""
