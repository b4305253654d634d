"""Coins in place of decisions, one module per family of operations (see `simulator.contents`)."""
