"""Export the rows of a store as image files in class folders, or as WebDataset tars."""
