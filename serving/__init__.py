"""Serving: arrivals, the scheduler with its KV blocks, what requests see of it; it belongs to no world."""
