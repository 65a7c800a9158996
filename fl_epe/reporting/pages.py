"""Pages, LaTeX tables and programs from templates."""

from typing import Any

# Text as LaTeX prints it; letters of an alphabet and signs in mathematics.
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "θ": r"$\theta$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "∞": r"$\infty$",
        "−": "$-$",
        "–": "--",
        "“": "``",
        "”": "''",
        "…": r"\ldots{}",
        "√": r"$\surd$",
        "·": r"$\cdot$",
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    }
)


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return text.translate(_LATEX)


def render_page(template: str, room: str = "reporting", **values: Any) -> str:
    """A page, whose values are escaped, or a text from one of the templates of a room.

    Args:
        template: file name, such as "report.html.j2".
        room: that has it in its folder ``templates``.
        values: what the template shows; in LaTeX it escapes them with the filter ``tex``.
    """
    import jinja2

    loader = jinja2.PackageLoader("fl_epe", f"{room}/templates")
    found = jinja2.Environment(
        loader=loader,
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
    )
    found.filters["tex"] = escaped
    return found.get_template(template).render(**values)
