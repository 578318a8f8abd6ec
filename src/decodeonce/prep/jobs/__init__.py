"""Write the job scripts of a build for a batch system, and a script that submits them as a chain."""
