"""The documentation as a site: `docs/build_site.py` makes its files, which are part of this package."""
