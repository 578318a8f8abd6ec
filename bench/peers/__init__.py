"""Comparison of this project with other data loaders ("peers") on the same images: `python -m bench.peers --help`.

Each peer is one file. It lists its requirements, says where its settings come from, and has functions that build and
load. To add a peer, add a file that defines `PEER` (see harness/peer.py).
"""
