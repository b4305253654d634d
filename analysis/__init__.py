"""Law, simulated and measured side by side: validation, tables, pictures, notebooks."""
