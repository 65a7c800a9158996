"""Renders pages and programs from templates."""

from typing import Any


def render_page(template: str, room: str = "reporting", **values: Any) -> str:
    """Render a template; values are escaped if it is an HTML page.

    Args:
        template: file name, such as "report.html.j2".
        room: the subpackage that has the template in its folder ``templates``.
        values: the values that the template shows.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fl_epe", f"{room}/templates"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
    )
    return environment.get_template(template).render(**values)
