"""Nine exercises, one idea each. Replace `raise NotImplementedError`, then run `python -m exercises`."""
