"""
What the package costs, beside its peers: ``python -m benchmarks [topic...] [--short]``.

::

    results.py       a measured value, its goal, the table and the file
    timing.py        interleaved runs, medians, spread
    instructions.py  instruction counts through valgrind
    subjects.py      the limiters compared, ours and others', behind one call
    decision.py memory.py flush.py endpoint.py salesforce.py accuracy.py    one topic each
    guard.py         instruction counts against the committed ones
"""
