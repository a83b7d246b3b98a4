"""Real parts to try the extension on: a MongoDB, an OAuth server, recorded traffic."""
