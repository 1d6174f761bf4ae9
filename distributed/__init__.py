"""Several processes: `world` (ranks, and which policy lives where), `shard` (FSDP2), `exchange` (requests, samples)."""
