"""Pages and programs from templates."""

from typing import Any


def render_page(template: str, room: str = "reporting", **values: Any) -> str:
    """A page, whose values are escaped, or a text from one of the templates of a room.

    Args:
        template: file name, such as "report.html.j2".
        room: the room that has the template in its folder ``templates``.
        values: what the template shows.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fl_epe", f"{room}/templates"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
    )
    return environment.get_template(template).render(**values)
