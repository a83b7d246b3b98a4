"""Settings of the site: ``make docs``, or ``sphinx-build --fail-on-warning docs .venv/docs``.

The pages are plain Markdown that reads well in a repository, too. What only the site needs stands here.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]  # the reference describes these sources, not what is installed

import generate  # noqa: E402

from oauth_ratelimit import __version__  # noqa: E402

generate.main()

project = "oauth_ratelimit"
author = "the authors of oauth_ratelimit"
project_copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["README.md"]
needs_sphinx = "8.0"

myst_heading_anchors = 4  # links such as operations.md#alerts are checked
myst_enable_extensions = ["attrs_block"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # as written, and not as the address of a function
maximum_signature_line_length = 80
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False

html_theme = "furo"  # brings its own scripts and uses the reader's fonts: nothing is loaded from elsewhere
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "native"


def setup(app: Sphinx) -> None:
    """Look at what was built."""
    app.connect("build-finished", refuse_other_hosts)


def refuse_other_hosts(app: Sphinx, exception: Exception | None) -> None:
    """Fail if a page loads anything from elsewhere: fonts, scripts, styles, pictures. Links may lead anywhere."""
    loads = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//|<link\b[^>]*\bhref="(?:https?:)?//"""
    )
    imports = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//""")
    pages = [(path, loads) for path in Path(app.outdir).rglob("*.html")]
    styles = [(path, imports) for path in Path(app.outdir).rglob("*.css")]
    found = [path.name for path, pattern in pages + styles if pattern.search(path.read_text(encoding="utf-8"))]
    if found and exception is None:
        raise ExtensionError(f"these load something from another host: {', '.join(found)}")
