"""Coins in place of recorded replies, one module per family of operations (see
`simulator.replies.Synthetic`).
"""
