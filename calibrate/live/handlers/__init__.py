"""What workers do for operations, one module per policy family.

A handler, marked by `engine.executor.handles`, calls the model through `executor.runner`, stamps every model
call (`executor.step`), checks with `executor.audit_fed` that nothing was recomputed, and keeps what outlives
the operation in `executor.kept`.
"""
