"""The documents keep up with the code: their Python runs, their commands and links exist."""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import shlex
import tomllib
from pathlib import Path

import pytest

import fl_epe
from fl_epe.cli import main
from fl_epe.tasks.by_name import BUILT_IN

ROOT = Path(__file__).parents[1]
SITE = sorted((ROOT / "docs").rglob("*.md"))
ELSEWHERE = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "simulations/README.md",
)
TABLES = sorted((ROOT / "simulations").glob("*/README.md"))
DOCUMENTS = [*(ROOT / name for name in ELSEWHERE), *TABLES, *SITE]
BLOCK = re.compile(
    r"(?:<!-- compile only: (.+?) -->\n)?```(\w+)[^\n]*\n(.*?)^```", re.M | re.S
)


@dataclasses.dataclass(frozen=True)
class Block:
    """Fenced code; ``needs`` says why it cannot run, if it cannot."""

    document: str
    line: int
    language: str
    needs: str
    code: str

    def __str__(self):
        return f"{self.document}:{self.line}"


def blocks(language):
    return [
        Block(
            str(path.relative_to(ROOT)),
            text.count("\n", 0, m.start()) + 1,
            m[2],
            m[1] or "",
            m[3],
        )
        for path in DOCUMENTS
        for text in [path.read_text("utf-8")]
        for m in BLOCK.finditer(text)
        if m[2] == language
    ]


def word(place):
    """The name of a case: a document, or a block in it."""
    return re.sub(r"\W+", "-", str(place).removeprefix(f"{ROOT}/"))


PYTHON = blocks("python")


@pytest.mark.parametrize("block", [b for b in PYTHON if not b.needs], ids=word)
def test_python_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block.code, str(block), "exec"), {"__file__": "guide.py"})  # noqa: S102


@pytest.mark.parametrize("block", [b for b in PYTHON if b.needs], ids=word)
def test_python_that_cannot_run_calls_what_exists(block):
    """Its imports work, and what it imports takes the arguments that it is given."""
    tree = ast.parse(block.code, str(block))
    imported = {}
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom):
            module = importlib.import_module(statement.module)
            for name in statement.names:
                imported[name.asname or name.name] = getattr(module, name.name)
    calls = [
        (imported[node.func.id], node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in imported
    ]
    assert calls, "a block without a call of what it imports can run"
    for function, call in calls:
        inspect.signature(function).bind(
            *call.args, **{keyword.arg: None for keyword in call.keywords}
        )


def commands():
    for block in blocks("sh"):
        for line in block.code.replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                if words and Path(words[0]).name == "fl-epe":
                    yield pytest.param(
                        words[1:], id=f"{word(block)}-{words[1]}"
                    )


@pytest.mark.slow
@pytest.mark.parametrize("words", list(commands()))
def test_commands_have_the_options_that_documents_give_them(words, capsys):
    own = words[0] == "run" and words[1] in sorted(
        BUILT_IN
    )  # its options are in its own help
    depth = 2 if words[0] in ("advise", "data") or own else 1
    with pytest.raises(SystemExit) as ended:
        main([*words[:depth], "--help"])
    assert ended.value.code == 0
    options = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize(
    "path",
    [*DOCUMENTS, ROOT / "simulations/apps/canary-audit/README.md"],
    ids=word,
)
def test_processes_are_ended_by_id(path):
    assert not re.search(r"\b(pkill|killall)\b", path.read_text("utf-8"))


def test_guides_are_numbered_alike_in_the_site_and_in_their_index():
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    index = (ROOT / "docs/guides/index.md").read_text("utf-8")
    in_site = re.findall(r"^ +- (\d+) [\w ]+: guides/([\w-]+\.md)$", site, re.M)
    in_index = re.findall(
        r"^\| (\d+) \| \[[^]]+\]\(([\w-]+\.md)\)", index, re.M
    )
    assert in_site == in_index
    assert [int(number) for number, _ in in_site] == list(
        range(1, len(in_site) + 1)
    )
    guides = {path.name for path in (ROOT / "docs/guides").glob("*.md")}
    assert {name for _, name in in_site} == guides - {"index.md"}


def test_there_are_commands_to_check():
    assert len(list(commands())) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "command"),
    [
        pytest.param(
            "compare",
            "advise canaries --clients 120 --rounds 60",
            id="canaries",
        ),
        pytest.param("scores", "estimate scores.csv --delta 1e-5", id="scores"),
        pytest.param(
            "compare", "compare --schedules epochs poisson", id="compare"
        ),
    ],
)
def test_guides_show_what_their_commands_print(
    guide, command, tmp_path, monkeypatch, capsys
):
    """Every row of the table that is printed, for the first command that begins so."""
    text = (ROOT / f"docs/guides/{guide}.md").read_text("utf-8")
    (line,) = re.findall(
        rf"^\.venv/bin/fl-epe ({re.escape(command)}.*)$", text, re.M
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    if "scores.csv" in command:
        (block, *_) = (
            b for b in PYTHON if b.document == "docs/guides/scores.md"
        )
        exec(compile(block.code, str(block), "exec"), {})  # noqa: S102
    assert main(shlex.split(line)) == 0
    printed = [row.rstrip() for row in capsys.readouterr().out.splitlines()]
    start = next(
        place for place, row in enumerate(printed) if row.startswith("────")
    )
    rows = [
        row
        for row in printed[start + 1 :]
        if re.search(r"\d(  |$)", row) and "  " in row
    ]
    assert rows
    assert [row for row in rows if row not in text] == []


def test_flwr_is_told_to_simulate_as_many_nodes_as_the_app_waits_for():
    app = ROOT / "simulations/apps/canary-audit"
    settings = tomllib.loads((app / "pyproject.toml").read_text("utf-8"))[
        "tool"
    ]["flwr"]["app"]
    wanted = f"num-supernodes={settings['config']['min-nodes']} "
    texts = [
        path.read_text("utf-8") for path in (*DOCUMENTS, app / "README.md")
    ]
    said = re.findall(
        r"flwr run simulations/apps/canary-audit[^`\n]*", "\n".join(texts)
    )
    assert len(said) >= 4
    assert all(wanted in command or "min-nodes=" in command for command in said)


def test_variables_are_exported_before_the_first_flwr_run():
    app = ROOT / "simulations/apps/canary-audit/README.md"
    printed = [
        t
        for p in (*DOCUMENTS, app)
        if "flwr run simulations" in (t := p.read_text("utf-8"))
    ]
    assert len(printed) >= 4
    for text in printed:
        assert "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1" in text
        assert "uv sync" in text  # what to do after a failed run


def headings(path):
    """Anchors of a document's headings, as GitHub and the site make them."""
    text = re.sub(
        r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S
    )
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {
        re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-")
        for title in titles
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=word)
def test_links_pictures_and_named_files_exist(path):
    text = path.read_text("utf-8")
    for link in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)
    ):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.is_file(), link
        if path in SITE:  # which has nothing from outside docs
            assert target.resolve().is_relative_to(ROOT / "docs"), link
        assert not anchor or anchor in headings(target), link
    for name in re.findall(
        r"`((?:simulations|benchmarks|docs|notebooks|tests)/[\w./-]+)`", text
    ):
        assert (ROOT / name).exists(), name


def test_every_simulation_is_in_their_readme():
    room = ROOT / "simulations"
    overview = room / "README.md"
    scripts = list(room.glob("*/*.py"))
    apps = [path.parent for path in room.glob("*/*/pyproject.toml")]
    assert len(scripts) > 10
    assert len(apps) > 1
    for path in (*scripts, *apps):
        table = path.parent / "README.md"
        text = (table if table.exists() else overview).read_text("utf-8")
        assert path.name in text


def test_every_page_is_in_the_site_and_every_picture_on_a_page():
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = re.findall(r"^ +- (?:[\w ]+: )?([\w/-]+\.md)$", site, re.M)
    assert sorted(pages) == sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in SITE
    )
    gallery = (ROOT / "docs/gallery.md").read_text("utf-8")
    for picture in (ROOT / "docs").glob("*.png"):
        assert f"]({picture.name})" in gallery


def test_names_that_the_reference_says_are_public_are():
    text = (ROOT / "docs/api/index.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.+?) \|", text, re.M)
    names = re.findall(r"`(\w+)`", " ".join(rows))
    assert len(names) > 5
    assert set(names) <= set(fl_epe.__all__)


def test_readme_fits_a_page_and_sets_up_in_two_lines():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 100
    setups = re.findall(r"^```sh setup\n(.*?)^```", text, re.M | re.S)
    assert len(setups) == 2
    for setup in setups:
        assert len(setup.splitlines()) == 1
        assert setup.startswith("python3 -m venv .venv && ")
    assert "fl-epe run digits" in setups[0]  # .ci/run makes it smaller
    assert "pytest" in setups[1]
