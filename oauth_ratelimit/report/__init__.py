"""Clients that request more tokens than they need: findings, and letters to their owners.

::

  findings.py   statistics -> faults of each client
  letter.py     finding -> letter to the owner of a client
  table.py      findings -> JSON records and CSV
  page.py       findings -> HTML page
"""

from oauth_ratelimit.report.findings import ClientFinding, Fault, find
from oauth_ratelimit.report.letter import Letter, letter_to

__all__ = ["ClientFinding", "Fault", "Letter", "find", "letter_to"]
