"""What workers do for operations, one module per policy family.

A handler, marked by `engine.executor.handles`, calls the model through `executor.runner`, stamps every model
call (`executor.step`), and keeps what outlives the operation in `executor.kept`.  That nothing was recomputed
the executor checks by the steps that replies of row operations name; the others call `executor.audit_fed`.
"""
