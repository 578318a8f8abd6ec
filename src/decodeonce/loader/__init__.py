"""Load the rows of a store as batches on a CPU or an accelerator. Imports neither prep nor Pillow."""
