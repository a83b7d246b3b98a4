"""
Changes of what stands in MongoDB, in order. ``flask oauth-ratelimit db upgrade`` runs those that were not run yet.

Each is a module for pymongo-migrate with ``name``, ``dependencies``, ``upgrade(db)`` and ``downgrade(db)``. It names
collections as the documentation does; a namespace and ``store.collection`` are taken care of. It can be run twice, and
while it runs and afterwards the release before it goes on working with the same data: a rolling upgrade has both.
"""
