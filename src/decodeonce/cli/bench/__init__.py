"""`prep bench`: what limits a build or a training run here, measured in less than a minute."""
