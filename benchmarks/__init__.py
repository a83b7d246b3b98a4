"""Benchmarks of the package beside other libraries: ``python -m benchmarks [topic...] [--short]``.

::

    decision.py       one decision, beside other libraries
    endpoint.py       a token request: instructions, and beside Flask-Limiter, directly and deployed (token_request.py)
    flush.py          sync cycles, conflicts, idle keys, requests during a flush, and new keys without end
    memory.py         bytes per key, pauses of the garbage collector, a flood of users
    replays.py        recorded traffic (traces.py) through each algorithm and setting
    scaling.py        constants of urgent synchronisation, and fleets of hundreds
    sharing.py        ways to share a limit between instances, ours and others (rivals.py) on several loads (shapes.py)
    suggest.py        proposed limits on a synthetic service and on recorded traffic
    capacity.py       the load on MongoDB by clients and instances (python -m benchmarks.capacity)
    start.py          start of a worker, its first request, and the time of a command
    soak.py           ten minutes of load (python -m benchmarks.soak), with soak_server.py
    sequence.py       small limits on real workers (python -m benchmarks.sequence)
    admin_page.py     CPU time of an open admin page (python -m benchmarks.admin_page)
    instructions.py   instruction counts against the committed ones (make instructions)

    measuring.py      interleaved runs, processes, servers
    subjects.py       the limiter that is measured
    redis_server.py   a redis-server for the libraries that use one
    results.py        a measured value, its goal, and results.json
    performance_page.py, accuracy_page.py   tables and pictures of the documentation
"""
