"""Simulated world: the same policies on simpy's clock, with costs from a profile and tokens from a trace."""
