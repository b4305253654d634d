"""What happens in a worker: the model over its slots of keys and values, and the choice of tokens."""
