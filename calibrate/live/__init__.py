"""The live world: the policies' own generators, run on real models in worker processes.

Importing this package or `calibrate.live.transport.world` loads neither torch nor transformers; only the
worker processes do.
"""
