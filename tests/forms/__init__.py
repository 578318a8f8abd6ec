"""The same pictures in every form a source reads: what the conformance suite (tests/prep/test_sources.py) runs on."""
