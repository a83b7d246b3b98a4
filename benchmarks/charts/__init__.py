"""The charts of ``docs/performance.md``, drawn from the kept results: ``pictures.draw()``.

::

    pictures.py   which ones there are: requests.py what a request pays, cycles.py what a sync cycle costs
    picture.py    panels beside each other, in a file
    rows.py       a panel of named values, one below the other
    lines.py      a panel of values that depend on something
    goal.py       where a goal lies among them
"""
