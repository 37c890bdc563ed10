"""Hypothesis with deterministic settings, and strategies for the texts and JSON that Python can hold."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

repeatable = settings(
    derandomize=True,
    deadline=None,
    max_examples=150,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

any_text = st.text(st.characters(exclude_categories=()), max_size=60)
"""Lone surrogates included."""

tag_text = st.lists(
    st.sampled_from(["<txt>", "</txt>", "</result>", "<", ">", "&", "&lt;", "&#xD800;", "&amp;lt;"])
    | st.sampled_from(
        ["\n", "\r", "\r\n", "\x00", "\x85", "\u2028", "\ud800", "]]>", '"', "\\u003c"]
    )
    | any_text,
    max_size=8,
).map("".join)

any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | tag_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tag_text, inner, max_size=4),
    max_leaves=12,
)
