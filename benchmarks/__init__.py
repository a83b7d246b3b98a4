"""What the package costs, beside its peers: ``python -m benchmarks [topic...] [--short]``.

::

    results.py       a measured value, its goal, the table and the file
    timing.py        interleaved runs, medians, spread
    instructions.py  instruction counts through valgrind
    subjects.py      our limiter, and what is asked of it; peers.py the others
    cases.py         what instructions are counted of
    token_request.py a request to the demo's server, protected by ours or others; bare_bones.py is the least of them
    gunicorn.py      the same through gunicorn
    decision.py flush.py pull.py memory.py endpoint.py salesforce.py scale.py accuracy.py ways.py stores.py
    replays.py       one topic each
    traces.py        recorded traffic
    stall.py         requests while something else computes
    fleet.py         instances in compressed time; capacity.py what they ask of MongoDB, cpu.py what that costs it
    rivals.py        sync cycles that race, in turns.py's order; late_answers.py reservations that come too late
    charts/          pictures of the results; document.py and accuracy_page.py the tables of the pages
    soak.py          a long load at saturation; latencies.py what wrk says of it
    guard.py         instruction counts against the committed ones
"""
