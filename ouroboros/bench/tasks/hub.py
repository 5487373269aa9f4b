"""What tasks share whose rows lie on the hub and whose prompts are one template each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ouroboros.bench.tasks.source import Hub, Source
from ouroboros.bench.tasks.template import Template, choose_template


class HubTask:
    """A task's options; a subclass says where its rows are (id, config, split), what each must hold
    and which wordings there are."""

    name: ClassVar[str]
    rows: ClassVar[tuple[str, str, str]]
    fields: ClassVar[Mapping[str, type]]
    templates: ClassVar[Mapping[str, Template]]

    def __init__(
        self,
        *,
        path: str | None = None,
        revision: str | None = None,
        template: str = "plain",
        stop: Sequence[str] | None = None,
    ) -> None:
        self.source = Source(self.name, path, Hub(*self.rows, revision), self.fields)
        self.version = self.source.version
        self.template = choose_template(self.templates, template)
        self.stop = self.template.stops(stop)
