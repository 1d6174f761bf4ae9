"""A policy and what its update computes: packs of tokens, attention over them, log-probs."""
