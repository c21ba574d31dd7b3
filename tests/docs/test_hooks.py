"""What MkDocs calls: the integrators' section gets its pages once, and parts of pages are put in."""

from __future__ import annotations

from types import SimpleNamespace

from docs import hooks
from docs.generate.imported import TITLES, integrators


def test_docs_hooks_add_integrators_once() -> None:
    config = SimpleNamespace(nav=[{"Start": ["index.md"]}, {"Integrators": ["integrators/index.md"]}])
    named = [{TITLES[page]: page} if page in TITLES else page for page in integrators()]
    for _ in range(2):
        hooks.on_config(config)
    assert config.nav == [{"Start": ["index.md"]}, {"Integrators": ["integrators/index.md", *named]}]
    assert "integrators/megatron.md" in integrators()
    hooks.on_config(SimpleNamespace(nav=None))


def test_docs_hooks_fill_pages() -> None:
    filled = hooks.on_page_markdown("# T\n\n<!-- generated: settings -->\n", None, None, None)
    assert filled.startswith("# T\n\n### Nodes and networks\n\n| variable |") and "UCCL_EP_TIMEOUT_S" in filled
    assert hooks.on_page_markdown("text <!-- generated: settings -->", None, None, None).startswith("text <!--")
