"""
Migrations of the database, in the order of their names. ``flask oauth-ratelimit init-db`` applies the pending ones.

Each is a module with a docstring, which ``init-db --check`` shows, and ``upgrade(collections)``: pymongo's collections
by the names that the documentation uses, whatever ``store.namespace`` and ``store.collection`` are. It may have
``is_done(collections)``, for what instances do, too. A migration can run twice or in parallel without harm. The release
before it goes on working with the same data.
"""
