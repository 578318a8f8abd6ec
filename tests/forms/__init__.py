"""The same images in every form that a source reads, for the conformance suite tests/prep/test_sources.py."""
