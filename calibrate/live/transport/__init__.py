"""Worker processes and what connects them: the wire, shared memory, devices and the live world."""
