"""Everything that touches veRL: the trainer, the rollout worker, the checks at start-up."""
