"""For mkdocs: links to files of the repository that are no pages become the files' names."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called with the text of each page. A link to a file that does not exist stays, for mkdocs to complain about."""

    def name_of(match: "re.Match[str]") -> str:
        target = (Path(page.file.abs_src_path).parent / match[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.exists():
            return match[0]
        name = f"`{target.relative_to(ROOT)}`"
        return name if match[1].strip("`") in name else f"{match[1]} ({name})"

    return _LINK.sub(name_of, markdown)
