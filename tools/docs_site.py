"""Put the pages of the site together: python tools/docs_site.py FOLDER.

They are those of docs/, the README and other pages of the repository, the notebooks
with their stored outputs, a gallery of their figures, and the reference, a page for
each module with all its public names.

Links are those of the repository, so that they work wherever its files are shown. They
are turned into the site's here, and a file that is not there is an error.
"""

import enum
import inspect
import pathlib
import posixpath
import re
import shutil
import sys
from typing import NamedTuple

import nbconvert
import nbformat

import fdp_jax

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    **{x: x for x in ("MECHANISMS.md", "CHANGELOG.md", "CONTRIBUTING.md")},
    **{
        f"benchmarks/{p.name}": f"benchmarks/{p.name}"
        for p in ROOT.glob("benchmarks/*.md")
    },
}
"""Pages outside of docs/, with their place in the site."""
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", flags=re.MULTILINE | re.DOTALL)
_TAGGED = re.compile(r"^(```\w+) .*$", flags=re.MULTILINE)
"""Where a block begins that has a word for the tests behind its language."""
_NUMBER = re.compile(r"(?<=\| )(\**[+-]?\d[\d.]*e-\d+)")
_UNBROKEN = r'<span class="number">\1</span>'
"""A number in a table, which is not to be broken at its sign."""


def _places() -> dict[str, str]:
    """Of each file of the repository that the site has: where."""
    found = dict(PAGES)
    for path in (ROOT / "docs").rglob("*"):
        if path.is_file():
            name = path.relative_to(ROOT / "docs").as_posix()
            found[f"docs/{name}"] = name
    for path in NOTEBOOKS:
        found[f"notebooks/{path.name}"] = f"notebooks/{path.stem}.md"
    return found


PLACES = _places()
SOURCES = {place: source for source, place in PLACES.items()}


def assembled() -> dict[str, str | bytes]:
    """All pages of the site and what they show, by their place in it."""
    found: dict[str, str | bytes] = {}
    for source, place in PLACES.items():
        path = ROOT / source
        if path.suffix == ".md":
            found[place] = _page(path.read_text(encoding="utf-8"), place)
        elif path.suffix != ".ipynb":
            found[place] = path.read_bytes()
    read = [_notebook(path) for path in NOTEBOOKS]
    for notebook in read:
        found |= notebook.pictures
        found[notebook.page] = _page(notebook.text, notebook.page)
    found["gallery.md"] = _gallery(read)
    return found | {_reference_page(name): _reference(name) for name in _modules()}


def _page(text: str, place: str) -> str:
    """The text, with the site's links in place of the repository's."""

    def changed(found: re.Match) -> str:
        return _link(found, SOURCES[place], place)

    text = _TAGGED.sub(r"\1", text)
    parts = _CODE.split(text)  # every other one is code
    parts[::2] = [_NUMBER.sub(_UNBROKEN, _LINK.sub(changed, x)) for x in parts[::2]]
    return "".join(parts)


def _link(found: re.Match, source: str, place: str) -> str:
    image, text, link = found.groups()
    target, _, anchor = link.partition("#")
    own_picture = target.startswith(f"{pathlib.PurePath(source).stem}_files/")
    if not target or ":" in target or own_picture:
        return found[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (ROOT / path).exists():
        raise ValueError(f"{source} links to {target}, which does not exist")
    if path not in PLACES:
        return text  # a file that is no page
    address = posixpath.relpath(PLACES[path], posixpath.dirname(place) or ".")
    return f"{image}[{text}]({address}{'#' + anchor if anchor else ''})"


class _Notebook(NamedTuple):
    title: str
    page: str
    text: str
    pictures: dict[str, bytes]
    shown: list[tuple[str, str]]
    """Of each picture: the heading above it, and its place."""


def _notebook(path: pathlib.Path) -> _Notebook:
    """A notebook with its stored outputs, as a page and its pictures."""
    folder = f"{path.stem}_files"
    resources = {"output_files_dir": folder, "unique_key": "picture"}
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(
        nbformat.read(path, as_version=4), resources
    )
    page = f"notebooks/{path.stem}.md"
    pictures = {f"notebooks/{k}": v for k, v in resources["outputs"].items()}
    heading, shown = "", []
    for line in _CODE.sub("", text).splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        for _, _, target in _LINK.findall(line):
            if target.startswith(folder):
                shown.append((heading, f"notebooks/{target}"))
    title = re.search(r"^# (.*)$", text, flags=re.MULTILINE)
    name = title[1] if title else path.stem
    return _Notebook(name, page, text, pictures, shown)


def _gallery(notebooks: list[_Notebook]) -> str:
    parts = [
        "# Pictures",
        "The figures of the notebooks, as these have stored them. The code that draws "
        "a figure stands above it in its notebook.",
    ]
    for notebook in notebooks:
        cards = [
            f"-   [![{heading}]({place})]({notebook.page})\n\n    {heading}"
            for heading, place in notebook.shown
        ]
        parts += [f"## [{notebook.title}]({notebook.page})"]
        parts += ['<div class="grid cards" markdown>', *cards, "</div>"]
    return "\n\n".join(parts) + "\n"


def _modules() -> list[str]:
    """The package itself, as an empty name, and what it offers by name."""
    names = (name for name in dir(fdp_jax) if inspect.ismodule(getattr(fdp_jax, name)))
    return ["", *sorted(names)]


def _reference_page(name: str) -> str:
    return f"reference/{name or 'fdp_jax'}.md"


def _kind(value: object) -> str:
    if not inspect.isclass(value):
        return "Functions" if callable(value) else "Values"
    if issubclass(value, fdp_jax.AbstractMechanism):
        return "Mechanisms"
    if issubclass(value, (enum.Enum, Exception)):
        return "Constants and errors"
    return "Classes"


def _reference(name: str) -> str:
    """The page of a module: what it is for, then its public names by kind."""
    module = getattr(fdp_jax, name) if name else fdp_jax
    kinds: dict[str, list[str]] = {}
    for public in sorted(dir(module), key=str.lower):
        value = getattr(module, public)
        if not public.startswith("_") and not inspect.ismodule(value):
            kinds.setdefault(_kind(value), []).append(public)
    summary = (module.__doc__ or "").partition("\n")[0]
    parts = [f"# {name or 'fdp_jax'}", summary]
    if name:
        parts = [f"# fdp.{name}", _description(module)]
    for kind in sorted(kinds):
        paths = [f"{module.__name__}.{public}" for public in kinds[kind]]
        parts += [f"## {kind}", _overview(module, kinds[kind])]
        parts += [_directive(path) for path in paths]
    return "\n\n".join(parts) + "\n"


def _overview(module, names: list[str]) -> str:
    """A table of names, with the first lines of their docstrings."""
    rows = ["| name | what it is |", "| --- | --- |"]
    for name in names:
        about = inspect.getdoc(getattr(module, name)) or ""
        line = about.partition("\n")[0].replace("|", "\\|")
        rows.append(f"| [`{name}`][{module.__name__}.{name}] | {line} |")
    return "\n".join(rows)


def _directive(path: str) -> str:
    return f"::: {path}\n    options:\n      heading_level: 3"


def _description(module) -> str:
    """Its docstring; what is indented or aligned in it stays so."""
    return inspect.getdoc(module) or ""


def main() -> None:
    """Write them to a folder, which is made anew."""
    folder = pathlib.Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for place, content in assembled().items():
        if place.endswith(".md") and place not in navigation:
            raise ValueError(f"{place} is not in the navigation of mkdocs.yml")
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


if __name__ == "__main__":
    main()
