"""
What the package costs, beside its peers: ``python -m benchmarks [topic...] [--short]``.

::

    results.py       a measured value, its goal, the table and the file
    timing.py        interleaved runs, medians, spread
    instructions.py  instruction counts through valgrind
    subjects.py      our limiter, and what is asked of it; peers.py the others
    cases.py         what instructions are counted of
    token_request.py a request to the demo's server, protected by ours or others; bare_bones.py is the least of them
    gunicorn.py      the same through gunicorn
    decision.py memory.py flush.py endpoint.py salesforce.py accuracy.py ways.py    one topic each
    turns.py         sync cycles at nearly the same time, in compressed time
    soak.py          a long load at saturation; latencies.py what wrk says of it
    guard.py         instruction counts against the committed ones
"""
