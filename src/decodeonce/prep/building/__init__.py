"""Build a store from a source's images in three steps: plan, decode, finish. Safe to kill and rerun at any moment."""
