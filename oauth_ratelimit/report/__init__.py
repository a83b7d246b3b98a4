"""Which clients mint tokens instead of reusing them: findings per client, and what to tell their owners.

::

  findings.py   statistics -> what each client does wrong
  letter.py     findings -> the text for the owner of a client
  table.py      findings -> records for programs and spreadsheets
  page.py       findings -> an HTML page
"""

from oauth_ratelimit.report.findings import ClientFinding, Fault, find
from oauth_ratelimit.report.letter import Letter, letter_to

__all__ = ["ClientFinding", "Fault", "Letter", "find", "letter_to"]
