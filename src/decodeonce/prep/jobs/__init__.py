"""Write the job scripts of a build for a batch system, and a script that submits them as a chain."""

from __future__ import annotations

from decodeonce.prep.jobs.base import Chain, no_option
from decodeonce.prep.jobs.chain import write_scripts
from decodeonce.prep.jobs.site import Site, read_site, site_names

__all__ = ["Chain", "Site", "no_option", "read_site", "site_names", "write_scripts"]
