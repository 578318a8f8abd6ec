"""Create the environments of peers, run them in turn, check the images that they deliver, and print the results."""
