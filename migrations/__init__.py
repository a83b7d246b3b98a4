"""
Migrations of the database, in the order of their names. ``flask oauth-ratelimit db upgrade`` applies the pending ones.

Each is a module with a docstring, which ``db status`` shows, and ``upgrade(collections)``: pymongo's collections by the
names that the documentation uses, whatever ``store.namespace`` and ``store.collection`` are. A migration can run twice
or in parallel without harm. The release before it goes on working with the same data, so that a rolling upgrade works.
"""
