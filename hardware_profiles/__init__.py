"""Hardware profiles and traces: what was measured, as validated files, and how to look it up.

The lowest layer of the project: it imports nothing of it.  Import what you need from its modules
(`hardware_profiles.profile`, `.surface`, `.trace`, `.store`, `.files`); this package itself does no
work when it is imported.
"""
